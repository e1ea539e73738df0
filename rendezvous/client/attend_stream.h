// One gRPC stream to the rendezvous, seen from the loop: gRPC's threads only translate and post.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "proto/io/credentials.h"
#include "proto/io/loop_mailbox.h"

namespace muster::proto {
class FromAgent;
class FromServer;
}  // namespace muster::proto

namespace muster::rendezvous {

// Called on the loop thread. The stream may be destroyed in `on_end` only.
struct AttendEvents {
  std::function<void(const proto::FromServer&)> on_message;  // the next comes after ReadNext
  std::function<void()> on_written;
  // The last event. Code and message are those of grpc::Status.
  std::function<void(int code, const std::string& message)> on_end;
};

// Loop thread only.
class AttendStream {
 public:
  // Begins to connect and to read; failures arrive by `on_end`. `loop` must outlive the stream.
  AttendStream(asio::io_context& loop, const asio::ip::tcp::endpoint& address,
               absl::string_view secret, TlsMode tls, AttendEvents events);
  // Breaks the stream off if it has not ended; no event follows. Waits for gRPC to let go of it:
  // milliseconds, and at most five seconds.
  ~AttendStream();
  AttendStream(const AttendStream&) = delete;
  AttendStream& operator=(const AttendStream&) = delete;

  // One at a time: not while is_writing().
  void Write(const proto::FromAgent& message);
  bool is_writing() const { return is_writing_; }
  void ReadNext();
  // Nothing more will be written; the server answers by ending the stream.
  void HalfClose();
  // `on_end` follows soon.
  void Cancel();

 private:
  class Reactor;
  struct Connection;

  void OnMessageOnLoop(const proto::FromServer& message);
  void OnWrittenOnLoop();
  void OnReadEndOnLoop();
  void OnEndOnLoop(int code, const std::string& message);

  const LoopMailbox mailbox_;
  // Released here only, never on a thread of gRPC: the last channel of a process joins those
  // threads.
  std::unique_ptr<Connection> connection_;
  std::future<void> done_;  // ready when nothing of gRPC refers to the connection any more
  AttendEvents events_;
  // Deletes itself when gRPC is done with it, which cannot be before its hold is removed; nullptr
  // from then on.
  Reactor* reactor_ = nullptr;
  bool is_writing_ = false;
};

}  // namespace muster::rendezvous
