// What every CudaApi does: the emulated one (emulated_cuda_api_test.cc) and CUDA's
// (tests/gpu/cuda_api_test.cc). A file of tests says how one is opened: CudaApiContract::Open is
// its to define.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster::testing {

class CudaApiContract : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr size_t kBytes = 1000;

  // An API, or null and why where there is no GPU. `seed` sets the order where it can be chosen.
  static std::unique_ptr<CudaApi> Open(uint64_t seed, std::string& why);

  void SetUp() override {
    std::string why;
    cuda_ = Open(GetParam(), why);
    if (cuda_ == nullptr) GTEST_SKIP() << why;
    stream_ = *cuda_->CreateStream();
    other_ = *cuda_->CreateStream();
    event_ = *cuda_->CreateEvent();
    a_ = *cuda_->Allocate(kBytes);
    b_ = *cuda_->Allocate(kBytes);
    pinned_ = static_cast<unsigned char*>(*cuda_->AllocatePinned(kBytes));
  }
  void TearDown() override {
    if (cuda_ == nullptr) return;
    EXPECT_THAT(cuda_->SynchronizeStream(stream_), IsOk());
    EXPECT_THAT(cuda_->SynchronizeStream(other_), IsOk());
    EXPECT_THAT(cuda_->Free(a_), IsOk());
    EXPECT_THAT(cuda_->Free(b_), IsOk());
    EXPECT_THAT(cuda_->FreePinned(pinned_), IsOk());
    EXPECT_THAT(cuda_->DestroyEvent(event_), IsOk());
    EXPECT_THAT(cuda_->DestroyStream(stream_), IsOk());
    EXPECT_THAT(cuda_->DestroyStream(other_), IsOk());
    EXPECT_THAT(cuda_->LastError(), IsOk());
  }

  void Set(void* memory, int value, CudaStream stream) {
    EXPECT_THAT(cuda_->MemsetAsync(memory, value, kBytes, stream), IsOk());
  }
  void Copy(void* to, const void* from, CudaStream stream) {
    EXPECT_THAT(cuda_->MemcpyAsync(to, from, kBytes, CopyDirection::kWithinDevice, stream), IsOk());
  }
  void Fetch(const void* from, CudaStream stream) {
    EXPECT_THAT(cuda_->MemcpyAsync(pinned_, from, kBytes, CopyDirection::kToHost, stream), IsOk());
  }
  // The value of all bytes after everything on `stream`, or -1 where they differ.
  int Fetched(const void* from, CudaStream stream) {
    Fetch(from, stream);
    EXPECT_THAT(cuda_->SynchronizeStream(stream), IsOk());
    for (size_t i = 1; i < kBytes; ++i) {
      if (pinned_[i] != pinned_[0]) return -1;
    }
    return pinned_[0];
  }

  std::unique_ptr<CudaApi> cuda_;
  CudaStream stream_ = nullptr;
  CudaStream other_ = nullptr;
  CudaEvent event_;
  void* a_ = nullptr;
  void* b_ = nullptr;
  unsigned char* pinned_ = nullptr;
};

TEST_P(CudaApiContract, SaysWhatTheDeviceIs) {
  const auto properties = cuda_->Properties();
  ASSERT_THAT(properties, IsOk());
  EXPECT_FALSE(properties->name.empty());
  EXPECT_GT(properties->num_multiprocessors, 0);
  EXPECT_EQ(properties->number, 0);
  EXPECT_THAT(properties->uuid,
              ::testing::MatchesRegex("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"));
  const auto memory = cuda_->MemoryInfo();
  ASSERT_THAT(memory, IsOk());
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_GE(memory->total_bytes, memory->free_bytes + 2 * kBytes);
}

TEST_P(CudaApiContract, MemoryOfAnySizeIsAligned) {
  for (const size_t bytes : {1, 100, 5000}) {
    const auto memory = cuda_->Allocate(bytes);
    ASSERT_THAT(memory, IsOk());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 256, 0u);
    EXPECT_THAT(cuda_->Free(*memory), IsOk());
  }
}

TEST_P(CudaApiContract, MoreMemoryThanThereIsIsAnErrorThatLeavesTheDeviceUsable) {
  EXPECT_THAT(cuda_->Allocate(size_t{1} << 60), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(cuda_->LastError(), IsOk());
  Set(a_, 3, stream_);
  EXPECT_EQ(Fetched(a_, stream_), 3);
}

TEST_P(CudaApiContract, BytesGoToTheDeviceAndBack) {
  std::vector<unsigned char> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  std::memcpy(pinned_, bytes.data(), kBytes);
  EXPECT_THAT(cuda_->MemcpyAsync(a_, pinned_, kBytes, CopyDirection::kToDevice, stream_), IsOk());
  ASSERT_THAT(cuda_->SynchronizeStream(stream_), IsOk());
  std::memset(pinned_, 0, kBytes);
  Copy(b_, a_, stream_);
  Fetch(b_, stream_);
  ASSERT_THAT(cuda_->SynchronizeStream(stream_), IsOk());
  EXPECT_EQ(std::vector<unsigned char>(pinned_, pinned_ + kBytes), bytes);
}

TEST_P(CudaApiContract, AStreamKeepsItsOrder) {
  for (int i = 0; i < 50; ++i) Set(a_, i, stream_);
  Copy(b_, a_, stream_);
  Set(a_, 99, stream_);
  EXPECT_EQ(Fetched(b_, stream_), 49);
}

TEST_P(CudaApiContract, AStreamThatWaitsForAnEventSeesWhatWasDoneBefore) {
  for (int i = 1; i <= 20; ++i) {
    Set(a_, i, stream_);
    ASSERT_THAT(cuda_->RecordEvent(event_, stream_), IsOk());
    ASSERT_THAT(cuda_->StreamWaitEvent(other_, event_), IsOk());
    Copy(b_, a_, other_);
    ASSERT_THAT(cuda_->RecordEvent(event_, other_), IsOk());
    ASSERT_THAT(cuda_->StreamWaitEvent(stream_, event_), IsOk());
  }
  EXPECT_EQ(Fetched(b_, stream_), 20);
}

TEST_P(CudaApiContract, AnEventStandsForWhatWasThereWhenItWasRecorded) {
  EXPECT_THAT(cuda_->SynchronizeEvent(event_), IsOk());  // never recorded
  EXPECT_THAT(cuda_->QueryEvent(event_), IsOkAndHolds(true));
  Set(a_, 5, stream_);
  Fetch(a_, stream_);
  ASSERT_THAT(cuda_->RecordEvent(event_, stream_), IsOk());
  ASSERT_THAT(cuda_->SynchronizeEvent(event_), IsOk());
  EXPECT_EQ(pinned_[0], 5);
  EXPECT_EQ(pinned_[kBytes - 1], 5);
  EXPECT_THAT(cuda_->QueryEvent(event_), IsOkAndHolds(true));
}

TEST_P(CudaApiContract, WhoAsksAgainAndAgainGetsItsAnswer) {
  for (int i = 0; i < 10; ++i) Set(a_, 6, stream_);
  Fetch(a_, stream_);
  while (!*cuda_->QueryStream(stream_)) {
  }
  EXPECT_EQ(pinned_[kBytes / 2], 6);
}

TEST_P(CudaApiContract, TimesWhatIsPutOnAStreamAndWaitsForIt) {
  Set(a_, 1, stream_);
  const auto time = cuda_->TimeOf(stream_, [&] { Set(a_, 7, stream_); });
  ASSERT_THAT(time, IsOk());
  EXPECT_GT(*time, absl::ZeroDuration());
  EXPECT_THAT(cuda_->QueryStream(stream_), IsOkAndHolds(true));
  EXPECT_EQ(Fetched(a_, stream_), 7);
}

TEST_P(CudaApiContract, WhatIsPutOnAStreamBeforeItIsDestroyedStillRuns) {
  const CudaStream stream = *cuda_->CreateStream();
  Set(a_, 8, stream);
  ASSERT_THAT(cuda_->RecordEvent(event_, stream), IsOk());
  ASSERT_THAT(cuda_->DestroyStream(stream), IsOk());
  ASSERT_THAT(cuda_->StreamWaitEvent(stream_, event_), IsOk());
  EXPECT_EQ(Fetched(a_, stream_), 8);
}

TEST_P(CudaApiContract, AGraphRunsWhenItIsLaunchedAndAsOften) {
  Set(a_, 1, stream_);
  Set(b_, 2, stream_);
  ASSERT_THAT(cuda_->SynchronizeStream(stream_), IsOk());
  ASSERT_THAT(cuda_->BeginCapture(stream_), IsOk());
  Copy(a_, b_, stream_);
  Set(b_, 9, stream_);
  const auto graph = cuda_->EndCapture(stream_);
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ(Fetched(a_, stream_), 1);
  ASSERT_THAT(cuda_->LaunchGraph(*graph, stream_), IsOk());
  EXPECT_EQ(Fetched(a_, stream_), 2);
  ASSERT_THAT(cuda_->LaunchGraph(*graph, stream_), IsOk());
  EXPECT_EQ(Fetched(a_, stream_), 9);
  EXPECT_THAT(cuda_->DestroyGraph(*graph), IsOk());
}

TEST_P(CudaApiContract, AGraphHoldsTheStreamsThatCameInByEvents) {
  const CudaEvent back = *cuda_->CreateEvent();
  ASSERT_THAT(cuda_->BeginCapture(stream_), IsOk());
  Set(a_, 1, stream_);
  ASSERT_THAT(cuda_->RecordEvent(event_, stream_), IsOk());
  ASSERT_THAT(cuda_->StreamWaitEvent(other_, event_), IsOk());
  Copy(b_, a_, other_);
  ASSERT_THAT(cuda_->RecordEvent(back, other_), IsOk());
  ASSERT_THAT(cuda_->StreamWaitEvent(stream_, back), IsOk());
  Set(a_, 2, stream_);
  const auto graph = cuda_->EndCapture(stream_);
  ASSERT_THAT(graph, IsOk());
  Set(b_, 7, other_);
  EXPECT_EQ(Fetched(b_, other_), 7);  // runs, and does not wait for a graph
  for (int i = 0; i < 3; ++i) ASSERT_THAT(cuda_->LaunchGraph(*graph, stream_), IsOk());
  EXPECT_EQ(Fetched(b_, stream_), 1);
  EXPECT_EQ(Fetched(a_, stream_), 2);
  EXPECT_THAT(cuda_->DestroyGraph(*graph), IsOk());
  EXPECT_THAT(cuda_->DestroyEvent(back), IsOk());
}

}  // namespace muster::testing
