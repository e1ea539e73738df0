// A function with a stack of its own, which can be left in the middle and gone on with.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace muster::testing {

// No change of stacks is a system call, but for the first. AddressSanitizer is told of every one;
// ThreadSanitizer is not.
// Threads: one at a time.
class Fibre {
 public:
  static constexpr size_t kStackBytes = 128 * 1024;

  Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // Begins `body` on the next Resume. One that was under way is forgotten: its frames are not
  // unwound.
  void Start(std::function<void()> body);
  // Runs it until it calls Leave or ends; returns whether it has ended.
  bool Resume();
  // Within `body`: back to Resume's caller.
  void Leave();

 private:
  static void Enter(unsigned high, unsigned low);

  std::unique_ptr<unsigned char[]> stack_;
  std::function<void()> body_;
  jmp_buf top_;     // of its stack, where each body begins
  jmp_buf own_;     // where it left
  jmp_buf caller_;  // in Resume
  bool begun_ = false;
  bool ended_ = true;
  void* caller_fake_stack_ = nullptr;  // AddressSanitizer's
  void* own_fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
};

}  // namespace muster::testing
