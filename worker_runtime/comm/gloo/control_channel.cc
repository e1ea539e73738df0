#include "worker_runtime/comm/gloo/control_channel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "worker_runtime/comm/gloo/exchange.h"

namespace muster::comm {
namespace {

enum class MessageKind : uint8_t { kFailure, kQuestion, kAnswer };

// Questions are asked once or twice in a communicator's life; a peer that floods us loses its
// answers.
constexpr size_t kOutgoingPerPeerMax = 64;

const uint64_t kSlot = SlotOf(SlotClass::kControl, Operation{}, 0);

}  // namespace

struct ControlChannel::Message {
  MessageKind kind = MessageKind::kFailure;
  absl::StatusCode code = absl::StatusCode::kOk;
  int32_t from = 0;
  int64_t sequence = 0;
  Position position;
  std::string text;  // of a failure, cut to what fits

  static constexpr size_t kTextAt = 56;

  Bytes Encode() const {
    Bytes out{};
    out[0] = static_cast<uint8_t>(kind);
    out[1] = static_cast<uint8_t>(code);
    out[2] = position.reached ? 1 : 0;
    out[3] = position.operation.has_value() ? 1 : 0;
    std::memcpy(&out[4], &from, sizeof(from));
    std::memcpy(&out[8], &sequence, sizeof(sequence));
    if (position.operation.has_value()) muster::comm::Encode(*position.operation, &out[16]);
    const uint32_t length = std::min(text.size(), kMessageBytes - kTextAt);
    std::memcpy(&out[48], &length, sizeof(length));
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
    uint32_t length = 0;
    std::memcpy(&length, &in[48], sizeof(length));
    length = std::min<uint32_t>(length, kMessageBytes - kTextAt);
    message.text.assign(reinterpret_cast<const char*>(&in[kTextAt]), length);
    return message;
  }
};

ControlChannel::ControlChannel(GlooMesh& mesh, ControlSettings settings)
    : mesh_(mesh), settings_(std::move(settings)), thread_([this] { Run(); }) {}

ControlChannel::~ControlChannel() {
  receiving_.Interrupt();
  thread_.join();
}

void ControlChannel::Run() {
  while (true) {
    Bytes bytes;
    absl::StatusOr<Transfer> receive = mesh_.ReceiveFromAny(kSlot, bytes.data(), bytes.size());
    if (!receive.ok() || !mesh_.Wait(*receive, receiving_).ok()) return;
    Handle(Message::Decode(bytes));
  }
}

void ControlChannel::Handle(const Message& message) {
  switch (message.kind) {
    case MessageKind::kFailure:
      if (message.code != absl::StatusCode::kOk) {
        settings_.on_failure(absl::Status(message.code, message.text));
      }
      return;
    case MessageKind::kQuestion:
      if (message.from < 0 || message.from >= settings_.size || message.from == settings_.rank) {
        return;
      }
      Send(message.from, {.kind = MessageKind::kAnswer,
                          .from = settings_.rank,
                          .sequence = message.sequence,
                          .position = settings_.position(message.sequence)});
      return;
    case MessageKind::kAnswer: {
      base::MutexLock lock(mu_);
      const auto asked = answers_.find(message.sequence);
      if (asked != answers_.end()) asked->second[message.from] = message.position;
      answered_.NotifyAll();
      return;
    }
  }
}

void ControlChannel::Send(int peer, const Message& message) {
  base::MutexLock lock(mu_);
  if (outgoing_.size() >= kOutgoingPerPeerMax * settings_.size) return;
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->bytes = message.Encode();
  absl::StatusOr<Transfer> transfer =
      mesh_.Send(peer, kSlot, outgoing->bytes.data(), outgoing->bytes.size());
  if (!transfer.ok()) return;  // the peer is gone; it needs no telling
  outgoing->transfer = *std::move(transfer);
  outgoing_.push_back(std::move(outgoing));
}

void ControlChannel::Tell(const absl::Status& failure) {
  for (int peer = 0; peer < settings_.size; ++peer) {
    if (peer == settings_.rank) continue;
    Send(peer, {.kind = MessageKind::kFailure,
                .code = failure.code(),
                .from = settings_.rank,
                .text = std::string(failure.message())});
  }
}

std::map<int, Position> ControlChannel::Ask(int64_t sequence, MonoTime deadline) {
  {
    base::MutexLock lock(mu_);
    answers_[sequence].clear();
  }
  for (int peer = 0; peer < settings_.size; ++peer) {
    if (peer == settings_.rank) continue;
    Send(peer, {.kind = MessageKind::kQuestion, .from = settings_.rank, .sequence = sequence});
  }
  base::MutexLock lock(mu_);
  const size_t num_peers = settings_.size - 1;
  while (answers_[sequence].size() < num_peers && MonoNow() < deadline) {
    answered_.WaitUntil(mu_, deadline);
  }
  std::map<int, Position> out = std::move(answers_[sequence]);
  answers_.erase(sequence);
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
