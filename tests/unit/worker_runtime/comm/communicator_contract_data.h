// The contract's first half: what operations compute. See communicator_contract.h.
#pragma once

#include "tests/unit/worker_runtime/comm/communicator_contract.h"

namespace muster::comm {

// 1000003 is prime and above a chunk for every type; 20011 is above what counts as small.
inline constexpr int64_t kCounts[] = {0, 1, 7, 64, 20011};
inline constexpr int64_t kLargeCount = 1000003;

TEST_P(CommunicatorContract, AllReduceGivesEveryRankTheReductionForEveryTypeAndOp) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      for (const DType dtype : kAllTypes) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
          for (const int64_t count : kCounts) {
            TypedArray array = Filled(dtype, count, c.rank());
            ASSERT_THAT(c.AllReduce(array.buffer(), {.op = op}).Wait(), IsOk());
            EXPECT_EQ(Difference(array, [&](int64_t i) { return Reduced(op, size, i); }), "")
                << "size " << size << " " << ToString(dtype) << " count " << count;
          }
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, AllReduceOfMegabytesIsRight) {
  for (const int size : {2, 3, 4}) {
    OnRanks(size, [size](Communicator& c) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kU8}) {
        TypedArray array = Filled(dtype, kLargeCount, c.rank());
        ASSERT_THAT(c.AllReduce(array.buffer()).Wait(), IsOk());
        EXPECT_EQ(Difference(array, [&](int64_t i) { return Reduced(ReduceOp::kSum, size, i); }),
                  "");
      }
    });
  }
}

TEST_P(CommunicatorContract, CountsTheBytesThatItSends) {
  constexpr int64_t kElements = 1 << 20;
  for (const int size : {1, 2, 4}) {
    OnRanks(size, [&](Communicator& c) {
      TypedArray array = Filled(DType::kF32, kElements, c.rank());
      TypedArray whole(DType::kF32, kElements * size);
      const int64_t before = c.bytes_sent();
      ASSERT_THAT(c.AllReduce(array.buffer()).Wait(), IsOk());
      const int64_t reduced = c.bytes_sent();
      ASSERT_THAT(c.AllGather(array.buffer(), whole.buffer()).Wait(), IsOk());
      const int64_t gathered = c.bytes_sent();
      const double bytes = 4.0 * kElements;
      EXPECT_NEAR(static_cast<double>(reduced - before), 2 * bytes * (size - 1) / size, 1000);
      EXPECT_NEAR(static_cast<double>(gathered - reduced), bytes * (size - 1), 1000);
    });
  }
}

TEST_P(CommunicatorContract, ReduceScatterGivesEachRankItsBlock) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      for (const DType dtype : kAllTypes) {
        for (const int64_t count : {0, 1, 7, 20011}) {
          TypedArray input = Filled(dtype, count * size, c.rank());
          TypedArray output(dtype, count);
          ASSERT_THAT(c.ReduceScatter(input.buffer(), output.buffer()).Wait(), IsOk());
          const auto expected = [&](int64_t i) {
            return Reduced(ReduceOp::kSum, size, c.rank() * count + i);
          };
          EXPECT_EQ(Difference(output, expected), "")
              << size << " " << ToString(dtype) << " " << count;
          const auto unchanged = [&](int64_t i) { return ValueAt(c.rank(), i); };
          EXPECT_EQ(Difference(input, unchanged), "");
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, ReduceScatterMayWriteIntoItsOwnBlockOfTheInput) {
  constexpr int kSize = 3;
  OnRanks(kSize, [](Communicator& c) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const int64_t count : {5, 300007}) {
        TypedArray array = Filled(dtype, count * kSize, c.rank());
        const Buffer own = array.block(c.rank(), count);
        ASSERT_THAT(c.ReduceScatter(array.buffer(), own).Wait(), IsOk());
        const auto expected = [&](int64_t i) {
          return i / count == c.rank() ? Reduced(ReduceOp::kSum, kSize, i) : ValueAt(c.rank(), i);
        };
        EXPECT_EQ(Difference(array, expected), "");
      }
    }
  });
}

TEST_P(CommunicatorContract, AllGatherPutsEveryRanksInputInOrder) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      for (const DType dtype : kAllTypes) {
        for (const int64_t count : {0, 1, 7, 30011}) {
          TypedArray input = Filled(dtype, count, c.rank());
          TypedArray output(dtype, count * size);
          ASSERT_THAT(c.AllGather(input.buffer(), output.buffer()).Wait(), IsOk());
          const auto expected = [&](int64_t i) {
            return ValueAt(static_cast<int>(i / count), i % count);
          };
          EXPECT_EQ(Difference(output, expected), "");
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, AllGatherTakesItsInputFromInsideTheOutput) {
  constexpr int kSize = 4;
  OnRanks(kSize, [](Communicator& c) {
    TypedArray array(DType::kF32, 11 * kSize);
    for (int64_t i = 0; i < 11; ++i) array.Set(c.rank() * 11 + i, ValueAt(c.rank(), i));
    ASSERT_THAT(c.AllGather(array.block(c.rank(), 11), array.buffer()).Wait(), IsOk());
    const auto expected = [](int64_t i) { return ValueAt(static_cast<int>(i / 11), i % 11); };
    EXPECT_EQ(Difference(array, expected), "");
  });
}

TEST_P(CommunicatorContract, BroadcastReachesEveryRankFromEveryRoot) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      for (int root = 0; root < size; ++root) {
        for (const int64_t count : {0, 1, 7, 400009}) {
          TypedArray array = Filled(DType::kF32, count, c.rank());
          ASSERT_THAT(c.Broadcast(array.buffer(), root).Wait(), IsOk());
          EXPECT_EQ(Difference(array, [&](int64_t i) { return ValueAt(root, i); }), "");
        }
      }
    });
  }
}

TEST_P(CommunicatorContract, AllToAllTransposesBlocks) {
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      for (const int64_t count : {0, 1, 7, 70001}) {
        TypedArray input = Filled(DType::kI32, count * size, c.rank());
        TypedArray output(DType::kI32, count * size);
        ASSERT_THAT(c.AllToAll(input.buffer(), output.buffer()).Wait(), IsOk());
        const auto expected = [&](int64_t i) {
          return ValueAt(static_cast<int>(i / count), c.rank() * count + i % count);
        };
        EXPECT_EQ(Difference(output, expected), "");
      }
    });
  }
}

TEST_P(CommunicatorContract, BarrierHoldsEveryRankUntilTheLastHasCome) {
  for (const int size : kSizes) {
    std::atomic<int> num_arrived = 0;
    OnRanks(size, [&](Communicator& c) {
      for (int turn = 1; turn <= 20; ++turn) {
        ++num_arrived;
        ASSERT_THAT(c.Barrier().Wait(), IsOk());
        EXPECT_GE(num_arrived.load(), turn * size);
        ASSERT_THAT(c.Barrier().Wait(), IsOk());
      }
    });
  }
}

TEST_P(CommunicatorContract, SendsAndReceivesMatchInTheOrderOfTheirCalls) {
  constexpr int kMessages = 20;
  OnRanks(3, [](Communicator& c) {
    const int next = (c.rank() + 1) % 3, previous = (c.rank() + 2) % 3;
    std::vector<TypedArray> sent, received;
    std::vector<Work> work;
    for (int m = 0; m < kMessages; ++m) {
      const int64_t count = m % 5 == 4 ? 100003 : m;
      sent.push_back(Filled(DType::kF32, count, c.rank() * 100 + m));
      received.emplace_back(DType::kF32, count);
    }
    // Every rank sends first: sends must not wait for receives to be called.
    for (int m = 0; m < kMessages; ++m) work.push_back(c.Send(sent[m].buffer(), next));
    for (int m = 0; m < kMessages; ++m) work.push_back(c.Recv(received[m].buffer(), previous));
    for (const Work& each : work) ASSERT_THAT(each.Wait(), IsOk());
    for (int m = 0; m < kMessages; ++m) {
      const auto expected = [&](int64_t i) { return ValueAt(previous * 100 + m, i); };
      EXPECT_EQ(Difference(received[m], expected), "");
    }
  });
}

TEST_P(CommunicatorContract, ASendDoesNotHoldUpCollectives) {
  OnRanks(2, [](Communicator& c) {
    TypedArray message = Filled(DType::kF32, 300007, 5);
    Work transfer;
    if (c.rank() == 0) transfer = c.Send(message.buffer(), 1);
    ASSERT_THAT(c.Barrier().Wait(), IsOk());
    if (c.rank() == 1) transfer = c.Recv(message.buffer(), 0);
    ASSERT_THAT(transfer.Wait(), IsOk());
    EXPECT_EQ(Difference(message, [](int64_t i) { return ValueAt(5, i); }), "");
  });
}

TEST_P(CommunicatorContract, ManyOperationsMayBeInFlight) {
  constexpr int kOperations = 100;
  OnRanks(3, [](Communicator& c) {
    std::vector<TypedArray> arrays;
    for (int k = 0; k < kOperations; ++k) {
      arrays.push_back(Filled(DType::kF32, k * k * 7, c.rank() + k));
    }
    std::vector<Work> work;
    for (TypedArray& array : arrays) work.push_back(c.AllReduce(array.buffer()));
    for (int k = kOperations - 1; k >= 0; --k) ASSERT_THAT(work[k].Wait(), IsOk());
    for (int k = 0; k < kOperations; ++k) {
      EXPECT_TRUE(work[k].IsDone());
      const auto expected = [&](int64_t i) {
        return ValueAt(k, i) + ValueAt(k + 1, i) + ValueAt(k + 2, i);
      };
      EXPECT_EQ(Difference(arrays[k], expected), "") << k;
    }
  });
}

TEST_P(CommunicatorContract, TheCallReturnsBeforeOtherRanksHaveCome) {
  std::atomic<bool> called = false;
  OnRanks(2, [&](Communicator& c) {
    TypedArray array = Filled(DType::kF32, 1000, c.rank());
    if (c.rank() == 1) {
      while (!called) std::this_thread::yield();
    }
    const Work work = c.AllReduce(array.buffer());
    if (c.rank() == 0) {
      EXPECT_FALSE(work.IsDone());
      called = true;
    }
    EXPECT_THAT(work.Wait(), IsOk());
  });
}

TEST_P(CommunicatorContract, GroupsSplitFromGroupsAreIndependent) {
  OnRanks(5, [](Communicator& world) {
    // Even and odd ranks, in reverse order; then the even ones but the last.
    auto half = world.Split(world.rank() % 2, -world.rank());
    ASSERT_THAT(half, IsOk());
    const bool even = world.rank() % 2 == 0;
    EXPECT_EQ((*half)->size(), even ? 3 : 2);
    EXPECT_EQ((*half)->rank(), even ? (4 - world.rank()) / 2 : (3 - world.rank()) / 2);

    std::vector<int64_t> sum = {world.rank()};
    ASSERT_THAT((*half)->AllReduce(BufferOf(sum)).Wait(), IsOk());
    EXPECT_EQ(sum[0], even ? 0 + 2 + 4 : 1 + 3);

    if (!even) return;
    const bool stays = world.rank() < 4;
    auto pair = (*half)->Split(stays ? std::optional<int>(7) : std::nullopt, world.rank(), "pair");
    ASSERT_THAT(pair, IsOk());
    ASSERT_EQ(*pair != nullptr, stays);
    if (!stays) return;
    EXPECT_EQ((*pair)->group(), "pair");
    std::vector<int32_t> ranks((*pair)->size());
    const std::vector<int32_t> own = {world.rank()};
    ASSERT_THAT((*pair)->AllGather(ConstBufferOf(own), BufferOf(ranks)).Wait(), IsOk());
    EXPECT_THAT(ranks, ::testing::ElementsAre(0, 2));
  });
}

// The tree by its definition, over leaves [begin, end).
inline float TreeSum(const std::vector<float>& leaves, int64_t begin, int64_t end) {
  if (end - begin == 1) return leaves[begin];
  int64_t left = 1;
  while (left * 2 < end - begin) left *= 2;
  return TreeSum(leaves, begin, begin + left) + TreeSum(leaves, begin + left, end);
}

// [element][leaf], of very different sizes, so that almost every order gives other bits.
inline std::vector<std::vector<float>> RandomLeaves(int64_t count, int64_t num_leaves) {
  std::mt19937 random(42);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::vector<std::vector<float>> leaves(count, std::vector<float>(num_leaves));
  for (auto& element : leaves) {
    for (float& leaf : element) leaf = std::ldexp(mantissa(random), exponent(random));
  }
  return leaves;
}

TEST_P(CommunicatorContract, OrderedSumsHaveTheSameBitsWhereverRanksCutTheLeaves) {
  constexpr int64_t kCount = 1237, kLeaves = 12;
  const auto leaves = RandomLeaves(kCount, kLeaves);
  std::vector<float> expected;
  for (const auto& element : leaves) expected.push_back(TreeSum(element, 0, kLeaves));

  for (const int size : {1, 2, 3, 4}) {
    OnRanks(size, [&](Communicator& c) {
      const int64_t per_rank = kLeaves / size;
      const LeafRange own{c.rank() * per_rank, (c.rank() + 1) * per_rank};
      std::vector<std::vector<float>> sums;
      std::vector<ConstBuffer> roots;
      for (const LeafRange range : CoverWithSubtrees(own, kLeaves)) {
        std::vector<float>& sum = sums.emplace_back();
        for (const auto& element : leaves) sum.push_back(TreeSum(element, range.begin, range.end));
      }
      for (const auto& sum : sums) roots.push_back(ConstBufferOf(sum));
      std::vector<float> out(kCount);
      ASSERT_THAT(c.AllReduceSubtrees(roots, BufferOf(out), {.leaves_per_rank = per_rank}).Wait(),
                  IsOk());
      EXPECT_EQ(std::memcmp(out.data(), expected.data(), kCount * sizeof(float)), 0) << size;
    });
  }
}

TEST_P(CommunicatorContract, OrderedReduceScatterHasTheBitsOfOrderedAllReduce) {
  constexpr int kSize = 5;
  constexpr int64_t kCount = 211;
  const auto leaves = RandomLeaves(kCount * kSize, kSize);
  OnRanks(kSize, [&](Communicator& c) {
    std::vector<float> input;
    for (const auto& element : leaves) input.push_back(element[c.rank()]);
    std::vector<float> shard(kCount);
    ASSERT_THAT(
        c.ReduceScatter(ConstBufferOf(input), BufferOf(shard), {.order = SumOrder::kOrdered})
            .Wait(),
        IsOk());
    ASSERT_THAT(c.AllReduce(BufferOf(input), {.order = SumOrder::kOrdered}).Wait(), IsOk());
    for (int64_t i = 0; i < kCount; ++i) {
      const int64_t element = c.rank() * kCount + i;
      EXPECT_EQ(shard[i], TreeSum(leaves[element], 0, kSize));
      EXPECT_EQ(shard[i], input[element]);
    }
  });
}

TEST_P(CommunicatorContract, FastSumsHaveTheSameBitsOnEveryRank) {
  for (const int size : {3, 4, 5}) {
    for (const int64_t count : {100, 30011}) {
      const auto leaves = RandomLeaves(count, size);
      OnRanks(size, [&](Communicator& c) {
        std::vector<float> sum;
        for (const auto& element : leaves) sum.push_back(element[c.rank()]);
        ASSERT_THAT(c.AllReduce(BufferOf(sum)).Wait(), IsOk());
        std::vector<float> first = sum;
        ASSERT_THAT(c.Broadcast(BufferOf(first), 0).Wait(), IsOk());
        EXPECT_EQ(std::memcmp(sum.data(), first.data(), count * sizeof(float)), 0);
      });
    }
  }
}

TEST_P(CommunicatorContract, AnOperationStartsAndFinishesBetweenItsCallAndTheEndOfItsWait) {
  OnRanks(2, [](Communicator& c) {
    TypedArray array = Filled(DType::kF32, 1000, c.rank());
    const MonoTime called = MonoNow();
    const Work work = c.AllReduce(array.buffer());
    ASSERT_THAT(work.Wait(), IsOk());
    const MonoTime waited = MonoNow();
    EXPECT_GE(work.StartedAt(), called);
    EXPECT_GE(work.FinishedAt(), work.StartedAt());
    EXPECT_LE(work.FinishedAt(), waited);
    EXPECT_EQ(Work().FinishedAt(), MonoTime()) << "work that was done at once";
  });
}

TEST_P(CommunicatorContract, AnOperationInFlightHasNotFinished) {
  std::atomic<bool> looked = false;
  OnRanks(2, [&](Communicator& c) {
    TypedArray array = Filled(DType::kF32, 10, c.rank());
    if (c.rank() == 1) {
      while (!looked) std::this_thread::yield();
    }
    const Work work = c.AllReduce(array.buffer());
    if (c.rank() == 0) {
      EXPECT_TRUE(work.FinishedAt().is_infinite());
      looked = true;
    }
    EXPECT_THAT(work.Wait(), IsOk());
  });
}

TEST_P(CommunicatorContract, SumsOfBf16AreRoundedOnce) {
  // 1 + 3 * 2^-8: each addition alone would round to 1, the sum in fp32 rounds to 1 + 2^-7 * 2.
  for (const int64_t count : {9, 70001}) {
    OnRanks(4, [count](Communicator& c) {
      TypedArray array(DType::kBf16, count);
      for (int64_t i = 0; i < count; ++i) array.Set(i, c.rank() == 0 ? 1.0 : 0x1p-8);
      ASSERT_THAT(c.AllReduce(array.buffer()).Wait(), IsOk());
      EXPECT_EQ(Difference(array, [](int64_t) { return 1.0 + 0x1p-6; }), "");
    });
  }
}

// A backend that has no use for it makes it empty; registration_test.cc has one that does.
TEST_P(CommunicatorContract, RegistersMemoryOfEveryRankOrNoneAndCallsDoWhatTheyDid) {
  if (!GetParam().registers_host_memory) {
    OnRanks(2, [](Communicator& c) {
      TypedArray array = Filled(DType::kF32, 3, c.rank());
      EXPECT_THAT(c.Register(array.buffer()),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a GPU's")));
    });
    return;
  }
  for (const int size : kSizes) {
    OnRanks(size, [size](Communicator& c) {
      TypedArray array = Filled(DType::kF32, 1003, c.rank());
      const int64_t before = c.bytes_sent();
      auto registration = c.Register(c.rank() == 1 ? Buffer{} : array.buffer());
      ASSERT_THAT(registration, IsOk());
      EXPECT_TRUE(registration->empty());
      EXPECT_EQ(c.bytes_sent(), before) << "it has exchanged something";
      ASSERT_THAT(c.AllReduce(array.buffer()).Wait(), IsOk());
      EXPECT_EQ(Difference(array, [size](int64_t i) { return Reduced(ReduceOp::kSum, size, i); }),
                "");
      auto part = c.Split(0, c.rank());
      ASSERT_THAT(part, IsOk());
      EXPECT_THAT((*part)->Register(array.buffer()), IsOk());
      *registration = Registration();
      EXPECT_THAT(c.Register({nullptr, 3, DType::kF32}),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a valid buffer")));
      EXPECT_THAT(c.Barrier().Wait(), IsOk());
    });
  }
}

}  // namespace muster::comm
