#include "tests/support/emulation/fibre.h"

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

Fibre::Fibre() : stack_(new unsigned char[kStackBytes]) {}

void Fibre::Start(std::function<void()> body) {
  body_ = std::move(body);
  ended_ = false;
  own_fake_stack_ = nullptr;
  // What frames that were forgotten had marked as out of bounds.
  if (__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(stack_.get(), kStackBytes);
  }
  MUSTER_CHECK(getcontext(&own_) == 0);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints.
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fibre::Enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

bool Fibre::Resume() {
  StartSwitch(&caller_fake_stack_, stack_.get(), kStackBytes);
  MUSTER_CHECK(swapcontext(&caller_, &own_) == 0);
  FinishSwitch(caller_fake_stack_, nullptr, nullptr);
  return ended_;
}

void Fibre::Leave() {
  StartSwitch(ended_ ? nullptr : &own_fake_stack_, caller_stack_, caller_stack_bytes_);
  MUSTER_CHECK(swapcontext(&own_, &caller_) == 0);
  FinishSwitch(own_fake_stack_, &caller_stack_, &caller_stack_bytes_);
}

void Fibre::Enter(unsigned high, unsigned low) {
  auto* self =
      reinterpret_cast<Fibre*>(static_cast<uintptr_t>(high) << 32 | static_cast<uintptr_t>(low));
  FinishSwitch(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
  self->body_();
  self->ended_ = true;
  self->Leave();  // for good
}

}  // namespace muster::testing
