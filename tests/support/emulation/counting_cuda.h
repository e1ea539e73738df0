// Counts what a step should not do.
//
//   CountingCuda counting(cuda);
//   …                                          // a first step
//   counting.Mark();
//   …                                          // another
//   EXPECT_EQ(counting.since_mark().allocations, 0);
#pragma once

#include <atomic>
#include <cstdint>

#include "worker_runtime/cuda/cuda_api.h"

namespace muster::testing {

struct CudaCalls {
  int64_t allocations = 0;  // of the device and of pinned memory
  int64_t frees = 0;
  int64_t host_waits = 0;  // for streams and events
  int64_t questions = 0;   // whether an event has come
  int64_t made = 0;        // streams, events and graphs
  int64_t copies = 0;      // and settings of bytes
  int64_t graph_launches = 0;
};

// Threads: thread-safe.
class CountingCuda final : public CudaApi {
 public:
  // `inner` outlives it.
  explicit CountingCuda(CudaApi& inner) : inner_(inner) {}

  // Counts from zero.
  void Mark();
  CudaCalls since_mark() const;

  absl::Status MakeCurrent() override { return inner_.MakeCurrent(); }
  absl::StatusOr<CudaProperties> Properties() override { return inner_.Properties(); }
  absl::StatusOr<CudaMemory> MemoryInfo() override { return inner_.MemoryInfo(); }
  absl::Status LastError() override { return inner_.LastError(); }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    ++allocations_;
    return inner_.Allocate(bytes);
  }
  absl::Status Free(void* memory) override {
    ++frees_;
    return inner_.Free(memory);
  }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override {
    ++allocations_;
    return inner_.AllocatePinned(bytes);
  }
  absl::Status FreePinned(void* memory) override {
    ++frees_;
    return inner_.FreePinned(memory);
  }
  absl::Status MemcpyAsync(void* to, const void* from, size_t bytes, CopyDirection direction,
                           CudaStream stream) override {
    ++copies_;
    return inner_.MemcpyAsync(to, from, bytes, direction, stream);
  }
  absl::Status MemsetAsync(void* memory, int value, size_t bytes, CudaStream stream) override {
    ++copies_;
    return inner_.MemsetAsync(memory, value, bytes, stream);
  }

  absl::StatusOr<CudaStream> CreateStream() override {
    ++made_;
    return inner_.CreateStream();
  }
  absl::Status DestroyStream(CudaStream stream) override { return inner_.DestroyStream(stream); }
  absl::Status SynchronizeStream(CudaStream stream) override {
    ++host_waits_;
    return inner_.SynchronizeStream(stream);
  }
  absl::StatusOr<bool> QueryStream(CudaStream stream) override {
    return inner_.QueryStream(stream);
  }
  absl::StatusOr<absl::Duration> TimeOf(CudaStream stream, absl::FunctionRef<void()> put) override {
    ++host_waits_;
    return inner_.TimeOf(stream, put);
  }
  absl::StatusOr<CudaEvent> CreateEvent() override {
    ++made_;
    return inner_.CreateEvent();
  }
  absl::Status DestroyEvent(CudaEvent event) override { return inner_.DestroyEvent(event); }
  absl::Status RecordEvent(CudaEvent event, CudaStream stream) override {
    return inner_.RecordEvent(event, stream);
  }
  absl::Status SynchronizeEvent(CudaEvent event) override {
    ++host_waits_;
    return inner_.SynchronizeEvent(event);
  }
  absl::StatusOr<bool> QueryEvent(CudaEvent event) override {
    ++questions_;
    return inner_.QueryEvent(event);
  }
  absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) override {
    return inner_.StreamWaitEvent(stream, event);
  }

  absl::Status BeginCapture(CudaStream stream) override { return inner_.BeginCapture(stream); }
  absl::StatusOr<CudaGraph> EndCapture(CudaStream stream) override {
    ++made_;
    return inner_.EndCapture(stream);
  }
  absl::Status LaunchGraph(CudaGraph graph, CudaStream stream) override {
    ++graph_launches_;
    return inner_.LaunchGraph(graph, stream);
  }
  absl::Status DestroyGraph(CudaGraph graph) override { return inner_.DestroyGraph(graph); }

 private:
  CudaApi& inner_;
  std::atomic<int64_t> allocations_ = 0, frees_ = 0, host_waits_ = 0, questions_ = 0, made_ = 0,
                       copies_ = 0, graph_launches_ = 0;
};

inline void CountingCuda::Mark() {
  allocations_ = frees_ = host_waits_ = questions_ = made_ = copies_ = graph_launches_ = 0;
}

inline CudaCalls CountingCuda::since_mark() const {
  return {.allocations = allocations_,
          .frees = frees_,
          .host_waits = host_waits_,
          .questions = questions_,
          .made = made_,
          .copies = copies_,
          .graph_launches = graph_launches_};
}

}  // namespace muster::testing
