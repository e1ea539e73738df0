// Answers HTTP at a TCP port from an event loop: each connection asks once, is answered and closed.
//
// There are kHttpConnectionsMax connections at a time. For one that comes then the oldest that has
// not asked yet is let go; where all have, it waits in the kernel's queue, where it costs this
// process nothing. A connection has `patience` for everything, from when it is accepted to when its
// answer is written, so a slow client keeps nobody out for long.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "proto/base/http_head.h"

namespace muster {

inline constexpr int kHttpConnectionsMax = 16;
inline constexpr absl::Duration kHttpPatience = absl::Seconds(5);

class HttpDoor {
 public:
  using Tell = absl::AnyInvocable<void(HttpAnswer)>;
  // Called from the loop for each GET and HEAD; `tell` is called once, or never.
  using Serve = std::function<void(const HttpRequest&, Tell tell)>;

  HttpDoor(asio::io_context& loop, Serve serve, absl::Duration patience = kHttpPatience);
  ~HttpDoor();
  HttpDoor(const HttpDoor&) = delete;
  HttpDoor& operator=(const HttpDoor&) = delete;

  // Listens on `host`, a numeric address or "localhost"; "": on every address. The port, which is
  // a free one where `port` is 0.
  //
  // Errors: kInvalidArgument: `host` is neither. kUnavailable with errno in words.
  absl::StatusOr<int> Listen(const std::string& host, int port);
  // Nobody is answered any more.
  void Close();

 private:
  struct State;
  // Shared with what is under way on the sockets.
  std::shared_ptr<State> state_;
};

}  // namespace muster
