// What a device is by default: the host's memory, where everything has happened when a call
// returns.
#include "muster/device.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "muster/tensor.h"
#include "proto/base/fatal_error.h"

namespace muster {
namespace {

class PastEvent final : public Event {
 public:
  void Record(Queue&) override {}
  void HoldUp(Queue&) const override {}
};

}  // namespace

void* Device::TakeMemory(size_t bytes) const {
  void* const memory = std::aligned_alloc(TensorPool::kAlignment, bytes);
  if (memory != nullptr) return memory;
  FatalError(absl::StrCat("device ", name(), ": no memory for ", bytes, " bytes more (",
                          std::strerror(errno), "); see the limits on memory (ulimit -v, ",
                          "memory.max). A smaller batch, recomputing or a plan that shards takes ",
                          "less"));
}

void Device::GiveMemory(void* memory) const { std::free(memory); }

void Device::CopyBytes(Queue&, const void* from, void* to, size_t bytes) const {
  if (has_elements() && bytes > 0) std::memmove(to, from, bytes);
}

void Device::Upload(Queue& queue, const void* from, void* to, size_t bytes) const {
  CopyBytes(queue, from, to, bytes);
}

absl::Status Device::Download(Queue& queue, const void* from, void* to, size_t bytes) const {
  CopyBytes(queue, from, to, bytes);
  return absl::OkStatus();
}

std::unique_ptr<Event> Device::MakeEvent() const { return std::make_unique<PastEvent>(); }

absl::Status Device::BeginCapture(Queue&) const {
  return absl::UnimplementedError(absl::StrCat("device ", name(), " captures no work"));
}

absl::StatusOr<std::unique_ptr<CapturedWork>> Device::EndCapture(Queue& queue) const {
  return BeginCapture(queue);
}

}  // namespace muster
