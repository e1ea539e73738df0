// The memory that ranks exchange in is what plan/exchange_memory.h says of their calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/gloo/gloo_communicator.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/plan/exchange_memory.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using plan::Collective;
using plan::ExchangeCall;

// What `call` is of a communicator.
void Make(const ExchangeCall& call, Communicator& group) {
  std::vector<uint8_t> whole(call.bytes);
  const int64_t count = call.bytes / plan::BytesOf(call.dtype);
  const Buffer all = {whole.data(), count, call.dtype};
  const int64_t each = count / group.size();
  const Buffer own = {whole.data() + group.rank() * each * plan::BytesOf(call.dtype), each,
                      call.dtype};
  const int64_t leaves = call.leaves_per_rank;
  const std::vector<ConstBuffer> roots(
      CoverWithSubtrees({group.rank() * leaves, (group.rank() + 1) * leaves}, group.size() * leaves)
          .size(),
      all);
  const auto made = [&] {
    if (call.collective == Collective::kAllGather) return group.AllGather(own, all);
    if (call.collective == Collective::kAllReduce) {
      return call.ordered ? group.AllReduceSubtrees(roots, all, {.leaves_per_rank = leaves})
                          : group.AllReduce(all);
    }
    return call.ordered ? group.ReduceScatterSubtrees(roots, own, {.leaves_per_rank = leaves})
                        : group.ReduceScatter(all, own);
  };
  EXPECT_THAT(made().Wait(), IsOk());
}

// The bytes reserved by each rank after `calls`.
std::vector<int64_t> Reserved(const std::vector<ExchangeCall>& calls, int size, bool by_memory) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<int64_t> reserved(size);
  std::barrier<> all_done(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = GlooCommunicator::Make(
          {.group = "world", .rank = rank, .size = size, .options = {.shared_memory = by_memory}},
          *OpenGlooDevice("127.0.0.1", "lo"), store, "test");
      EXPECT_THAT(communicator, IsOk());
      if (communicator.ok()) {
        for (const ExchangeCall& call : calls) Make(call, **communicator);
        reserved[rank] = (*communicator)->bytes_reserved();
      }
      all_done.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reserved;
}

int64_t Planned(const std::vector<ExchangeCall>& calls, const plan::GroupPlace& place) {
  plan::StagingBlocks blocks;
  std::set<int> senders;
  for (const ExchangeCall& call : calls) {
    plan::Stage(call, place, blocks);
    for (const int sender : plan::SendersOf(call, place)) senders.insert(sender);
  }
  const auto num_rings = place.left_shares_memory ? static_cast<int64_t>(senders.size()) : 0;
  return blocks.most() + num_rings * plan::kCollectiveRingBytes;
}

std::vector<ExchangeCall> EveryKindOfCall() {
  std::vector<ExchangeCall> calls;
  for (const int64_t elements : {6000, 600'000}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16}) {
        calls.push_back(
            {.collective = collective, .dtype = dtype, .bytes = elements * plan::BytesOf(dtype)});
      }
    }
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
      for (const int64_t leaves : {1, 3}) {
        calls.push_back({.collective = collective,
                         .bytes = elements * plan::BytesOf(DType::kF32),
                         .ordered = true,
                         .leaves_per_rank = leaves});
      }
    }
  }
  return calls;
}

void ExpectPlanned(const std::vector<ExchangeCall>& calls, const std::vector<int>& sizes,
                   const std::string& what) {
  for (const int size : sizes) {
    for (const bool by_memory : {true, false}) {
      const std::vector<int64_t> reserved = Reserved(calls, size, by_memory);
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_EQ(reserved[rank],
                  Planned(calls, {.rank = rank, .size = size, .left_shares_memory = by_memory}))
            << what << ", rank " << rank << " of " << size << (by_memory ? " by memory" : "");
      }
    }
  }
}

TEST(GlooMemory, IsWhatThePlanSaysOfEachCall) {
  for (const ExchangeCall& call : EveryKindOfCall()) {
    ExpectPlanned({call}, {2, 3},
                  absl::StrCat(ToString(call.collective), " of ", call.bytes, " bytes of ",
                               muster::ToString(call.dtype), call.ordered ? ", ordered" : ""));
  }
}

TEST(GlooMemory, IsUsedAgainByLaterCallsAsThePlanSays) {
  std::vector<ExchangeCall> calls = EveryKindOfCall();
  const std::vector<ExchangeCall> again = calls;
  calls.insert(calls.end(), again.rbegin(), again.rend());
  ExpectPlanned(calls, {2, 3, 5}, "all of them");
}

// A communicator keeps at most so much between calls.
TEST(GlooMemory, OfAVeryLargeCallIsGivenBack) {
  const ExchangeCall large = {.bytes = 3 * plan::StagingBlocks::kMostKept, .ordered = true};
  const ExchangeCall small = {.bytes = 1 << 20, .ordered = true};
  ExpectPlanned({large, small, large}, {2}, "a large one, a small one and a large one");
}

}  // namespace
}  // namespace muster::comm
