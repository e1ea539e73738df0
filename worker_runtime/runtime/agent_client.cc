#include "worker_runtime/runtime/agent_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/agent.pb.h"
#include "proto/base/status_macros.h"
#include "proto/io/stop_wire.h"
#include "proto/io/store_wire.h"

namespace muster {
namespace {

constexpr int kProtocolVersion = 1;
// The values of a reply, and what surrounds them.
constexpr size_t kMaxFrameBytes = kMaxStoreReplyBytes + (size_t{1} << 20);
constexpr size_t kMaxPending = 1024;
// The server judges the time-out of a wait; its answer needs a moment to arrive.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr absl::Duration kLongestWait = absl::Hours(24);
// An agent that reads nothing for so long is given up.
constexpr absl::Duration kStopWordTime = absl::Seconds(30);

absl::Status SocketError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " the agent at ", path, ": ", std::strerror(errno),
                   "; has the job ended, or is the socket of an earlier one "
                   "still in MUSTER_AGENT_SOCKET?"));
}

int PollTimeout(MonoTime deadline) {
  const absl::Duration left = std::clamp(deadline - MonoNow(), absl::ZeroDuration(), kLongestWait);
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

bool ReadFully(int fd, char* data, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= got;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentClient>> AgentClient::Connect(const AgentAddress& address,
                                                                  MonoTime deadline) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (address.socket_path.size() >= sizeof(to.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("MUSTER_AGENT_SOCKET=", address.socket_path,
                                                   " is too long for a Unix socket"));
  }
  std::memcpy(to.sun_path, address.socket_path.data(), address.socket_path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return SocketError("open a socket to", address.socket_path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    return SocketError("reach", address.socket_path);
  }
  std::unique_ptr<AgentClient> client(new AgentClient(std::move(fd), address));
  MUSTER_RETURN_IF_ERROR(client->Greet(deadline));
  return client;
}

AgentClient::AgentClient(UniqueFd fd, AgentAddress address)
    : fd_(std::move(fd)), address_(std::move(address)), reader_([this] { ReadReplies(); }) {}

AgentClient::~AgentClient() {
  shutdown(fd_.get(), SHUT_RDWR);  // ends the reader's read
  reader_.join();
}

absl::Status AgentClient::Greet(MonoTime deadline) {
  proto::WorkerMessage message;
  proto::WorkerMessage::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_instance(address_.instance.value());
  hello->set_round(address_.round.value());
  hello->set_local_rank(address_.local_rank.value());
  hello->set_pid(getpid());
  MUSTER_RETURN_IF_ERROR(SendMessage(message, deadline));
  base::MutexLock lock(mu_);
  while (!welcome_ && lost_.ok() && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
  if (welcome_) return absl::OkStatus();
  if (!lost_.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "the agent at ", address_.socket_path, " refused this worker: another round than ",
        ToString(address_.round), " may have begun, or it is of another version of muster"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the agent at ", address_.socket_path, " did not answer"));
}

absl::Status AgentClient::SendMessage(const proto::WorkerMessage& message, MonoTime deadline) {
  std::string frame(4, '\0');
  message.AppendToString(&frame);
  const size_t body = frame.size() - 4;
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body >> (8 * i));
  base::MutexLock lock(write_mu_);
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t wrote =
        send(fd_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote >= 0) {
      sent += wrote;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return SocketError("write to", address_.socket_path);
    pollfd writable{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, PollTimeout(deadline)) == 0) {
      shutdown(fd_.get(), SHUT_RDWR);  // part of a frame may be out; nothing can follow it
      return absl::DeadlineExceededError(
          absl::StrCat("the agent at ", address_.socket_path, " does not read"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreReply> AgentClient::Ask(StoreOperation operation, MonoTime deadline) {
  StoreRequest request{.round = address_.round, .operation = std::move(operation)};
  {
    base::MutexLock lock(mu_);
    if (!lost_.ok()) return lost_;
    if (!round_over_.ok()) return round_over_;
    if (pending_.size() >= kMaxPending) {
      return absl::ResourceExhaustedError(
          absl::StrCat("more than ", kMaxPending, " requests to the store are open"));
    }
    request.request_id = next_request_id_++;
    pending_[request.request_id];
  }
  proto::WorkerMessage message;
  Encode(request, message.mutable_store());
  const absl::Status sent = SendMessage(message, deadline);
  base::MutexLock lock(mu_);
  const MonoTime latest = deadline + kAnswerTime;
  while (sent.ok() && !pending_[request.request_id].done && lost_.ok() && round_over_.ok() &&
         MonoNow() < latest) {
    changed_.WaitUntil(mu_, latest);
  }
  Pending pending = std::move(pending_[request.request_id]);
  pending_.erase(request.request_id);
  if (!sent.ok()) return sent;
  if (pending.done) return pending.reply;
  if (!round_over_.ok()) return round_over_;
  if (!lost_.ok()) return lost_;
  return absl::DeadlineExceededError(
      "the store did not answer in time; is the rendezvous server up?");
}

absl::Status AgentClient::Set(const std::string& key, const std::string& value, MonoTime deadline) {
  MUSTER_ASSIGN_OR_RETURN(const StoreReply reply, Ask(StoreSet{key, value}, deadline));
  return reply.status;
}

absl::StatusOr<std::string> AgentClient::Wait(const std::string& key, MonoTime deadline) {
  const absl::Duration timeout =
      std::clamp(deadline - MonoNow(), absl::ZeroDuration(), kLongestWait);
  MUSTER_ASSIGN_OR_RETURN(StoreReply reply,
                          Ask(StoreWait{.keys = {key}, .timeout = timeout}, deadline));
  MUSTER_RETURN_IF_ERROR(reply.status);
  if (reply.values.size() != 1) {
    return absl::InternalError(absl::StrCat("the store answered a wait for one key with ",
                                            reply.values.size(), " values"));
  }
  return std::move(reply.values.front());
}

absl::Status AgentClient::CommitCheckpoint(int64_t step, MonoTime deadline) {
  const absl::StatusOr<StoreReply> reply = Ask(muster::CommitCheckpoint{.step = step}, deadline);
  const absl::Status status = reply.ok() ? reply->status : reply.status();
  if (status.ok() || absl::IsAborted(status)) return status;
  return absl::UnavailableError(status.message());
}

// The agent hears of a worker that obeys only once it can be asked how far it is.
bool AgentClient::ShouldStop(int64_t step) {
  const bool stops = stop_gate_.ShouldStop(step);
  if (!obeys_stop_.load(std::memory_order_relaxed) && !obeys_stop_.exchange(true)) {
    proto::WorkerMessage message;
    message.mutable_obeys_stop();
    // An agent that is gone stops nobody.
    SendMessage(message, MonoNow() + kStopWordTime).IgnoreError();
  }
  return stops;
}

void AgentClient::SurviveRounds(std::function<void(const std::string&)> on_round_over) {
  {
    base::MutexLock lock(mu_);
    if (on_round_over_ != nullptr) return;
    on_round_over_ = std::move(on_round_over);
  }
  proto::WorkerMessage message;
  message.mutable_survives_rounds();
  // An agent that is gone has no other round.
  SendMessage(message, MonoNow() + kStopWordTime).IgnoreError();
}

absl::StatusOr<EnvironmentMap> AgentClient::AwaitRound(MonoTime patience_ends) {
  proto::WorkerMessage message;
  message.mutable_awaits_round();
  MUSTER_RETURN_IF_ERROR(SendMessage(message, MonoNow() + kStopWordTime));
  base::MutexLock lock(mu_);
  while (true) {
    if (next_round_.has_value()) return *std::move(next_round_);
    if (absl::IsCancelled(round_over_)) return round_over_;
    if (!lost_.ok()) return lost_;
    const MonoTime until = round_over_.ok() ? patience_ends : MonoTime::InfiniteFuture();
    if (until <= MonoNow()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the agent has not said that ", ToString(address_.round), " is over"));
    }
    changed_.WaitUntil(mu_, until);
  }
}

absl::Status AgentClient::SendGoodbye(int64_t step, MonoTime deadline) {
  proto::WorkerMessage message;
  message.mutable_goodbye()->set_step(step);
  return SendMessage(message, deadline);
}

void AgentClient::ReadReplies() {
  while (true) {
    std::array<uint8_t, 4> length{};
    if (!ReadFully(fd_.get(), reinterpret_cast<char*>(length.data()), length.size())) {
      return OnLost(absl::UnavailableError(
          absl::StrCat("the agent at ", address_.socket_path, " has closed the connection")));
    }
    size_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | length[i];
    std::string body;
    if (size <= kMaxFrameBytes) body.resize(size);
    proto::WorkerReply reply;
    if (size > kMaxFrameBytes || !ReadFully(fd_.get(), body.data(), size) ||
        !reply.ParseFromString(body)) {
      return OnLost(absl::UnavailableError(absl::StrCat("the agent at ", address_.socket_path,
                                                        " sent something that is not a reply")));
    }
    OnReply(reply);
  }
}

// What cannot be read is a stop that this version does not know: it is not obeyed.
void AgentClient::OnStop(const proto::StopState& stop) {
  absl::StatusOr<StopState> decoded = Decode(stop);
  if (!decoded.ok()) return;
  const std::optional<int64_t> floor = stop_gate_.Hear(*std::move(decoded));
  if (!floor.has_value()) return;
  proto::WorkerMessage message;
  message.mutable_stop_floor()->set_step(*floor);
  // A connection that is lost is noticed by its reader.
  SendMessage(message, MonoNow() + kStopWordTime).IgnoreError();
}

void AgentClient::OnReply(const proto::WorkerReply& reply) {
  if (reply.has_stop()) return OnStop(reply.stop());
  if (reply.has_round_over()) {
    return OnRoundOver(reply.round_over().is_followed(), reply.round_over().reason());
  }
  base::MutexLock lock(mu_);
  if (reply.has_next_round()) {
    std::vector<const char*> entries;
    for (const std::string& entry : reply.next_round().environment()) {
      entries.push_back(entry.c_str());
    }
    entries.push_back(nullptr);
    next_round_ = EnvironmentOf(entries.data());
  }
  if (reply.has_welcome()) welcome_ = true;
  if (reply.has_store()) {
    absl::StatusOr<StoreReply> decoded = Decode(reply.store());
    const auto asked = pending_.find(reply.store().request_id());
    if (asked != pending_.end()) {
      asked->second.done = true;
      if (decoded.ok()) {
        asked->second.reply = *std::move(decoded);
      } else {
        asked->second.reply.status = decoded.status();
      }
    }
  }
  changed_.NotifyAll();
}

// Who holds for a stop step that never comes goes on, to the first call that fails.
void AgentClient::OnRoundOver(bool is_followed, const std::string& reason) {
  stop_gate_.HearNoMore();
  std::function<void(const std::string&)> on_round_over;
  {
    base::MutexLock lock(mu_);
    if (round_over_.ok()) on_round_over = on_round_over_;
    round_over_ = is_followed
                      ? absl::AbortedError(absl::StrCat("the round is over: ", reason))
                      : absl::CancelledError(absl::StrCat("no other round follows: ", reason));
    changed_.NotifyAll();
  }
  if (on_round_over) on_round_over(reason);
}

void AgentClient::OnLost(absl::Status why) {
  stop_gate_.HearNoMore();
  base::MutexLock lock(mu_);
  lost_ = std::move(why);
  changed_.NotifyAll();
}

}  // namespace muster
