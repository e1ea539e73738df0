#include "tests/support/emulation/fibre.h"

#include <ucontext.h>

#include <cstdint>
#include <utility>

#include "proto/base/status_macros.h"

// There in builds with AddressSanitizer alone (sanitizer/common_interface_defs.h).
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** save, const void* stack, size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* saved, const void** stack, size_t* bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* from, size_t bytes);
}

namespace muster::testing {
namespace {

void StartSwitch(void** save, const void* stack, size_t bytes) {
  if (__sanitizer_start_switch_fiber != nullptr) __sanitizer_start_switch_fiber(save, stack, bytes);
}

void FinishSwitch(void* saved, const void** stack, size_t* bytes) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(saved, stack, bytes);
  }
}

}  // namespace

// ucontext is for the first step onto the stack alone: each of its changes sets the mask of
// signals, which is a system call. _setjmp leaves the mask as it is.
Fibre::Fibre() : stack_(new unsigned char[kStackBytes]) {
  ucontext_t first;
  MUSTER_CHECK(getcontext(&first) == 0);
  first.uc_stack.ss_sp = stack_.get();
  first.uc_stack.ss_size = kStackBytes;
  first.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints.
  makecontext(&first, reinterpret_cast<void (*)()>(&Fibre::Enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  StartSwitch(&caller_fake_stack_, stack_.get(), kStackBytes);
  if (_setjmp(caller_) == 0) setcontext(&first);
  FinishSwitch(caller_fake_stack_, nullptr, nullptr);
}

void Fibre::Start(std::function<void()> body) {
  // What frames that are forgotten had marked as out of bounds.
  if (!ended_ && __asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(stack_.get(), kStackBytes);
  }
  body_ = std::move(body);
  begun_ = false;
  ended_ = false;
  own_fake_stack_ = nullptr;
}

bool Fibre::Resume() {
  MUSTER_CHECK(!ended_);
  StartSwitch(&caller_fake_stack_, stack_.get(), kStackBytes);
  if (_setjmp(caller_) == 0) _longjmp(begun_ ? own_ : top_, 1);
  FinishSwitch(caller_fake_stack_, nullptr, nullptr);
  return ended_;
}

void Fibre::Leave() {
  StartSwitch(ended_ ? nullptr : &own_fake_stack_, caller_stack_, caller_stack_bytes_);
  if (_setjmp(own_) == 0) _longjmp(caller_, 1);
  FinishSwitch(own_fake_stack_, &caller_stack_, &caller_stack_bytes_);
}

void Fibre::Enter(unsigned high, unsigned low) {
  auto* const self =
      reinterpret_cast<Fibre*>(static_cast<uintptr_t>(high) << 32 | static_cast<uintptr_t>(low));
  FinishSwitch(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
  if (_setjmp(self->top_) == 0) self->Leave();  // back to who makes it
  // Here with the first Resume after each Start.
  FinishSwitch(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
  self->begun_ = true;
  self->body_();
  self->ended_ = true;
  self->Leave();  // for good
}

}  // namespace muster::testing
