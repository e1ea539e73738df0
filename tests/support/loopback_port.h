// A TCP port of a loopback address that no other process is given while this object lives, so that
// tests beside each other never meet.
#pragma once

#include <string>

namespace muster::testing {

enum class PortUse {
  // Bound with SO_REUSEADDR but not listening: a server that sets SO_REUSEADDR too (gRPC does) can
  // take it.
  kHeld,
  // Bound alone, not listening: any other server fails to bind it, and connections are refused.
  kTaken,
  // Taken by this process, which listens and never answers: any other server fails to bind it.
  kListening,
};

// No musterd that was killed has left a mark for it: agents would wait for that one.
class LoopbackPort {
 public:
  // `address` is numeric, e.g. "127.0.0.2" or "::1".
  explicit LoopbackPort(PortUse use = PortUse::kHeld, const std::string& address = "127.0.0.1");
  ~LoopbackPort();
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;

  int number() const { return number_; }
  // The socket, which exec closes.
  int descriptor() const { return fd_; }

 private:
  int fd_ = -1;
  int number_ = 0;
};

}  // namespace muster::testing
