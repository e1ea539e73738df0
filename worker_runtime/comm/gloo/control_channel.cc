#include "worker_runtime/comm/gloo/control_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/gloo/exchange.h"
#include "worker_runtime/comm/gloo/sigpipe_block.h"

namespace muster::comm {
namespace {

enum class MessageKind : uint8_t { kFailure, kQuestion, kAnswer };

// Questions are asked once or twice in a communicator's life; what floods us is dropped. Each
// rank's question and the answers to it may pass here.
constexpr size_t kOutgoingPerPeerMax = 64;
constexpr size_t kOutgoingPerRankMax = 4;

const uint64_t kSlot = SlotOf(SlotClass::kControl, Operation{}, 0);

}  // namespace

struct ControlChannel::Message {
  MessageKind kind = MessageKind::kFailure;
  absl::StatusCode code = absl::StatusCode::kOk;
  int32_t from = 0;   // the peer that sends it
  int32_t asker = 0;  // of a question or an answer to it
  int32_t answerer = 0;
  int64_t question = 0;  // the asker's count
  int64_t sequence = 0;
  Position position;
  std::string text;  // of a failure, cut to what fits

  static constexpr size_t kTextAt = 72;

  Bytes Encode() const {
    Bytes out{};
    out[0] = static_cast<uint8_t>(kind);
    out[1] = static_cast<uint8_t>(code);
    out[2] = position.reached ? 1 : 0;
    out[3] = position.operation.has_value() ? 1 : 0;
    std::memcpy(&out[4], &from, sizeof(from));
    std::memcpy(&out[8], &sequence, sizeof(sequence));
    if (position.operation.has_value()) muster::comm::Encode(*position.operation, &out[16]);
    std::memcpy(&out[48], &asker, sizeof(asker));
    std::memcpy(&out[52], &answerer, sizeof(answerer));
    std::memcpy(&out[56], &question, sizeof(question));
    const uint32_t length = std::min(text.size(), kMessageBytes - kTextAt);
    std::memcpy(&out[64], &length, sizeof(length));
    std::memcpy(&out[kTextAt], text.data(), length);
    return out;
  }

  static Message Decode(const Bytes& in) {
    Message message;
    message.kind = static_cast<MessageKind>(in[0]);
    message.code = static_cast<absl::StatusCode>(in[1]);
    std::memcpy(&message.from, &in[4], sizeof(message.from));
    std::memcpy(&message.sequence, &in[8], sizeof(message.sequence));
    message.position.reached = in[2] != 0;
    if (in[3] != 0) {
      if (absl::StatusOr<Operation> operation = DecodeOperation(&in[16]); operation.ok()) {
        message.position.operation = *operation;
      }
    }
    std::memcpy(&message.asker, &in[48], sizeof(message.asker));
    std::memcpy(&message.answerer, &in[52], sizeof(message.answerer));
    std::memcpy(&message.question, &in[56], sizeof(message.question));
    uint32_t length = 0;
    std::memcpy(&length, &in[64], sizeof(length));
    length = std::min<uint32_t>(length, kMessageBytes - kTextAt);
    message.text.assign(reinterpret_cast<const char*>(&in[kTextAt]), length);
    return message;
  }
};

std::vector<int> ControlPeers(int rank, int size) {
  std::vector<int> peers;
  for (int distance = 1; distance < size; distance *= 2) {
    peers.push_back((rank + distance) % size);
    peers.push_back((rank + size - distance) % size);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

namespace {

// A rank that ends with an error of its own may still be about to say it. Were its peers to fail
// first, the launcher would take one of them for the cause and end it before it has spoken.
void LetPeerSpeakFirst(WaitPoint& point) {
  FailureCell interrupted;
  if (!point.Begin([&interrupted] { interrupted.Set(absl::AbortedError("interrupted")); })) return;
  interrupted.WaitFor(MonoNow() + kControlReasonTime).IgnoreError();
  point.End();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GlooMesh>> ConnectControl(std::shared_ptr<GlooDevice> device,
                                                         std::shared_ptr<Store> store,
                                                         const MeshOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<GlooMesh> mesh,
                          GlooMesh::Create(device, std::move(store), options));
  WaitPoint connecting;
  const DeadlineWatch::Entry entry =
      device->watch->Add(options.deadline, [&connecting] { connecting.Interrupt(); });
  AbortSwitch* const abort_switch = options.abort_switch.get();
  const uint64_t place =
      abort_switch == nullptr
          ? 0
          : abort_switch->Enter([&connecting](absl::string_view) { connecting.Interrupt(); });
  const absl::Status status = mesh->Reach(ControlPeers(options.rank, options.size), connecting);
  if (absl::IsUnavailable(status)) LetPeerSpeakFirst(connecting);
  device->watch->Remove(entry);
  if (abort_switch != nullptr) {
    abort_switch->Leave(place);
    MUSTER_RETURN_IF_ERROR(abort_switch->thrown());
  }
  if (absl::IsAborted(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", options.rank, " of group ", options.group,
                     " could not connect with all of its peers until its connect_timeout"));
  }
  MUSTER_RETURN_IF_ERROR(status);
  return mesh;
}

ControlChannel::ControlChannel(GlooMesh& mesh, ControlSettings settings)
    : mesh_(mesh),
      settings_(std::move(settings)),
      peers_(ControlPeers(settings_.rank, settings_.size)),
      thread_([this] { Run(); }) {}

ControlChannel::~ControlChannel() {
  receiving_.Interrupt();
  thread_.join();
}

void ControlChannel::Run() {
  const SigpipeBlock block;
  while (true) {
    Bytes bytes;
    absl::StatusOr<TcpTransfer> receive =
        mesh_.ReceiveFromAny(peers_, kSlot, bytes.data(), bytes.size());
    if (!receive.ok() || !mesh_.Wait(*receive, receiving_).ok()) return;
    const Message message = Message::Decode(bytes);
    const bool is_known = std::binary_search(peers_.begin(), peers_.end(), message.from);
    if (is_known) Handle(message);
  }
}

void ControlChannel::Handle(const Message& message) {
  switch (message.kind) {
    case MessageKind::kFailure:
      if (message.code != absl::StatusCode::kOk) {
        const absl::Status failure(message.code, message.text);
        // First, since the listener may end the communicator.
        Tell(failure);
        settings_.on_failure(failure);
      }
      return;
    case MessageKind::kQuestion:
      return HandleQuestion(message);
    case MessageKind::kAnswer:
      return HandleAnswer(message);
  }
}

// A question comes once along each connection; the first one that comes makes the route of the
// answers, which so avoids ranks that are gone, and is the only one that is passed on.
void ControlChannel::HandleQuestion(const Message& message) {
  if (message.asker == settings_.rank) return;
  const size_t most_routes = kOutgoingPerRankMax * settings_.size;
  if (routes_.size() >= most_routes) return;
  const bool is_new =
      routes_.emplace(Question(message.asker, message.question), message.from).second;
  if (!is_new) return;
  Message answer = message;
  answer.kind = MessageKind::kAnswer;
  answer.answerer = settings_.rank;
  answer.position = settings_.position(message.sequence);
  Send(message.from, std::move(answer));
  for (const int peer : peers_) {
    if (peer != message.from && peer != message.asker) Send(peer, message);
  }
}

void ControlChannel::HandleAnswer(const Message& message) {
  if (message.asker != settings_.rank) {
    const auto route = routes_.find(Question(message.asker, message.question));
    if (route != routes_.end()) Send(route->second, message);
    return;
  }
  base::MutexLock lock(mu_);
  const auto asked = answers_.find(message.question);
  if (asked != answers_.end()) asked->second[message.answerer] = message.position;
  answered_.NotifyAll();
}

void ControlChannel::Send(int peer, Message message) {
  message.from = settings_.rank;
  base::MutexLock lock(mu_);
  const size_t most = kOutgoingPerPeerMax * peers_.size() + kOutgoingPerRankMax * settings_.size;
  if (outgoing_.size() >= most) return;
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->bytes = message.Encode();
  absl::StatusOr<TcpTransfer> transfer =
      mesh_.Send(peer, kSlot, outgoing->bytes.data(), outgoing->bytes.size());
  if (!transfer.ok()) return;  // the peer is gone; it needs no telling
  outgoing->transfer = *std::move(transfer);
  outgoing_.push_back(std::move(outgoing));
}

void ControlChannel::Tell(const absl::Status& failure) {
  if (has_told_.exchange(true)) return;
  for (const int peer : peers_) {
    Send(peer, {.kind = MessageKind::kFailure,
                .code = failure.code(),
                .text = std::string(failure.message())});
  }
}

std::map<int, Position> ControlChannel::Ask(int64_t sequence, MonoTime deadline) {
  int64_t question = 0;
  {
    base::MutexLock lock(mu_);
    question = num_asked_++;
    answers_[question].clear();
  }
  for (const int peer : peers_) {
    Send(peer, {.kind = MessageKind::kQuestion,
                .asker = settings_.rank,
                .question = question,
                .sequence = sequence});
  }
  base::MutexLock lock(mu_);
  const size_t num_others = settings_.size - 1;
  while (answers_[question].size() < num_others && MonoNow() < deadline) {
    answered_.WaitUntil(mu_, deadline);
  }
  std::map<int, Position> out = std::move(answers_[question]);
  answers_.erase(question);
  return out;
}

void ControlChannel::Flush(MonoTime deadline) {
  std::vector<std::unique_ptr<Outgoing>> outgoing;
  {
    base::MutexLock lock(mu_);
    outgoing.swap(outgoing_);
  }
  WaitPoint flushing;
  DeadlineWatch& watch = *mesh_.device()->watch;
  const DeadlineWatch::Entry entry = watch.Add(deadline, [&flushing] { flushing.Interrupt(); });
  for (const std::unique_ptr<Outgoing>& each : outgoing) {
    mesh_.Wait(each->transfer, flushing).IgnoreError();
  }
  watch.Remove(entry);
}

}  // namespace muster::comm
