#include "worker_runtime/runtime/agent_client.h"

#include <unistd.h>

#include <algorithm>
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
constexpr size_t kMaxPending = 1024;
// The server judges the time-out of a wait; its answer needs a moment to arrive.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr absl::Duration kLongestWait = absl::Hours(24);
// An agent that reads nothing for so long is given up.
constexpr absl::Duration kStopWordTime = absl::Seconds(30);

}  // namespace

absl::StatusOr<std::unique_ptr<AgentClient>> AgentClient::Connect(const AgentAddress& address,
                                                                  MonoTime deadline) {
  MUSTER_ASSIGN_OR_RETURN(auto socket, AgentSocket::Connect(address.socket_path));
  std::unique_ptr<AgentClient> client(new AgentClient(std::move(socket), address.round));
  MUSTER_RETURN_IF_ERROR(client->Greet(address, deadline));
  return client;
}

AgentClient::AgentClient(std::unique_ptr<AgentSocket> socket, Round round)
    : socket_(std::move(socket)), round_(round), reader_([this] { ReadReplies(); }) {}

AgentClient::~AgentClient() {
  socket_->Close();  // ends the reader's read
  reader_.join();
}

absl::Status AgentClient::Greet(const AgentAddress& address, MonoTime deadline) {
  proto::WorkerMessage message;
  proto::WorkerMessage::Hello* hello = message.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_instance(address.instance.value());
  hello->set_round(address.round.value());
  hello->set_local_rank(address.local_rank.value());
  hello->set_pid(getpid());
  MUSTER_RETURN_IF_ERROR(socket_->Send(message, deadline));
  base::MutexLock lock(mu_);
  while (!welcome_ && lost_.ok() && MonoNow() < deadline) changed_.WaitUntil(mu_, deadline);
  if (welcome_) return absl::OkStatus();
  if (!lost_.ok()) {
    return absl::UnavailableError(absl::StrCat("the agent at ", address.socket_path,
                                               " has no place for this worker: ", lost_.message()));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the agent at ", address.socket_path, " did not answer"));
}

absl::StatusOr<StoreReply> AgentClient::Ask(StoreOperation operation, MonoTime deadline) {
  StoreRequest request{.round = round_, .operation = std::move(operation)};
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
  const absl::Status sent = socket_->Send(message, deadline);
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
  if (status.ok() || absl::IsAborted(status) || absl::IsInvalidArgument(status)) return status;
  return absl::UnavailableError(status.message());
}

// The agent hears of a worker that obeys only once it can be asked how far it is.
bool AgentClient::ShouldStop(int64_t step) {
  const bool stops = stop_gate_.ShouldStop(step);
  if (!obeys_stop_.load(std::memory_order_relaxed) && !obeys_stop_.exchange(true)) {
    proto::WorkerMessage message;
    message.mutable_obeys_stop();
    // An agent that is gone stops nobody.
    socket_->Send(message, MonoNow() + kStopWordTime).IgnoreError();
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
  socket_->Send(message, MonoNow() + kStopWordTime).IgnoreError();
}

absl::StatusOr<EnvironmentMap> AgentClient::AwaitRound(MonoTime patience_ends) {
  proto::WorkerMessage message;
  message.mutable_awaits_round();
  MUSTER_RETURN_IF_ERROR(socket_->Send(message, MonoNow() + kStopWordTime));
  base::MutexLock lock(mu_);
  while (true) {
    if (next_round_.has_value()) return *std::move(next_round_);
    if (absl::IsCancelled(round_over_)) return round_over_;
    if (!lost_.ok()) return lost_;
    const MonoTime until = round_over_.ok() ? patience_ends : MonoTime::InfiniteFuture();
    if (until <= MonoNow()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the agent has not said that ", ToString(round_), " is over"));
    }
    changed_.WaitUntil(mu_, until);
  }
}

absl::Status AgentClient::SendGoodbye(int64_t step, MonoTime deadline) {
  proto::WorkerMessage message;
  message.mutable_goodbye()->set_step(step);
  return socket_->Send(message, deadline);
}

void AgentClient::ReadReplies() {
  while (true) {
    proto::WorkerReply reply;
    absl::Status received = socket_->Receive(&reply);
    if (!received.ok()) return OnLost(std::move(received));
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
  socket_->Send(message, MonoNow() + kStopWordTime).IgnoreError();
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
  if (reply.has_refused()) {
    lost_ = absl::PermissionDeniedError(
        absl::StrCat("it refused this process: ", reply.refused().reason()));
  }
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
  if (lost_.ok()) lost_ = std::move(why);
  changed_.NotifyAll();
}

}  // namespace muster
