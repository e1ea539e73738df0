// What one stream is written, a message at a time, and how it ends.
//
// Two ways to end. End drops what waits to be written: the agent has misbehaved, or has another
// stream. After Drain it is written first, since it is the job's last word.
//
// Threads: compatible; pure.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/base/membership.h"
#include "rendezvous/link/parts_wire.h"
#include "rendezvous/server/outbox.h"

namespace muster::proto {
class FromServer;
}  // namespace muster::proto

namespace muster::rendezvous {

// The stream itself.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  // OnWritten follows.
  virtual void Write(proto::FromServer message) = 0;
  // The last that is asked of it.
  virtual void Finish(const absl::Status& status) = 0;
  // How often its agent is to renew, as of now.
  virtual absl::Duration RenewInterval() = 0;
};

class StreamWriter {
 public:
  // Both outlive it. `parts` is all streams' together.
  StreamWriter(StreamSink& sink, EncodedParts& parts);
  ~StreamWriter();

  // Goes before all that waits: the handshake's next message, or a person's answer.
  void Greet(std::unique_ptr<proto::FromServer> greeting);
  void Push(const Directive& directive);
  // What waits behind greetings and directives: answers, orders of the watch, values of the store.
  Outbox& outbox() { return outbox_; }
  const Outbox& outbox() const { return outbox_; }

  // Writes what comes next, or ends the stream after what was being written.
  void Pump();
  void OnWritten();

  // The first reason counts.
  void End(absl::Status status);
  void Drain() { drains_ = true; }
  bool IsEnding() const { return ending_.has_value(); }
  bool IsDraining() const { return drains_; }
  // The last directive is the job's end; the agent that is told it closes the stream itself, so
  // that the word is not cut off by our closing.
  bool HasToldEnd() const { return told_end_; }

 private:
  std::optional<proto::FromServer> NextMessage();
  void Say(Directive directive, proto::FromServer& message);

  StreamSink& sink_;
  EncodedParts& parts_;
  std::unique_ptr<proto::FromServer> greeting_;
  Outbox outbox_;
  std::optional<Directive> last_directive_;  // a repeat refers to it
  bool is_writing_ = false;
  bool is_finished_ = false;
  bool told_end_ = false;
  bool drains_ = false;
  std::optional<absl::Status> ending_;
};

}  // namespace muster::rendezvous
