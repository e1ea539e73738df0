// The registration of memory with the backend of a communicator: Communicator::Register.
#pragma once

#include <functional>
#include <utility>

namespace muster {

// This rank's share of a registration. Its destructor deregisters the memory, after waiting until
// earlier calls have ended on the device. Ranks destroy it between the same two operations, as they
// registered.
//
// Destroy it before the memory is freed, because a backend would take the next owner's memory for
// registered; after captures of calls in that memory (CapturedCalls), which use it; and before its
// communicator. If the communicator ends first, the registration ends with it, and the destructor
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
