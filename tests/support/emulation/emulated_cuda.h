// A GPU without one: what is put on streams runs on the host, late, and in an order that respects
// streams and events and nothing else.
//
//   EmulatedCuda cuda({.seed = seed});            // another seed, another order
//   …                                             // cuda as a CudaApi
//   EXPECT_THAT(cuda.Finish(), IsOk());           // nothing went wrong and everything was given
//   back
//
// Work runs only when something forces it: the host waits for a stream, an event or memory. So a
// wait that is missing shows up as numbers that are not there yet, which are poison: all memory
// begins as bytes of 0xff. Memory of the device is out of the host's reach, and nobody's once it is
// freed: to touch it, or what lies beside it, ends the process with SIGSEGV. The host's side of a
// copy must be pinned. Kernels get here by the emulated simt.h, other work by
// EmulatedStream::Enqueue.
//
// It does not show what a GPU's own scheduling of one kernel's blocks does beyond
// block_emulator.h.
//
// Threads: thread-safe; work of all emulated devices runs one piece after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "tests/support/emulation/guarded_memory.h"
#include "tests/support/emulation/work_order.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster::testing {

class EmulatedCuda final : public CudaApi {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t memory_bytes = size_t{1} << 30;
    std::string uuid = "GPU-00000000-0000-4000-8000-000000000001";
    // Fewer pieces of work than that happen to run when somebody asks whether something has.
    size_t work_per_question = 4;
  };
  explicit EmulatedCuda(Options options);
  ~EmulatedCuda() override;

  // Runs what is left. kInternal: the first thing that ever went wrong, or what was not given back.
  absl::Status Finish();
  // Whether all of it is the device's and given to somebody.
  bool Holds(const void* memory, size_t bytes);

  absl::Status MakeCurrent() override { return absl::OkStatus(); }
  absl::StatusOr<CudaProperties> Properties() override;
  absl::StatusOr<CudaMemory> MemoryInfo() override;
  absl::Status LastError() override;
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::Status Free(void* memory) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  absl::Status FreePinned(void* memory) override;
  absl::Status MemcpyAsync(void* to, const void* from, size_t bytes, CopyDirection direction,
                           CudaStream stream) override;
  absl::Status MemsetAsync(void* memory, int value, size_t bytes, CudaStream stream) override;
  absl::StatusOr<CudaStream> CreateStream() override;
  absl::Status DestroyStream(CudaStream stream) override;
  absl::Status SynchronizeStream(CudaStream stream) override;
  absl::StatusOr<bool> QueryStream(CudaStream stream) override;
  // Each piece of work takes a microsecond.
  absl::StatusOr<absl::Duration> TimeOf(CudaStream stream, absl::FunctionRef<void()> put) override;
  absl::StatusOr<CudaEvent> CreateEvent() override;
  absl::Status DestroyEvent(CudaEvent event) override;
  absl::Status RecordEvent(CudaEvent event, CudaStream stream) override;
  absl::Status SynchronizeEvent(CudaEvent event) override;
  absl::StatusOr<bool> QueryEvent(CudaEvent event) override;
  absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) override;
  absl::Status BeginCapture(CudaStream stream) override;
  absl::StatusOr<CudaGraph> EndCapture(CudaStream stream) override;
  absl::Status LaunchGraph(CudaGraph graph, CudaStream stream) override;
  absl::Status DestroyGraph(CudaGraph graph) override;

 private:
  using Work = std::function<std::string()>;
  struct Node;     // of a graph
  struct Capture;  // a graph in the making
  struct Graph;
  struct Event;
  class Stream;
  // What later work waits for: earlier work, or in a capture nodes of its graph.
  struct Front {
    std::vector<WorkOrder::Handle> work;
    int64_t capture = 0;  // 0: none
    std::vector<size_t> nodes;
  };

  absl::Status Put(Stream& stream, Work work, std::function<bool()> may_run = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the device do so many pieces of work, or what there is. Keeps the first failure; later
  // calls fail with it too, as CUDA does it.
  absl::Status Let(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets go of the device while what it waits for may not run (EmulatedStream::EnqueueWhen).
  absl::Status Force(Front front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<bool> Query(const Front& front) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Stream*> Find(CudaStream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Event*> Find(CudaEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // This thread captures nothing.
  absl::Status NotCapturing(absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a copy's sides are memory of the right kinds; empty, or why not.
  std::string WhyNotCopied(const void* to, const void* from, size_t bytes, CopyDirection direction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsPinned(const void* memory, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  base::Mutex mu_;
  base::Condition nobody_tells_;  // that work may run now: waiters look again
  GuardedMemory memory_ ABSL_GUARDED_BY(mu_);
  std::map<uintptr_t, std::vector<unsigned char>> pinned_ ABSL_GUARDED_BY(mu_);
  WorkOrder order_ ABSL_GUARDED_BY(mu_);
  std::string failure_ ABSL_GUARDED_BY(mu_);
  std::map<void*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  std::map<void*, std::unique_ptr<Event>> events_ ABSL_GUARDED_BY(mu_);
  std::map<void*, std::unique_ptr<Graph>> graphs_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Capture> captures_ ABSL_GUARDED_BY(mu_);
  int64_t num_captures_ ABSL_GUARDED_BY(mu_) = 0;  // ever
  int num_lanes_ ABSL_GUARDED_BY(mu_) = 0;         // ever
};

}  // namespace muster::testing
