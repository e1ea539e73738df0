// CUDA's runtime for the NCCL backend, on the host: a stream is a thread that runs what was put on
// it, in its order, and a device's memory is the host's. Linked in front of libcudart, whose
// functions of the same names it stands for. It is stricter than CUDA: what is against the rules is
// written down (CheckRules).
//
// Source of the rules: CUDA's runtime API reference, "Stream Management" and "Event Management";
// NCCL's guide, "Nonblocking communicators" (no CUDA call on a stream before the call of NCCL that
// uses it is ready).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/base/mutex.h"

namespace muster::comm {

class FakeStream;

// One at a time in a process, made before whatever uses it.
//
// Threads: safe.
class FakeCuda {
 public:
  FakeCuda();
  ~FakeCuda();

  // Puts `work` on the stream, behind what is there.
  static void Put(cudaStream_t stream, std::function<void()> work);
  // Until `Put` or `Release`, nothing but a call of NCCL may be put on the stream.
  static void Reserve(cudaStream_t stream);
  static void Release(cudaStream_t stream);

  // Memory of the device for a test's own data, until this is destroyed.
  void* Allocate(size_t bytes);

  // That no rule was broken and that nothing is left.
  void CheckRules() const;

  // --- What the functions of CUDA's names do.

  static FakeCuda& Current();
  cudaStream_t MakeStream();
  void EndStream(cudaStream_t stream);
  cudaEvent_t MakeEvent();
  void EndEvent(cudaEvent_t event);
  // Puts on the stream what a function of CUDA's named `function` does there.
  void PutCuda(cudaStream_t stream, const std::string& function, std::function<void()> work);
  void Record(cudaEvent_t event, cudaStream_t stream);
  void WaitFor(cudaStream_t stream, cudaEvent_t event);
  bool HasCome(cudaEvent_t event);
  void Copy(cudaStream_t stream, void* to, const void* from, size_t bytes);
  void* Take(size_t bytes, bool on_device);
  void GiveBack(void* data);
  bool IsOnDevice(const void* data) const;

 private:
  struct Event;
  struct Memory {
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
    bool on_device = false;
  };

  FakeStream* Find(cudaStream_t stream, const std::string& function);
  std::shared_ptr<Event> FindEvent(cudaEvent_t event, const std::string& function);
  void Break(const std::string& rule);

  // A handle that no other object has had.
  template <typename Handle>
  Handle NewHandle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return reinterpret_cast<Handle>(++num_handles_);
  }
  // The memory that has the byte at `data`; null: none that was taken here.
  const Memory* MemoryOf(const void* data) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable base::Mutex mu_;
  uintptr_t num_handles_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<cudaStream_t, std::unique_ptr<FakeStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::map<cudaEvent_t, std::shared_ptr<Event>> events_ ABSL_GUARDED_BY(mu_);
  std::map<const char*, Memory> memory_ ABSL_GUARDED_BY(mu_);  // by its begin
  std::vector<Memory> given_back_ ABSL_GUARDED_BY(mu_);
  std::set<const char*> of_tests_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> broken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
