#include "worker_runtime/comm/nccl/stream_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_cuda.h"

namespace muster::comm {
namespace {

using testing::IsOk;

class StreamBuffersTest : public ::testing::Test {
 protected:
  ~StreamBuffersTest() override {
    stream_.reset();
    cuda_.CheckRules();
  }

  // What has been put on the stream is done.
  void Finish() {
    const auto event = stream_->TakeEvent();
    ASSERT_THAT(event, IsOk());
    cudaEventRecord(*event, stream_->get());
    while (cudaEventQuery(*event) != cudaSuccess) std::this_thread::yield();
    stream_->GiveBackEvent(*event);
  }

  FakeCuda cuda_;
  std::optional<DeviceStream> stream_ = *DeviceStream::Make();
};

TEST_F(StreamBuffersTest, BringsWhatTheHostHasAndMayChangeAtOnce) {
  StreamBuffers buffers(*stream_);
  std::string data = "as it was";
  const auto input = buffers.Input(data.data(), data.size());
  ASSERT_THAT(input, IsOk());
  data = "different";
  Finish();
  EXPECT_TRUE(IsDeviceMemory(*input));
  EXPECT_EQ(std::memcmp(*input, "as it was", data.size()), 0);
}

TEST_F(StreamBuffersTest, TakesADevicesMemoryAsItIs) {
  StreamBuffers buffers(*stream_);
  void* const memory = cuda_.Allocate(16);
  const auto input = buffers.Input(memory, 16);
  ASSERT_THAT(input, IsOk());
  EXPECT_EQ(*input, memory);
  const auto output = buffers.Output(memory, 16);
  ASSERT_THAT(output, IsOk());
  EXPECT_EQ(*output, memory);
  EXPECT_FALSE(buffers.has_host_output());
}

TEST_F(StreamBuffersTest, PutsAHostsOutputInItsPlaceAtTheEnd) {
  StreamBuffers buffers(*stream_);
  std::string data = "0000";
  const auto output = buffers.Output(data.data(), data.size());
  ASSERT_THAT(output, IsOk());
  ASSERT_TRUE(buffers.has_host_output());
  FakeCuda::Put(stream_->get(), [&] { std::memcpy(*output, "1234", 4); });
  ASSERT_THAT(buffers.StartOutput(), IsOk());
  Finish();
  EXPECT_EQ(data, "0000");
  buffers.FinishOutput();
  EXPECT_EQ(data, "1234");
}

TEST_F(StreamBuffersTest, TheNextCallGetsTheMemoryOfTheLast) {
  void* first = nullptr;
  {
    StreamBuffers buffers(*stream_);
    first = *buffers.OnDevice(100);
  }
  StreamBuffers buffers(*stream_);
  EXPECT_EQ(*buffers.OnDevice(100), first);
  EXPECT_NE(*buffers.OnDevice(100), first);
  EXPECT_FALSE(IsDeviceMemory(*buffers.Pinned(100)));
}

}  // namespace
}  // namespace muster::comm
