// Memory that the back end of a communicator was told of: Communicator::Register.
#pragma once

#include <functional>
#include <utility>

namespace muster {

// This rank's share of a registration, which is given up with it. That waits until the calls before
// it have ended on the device, and ranks give it up between the same two operations, as they
// registered.
//
// It goes before the memory does, which a back end would else take for registered whoever gets it
// next; after the captures of calls in it (CapturedCalls), which go by it; and before its
// communicator. One that is left when its communicator ends has ended with it, and its destructor
// does nothing.
//
// Threads: thread-compatible; not while its communicator is being destroyed.
class Registration {
 public:
  // Holds nothing.
  Registration() = default;
  // Made by backends: `give_up` is called once.
  explicit Registration(std::function<void()> give_up) : give_up_(std::move(give_up)) {}
  ~Registration() { GiveUp(); }
  Registration(Registration&& other) noexcept : give_up_(std::exchange(other.give_up_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    if (this == &other) return *this;
    GiveUp();
    give_up_ = std::exchange(other.give_up_, nullptr);
    return *this;
  }

  // Nothing is registered: the backend has no use for it, or the rank had no memory.
  bool empty() const { return give_up_ == nullptr; }

 private:
  void GiveUp() {
    if (give_up_ != nullptr) std::exchange(give_up_, nullptr)();
  }

  std::function<void()> give_up_;
};

}  // namespace muster
