#include "tests/unit/worker_runtime/comm/nccl/fake_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "proto/base/condition.h"

namespace muster::comm {
namespace {

FakeCuda* current = nullptr;

}  // namespace

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) {}
  ~FakeStream() {
    {
      base::MutexLock lock(mu_);
      closed_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  // False if a call of NCCL has reserved the stream, and `is_nccl` is not that call.
  bool Put(std::function<void()> work, bool is_nccl) {
    base::MutexLock lock(mu_);
    const bool is_allowed = is_nccl || !reserved_;
    if (is_nccl) reserved_ = false;
    work_.push_back(std::move(work));
    changed_.NotifyAll();
    return is_allowed;
  }
  void SetReserved(bool reserved) {
    base::MutexLock lock(mu_);
    reserved_ = reserved;
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> next;
      {
        base::MutexLock lock(mu_);
        while (work_.empty() && !closed_) changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
        if (work_.empty()) return;
        next = std::move(work_.front());
        work_.pop_front();
      }
      next();
    }
  }

  base::Mutex mu_;
  base::Condition changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool reserved_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

// Counts its records: a later one does not free those who wait for an earlier one any sooner.
struct FakeCuda::Event {
  base::Mutex mu;
  base::Condition changed;
  int64_t recorded ABSL_GUARDED_BY(mu) = 0;
  int64_t come ABSL_GUARDED_BY(mu) = 0;
};

FakeCuda::FakeCuda() { current = this; }
FakeCuda::~FakeCuda() { current = nullptr; }
FakeCuda& FakeCuda::Current() { return *current; }

void FakeCuda::Break(const std::string& rule) {
  base::MutexLock lock(mu_);
  broken_.push_back(rule);
}

void FakeCuda::CheckRules() const {
  base::MutexLock lock(mu_);
  EXPECT_THAT(broken_, ::testing::IsEmpty());
  EXPECT_EQ(streams_.size(), 0u) << "streams were left behind";
  EXPECT_EQ(events_.size(), 0u) << "events were left behind";
  EXPECT_EQ(memory_.size(), of_tests_.size()) << "memory was left behind";
}

FakeStream* FakeCuda::Find(cudaStream_t stream, const std::string& function) {
  {
    base::MutexLock lock(mu_);
    const auto found = streams_.find(stream);
    if (found != streams_.end()) return found->second.get();
  }
  Break(function + " on what is no stream");
  return nullptr;
}

std::shared_ptr<FakeCuda::Event> FakeCuda::FindEvent(cudaEvent_t event,
                                                     const std::string& function) {
  {
    base::MutexLock lock(mu_);
    const auto found = events_.find(event);
    if (found != events_.end()) return found->second;
  }
  Break(function + " of what is no event");
  return std::make_shared<Event>();
}

cudaStream_t FakeCuda::MakeStream() {
  auto made = std::make_unique<FakeStream>();
  base::MutexLock lock(mu_);
  const auto handle = NewHandle<cudaStream_t>();
  streams_[handle] = std::move(made);
  return handle;
}

void FakeCuda::EndStream(cudaStream_t stream) {
  std::unique_ptr<FakeStream> ended;  // outside the lock: what runs on it may take memory back
  {
    base::MutexLock lock(mu_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return broken_.push_back("end of what is no stream");
    ended = std::move(found->second);
  }
  ended.reset();
  base::MutexLock lock(mu_);
  streams_.erase(stream);
}

// CUDA would wait for the stream where it copies pageable memory.
void FakeCuda::Copy(cudaStream_t stream, void* to, const void* from, size_t bytes) {
  {
    base::MutexLock lock(mu_);
    if (MemoryOf(to) == nullptr || MemoryOf(from) == nullptr) {
      broken_.push_back("a copy of pageable memory");
    }
  }
  PutCuda(stream, "cudaMemcpyAsync", [to, from, bytes] { std::memcpy(to, from, bytes); });
}

void FakeCuda::Put(cudaStream_t stream, std::function<void()> work) {
  if (FakeStream* const found = Current().Find(stream, "a call of NCCL")) {
    found->Put(std::move(work), /*is_nccl=*/true);
  }
}

void FakeCuda::Reserve(cudaStream_t stream) {
  if (FakeStream* const found = Current().Find(stream, "a call of NCCL")) found->SetReserved(true);
}

void FakeCuda::Release(cudaStream_t stream) {
  if (FakeStream* const found = Current().Find(stream, "a call of NCCL")) found->SetReserved(false);
}

void FakeCuda::PutCuda(cudaStream_t stream, const std::string& function,
                       std::function<void()> work) {
  FakeStream* const found = Find(stream, function);
  if (found == nullptr || found->Put(std::move(work), /*is_nccl=*/false)) return;
  Break(function + " on a stream before NCCL was ready");
}

cudaEvent_t FakeCuda::MakeEvent() {
  auto made = std::make_shared<Event>();
  base::MutexLock lock(mu_);
  const auto handle = NewHandle<cudaEvent_t>();
  events_[handle] = std::move(made);
  return handle;
}

void FakeCuda::EndEvent(cudaEvent_t event) {
  base::MutexLock lock(mu_);
  if (events_.erase(event) == 0) broken_.push_back("end of what is no event");
}

void FakeCuda::Record(cudaEvent_t event, cudaStream_t stream) {
  const std::shared_ptr<Event> found = FindEvent(event, "cudaEventRecord");
  int64_t number = 0;
  {
    base::MutexLock lock(found->mu);
    number = ++found->recorded;
  }
  PutCuda(stream, "cudaEventRecord", [found, number] {
    base::MutexLock lock(found->mu);
    found->come = number;
    found->changed.NotifyAll();
  });
}

void FakeCuda::WaitFor(cudaStream_t stream, cudaEvent_t event) {
  const std::shared_ptr<Event> found = FindEvent(event, "cudaStreamWaitEvent");
  int64_t number = 0;
  {
    base::MutexLock lock(found->mu);
    number = found->recorded;
  }
  PutCuda(stream, "cudaStreamWaitEvent", [found, number] {
    base::MutexLock lock(found->mu);
    while (found->come < number) found->changed.WaitUntil(found->mu, MonoTime::InfiniteFuture());
  });
}

bool FakeCuda::HasCome(cudaEvent_t event) {
  const std::shared_ptr<Event> found = FindEvent(event, "cudaEventQuery");
  base::MutexLock lock(found->mu);
  return found->come == found->recorded;
}

void* FakeCuda::Take(size_t bytes, bool on_device) {
  auto made = std::make_unique<char[]>(bytes);
  char* const data = made.get();
  base::MutexLock lock(mu_);
  memory_[data] = {.bytes = std::move(made), .size = bytes, .on_device = on_device};
  return data;
}

void* FakeCuda::Allocate(size_t bytes) {
  void* const data = Take(bytes, /*on_device=*/true);
  base::MutexLock lock(mu_);
  of_tests_.insert(static_cast<char*>(data));
  return data;
}

// CUDA waits until nothing on the device can touch it. Here streams of other ranks may last longer
// than that: it stays until the end.
void FakeCuda::GiveBack(void* data) {
  base::MutexLock lock(mu_);
  auto given_back = memory_.extract(static_cast<char*>(data));
  if (given_back.empty()) return broken_.push_back("end of what is no memory");
  given_back_.push_back(std::move(given_back.mapped()));
}

const FakeCuda::Memory* FakeCuda::MemoryOf(const void* data) const {
  const char* const at = static_cast<const char*>(data);
  auto found = memory_.upper_bound(at);
  if (found == memory_.begin()) return nullptr;
  --found;
  return at < found->first + found->second.size ? &found->second : nullptr;
}

bool FakeCuda::IsOnDevice(const void* data) const {
  base::MutexLock lock(mu_);
  const Memory* const memory = MemoryOf(data);
  return memory != nullptr && memory->on_device;
}

}  // namespace muster::comm

// CUDA's names.
extern "C" {

using muster::comm::FakeCuda;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated runtime"; }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = *highest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = FakeCuda::Current().MakeStream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FakeCuda::Current().EndStream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  FakeCuda::Current().WaitFor(stream, event);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = FakeCuda::Current().MakeEvent();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FakeCuda::Current().EndEvent(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FakeCuda::Current().Record(event, stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return FakeCuda::Current().HasCome(event) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = FakeCuda::Current().Take(bytes, /*on_device=*/false);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  FakeCuda::Current().GiveBack(data);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  *data = FakeCuda::Current().Take(bytes, /*on_device=*/true);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  FakeCuda::Current().PutCuda(stream, "cudaFreeAsync",
                              [data] { FakeCuda::Current().GiveBack(data); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  FakeCuda::Current().Copy(stream, to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  attributes->type =
      FakeCuda::Current().IsOnDevice(data) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

}  // extern "C"
