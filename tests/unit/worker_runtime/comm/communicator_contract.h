// What every backend of Communicator must do, as one parameterised suite. A backend's test file
// says how to make a group and instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorContract,
//   ::testing::Values(ContractBackend{"loopback", MakeLoopback}));
//
// Ranks are threads. Sums are checked on small integers, which every type holds exactly in any
// order.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "muster/communicator.h"
#include "muster/sum_tree.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct ContractBackend {
  std::string name;
  // One function per rank; each is called on that rank's thread and returns its communicator.
  using Join = std::function<std::unique_ptr<Communicator>()>;
  std::function<std::vector<Join>(int size, const CommunicatorOptions& options)> make;
  int max_size = 5;            // tests of larger groups are skipped
  std::string limit_reason{};  // why
  // Whether what it moves carries its size, and its connections end with their ranks. Else who
  // waits for a rank that sends another size, or has ended, learns of it at the deadline.
  bool sees_sizes_and_ends = true;
  bool registers_host_memory = true;  // or has no use for registered memory
};
// Lets GoogleTest print it.
inline void PrintTo(const ContractBackend& backend, std::ostream* out) { *out << backend.name; }

inline constexpr DType kAllTypes[] = {DType::kF64, DType::kF32, DType::kBf16, DType::kF16,
                                      DType::kI64, DType::kI32, DType::kU8};
inline constexpr int kSizes[] = {1, 2, 3, 4, 5};

// A buffer of any type that is filled from, and compared as, small whole numbers.
class TypedArray {
 public:
  TypedArray(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(count * SizeOf(dtype)) {}

  Buffer buffer() { return {bytes_.data(), count_, dtype_}; }
  Buffer block(int64_t index, int64_t count) {
    return {At(bytes_.data(), dtype_, index * count), count, dtype_};
  }

  void Set(int64_t i, double value) {
    switch (dtype_) {
      case DType::kF64:
        return Put(i, value);
      case DType::kI64:
        return Put(i, static_cast<int64_t>(value));
      case DType::kI32:
        return Put(i, static_cast<int32_t>(value));
      case DType::kU8:
        return Put(i, static_cast<uint8_t>(value));
      default: {
        const float wide = static_cast<float>(value);
        Narrow(dtype_, At(bytes_.data(), dtype_, i), &wide, 1);
      }
    }
  }
  double Get(int64_t i) const {
    switch (dtype_) {
      case DType::kF64:
        return Take<double>(i);
      case DType::kI64:
        return static_cast<double>(Take<int64_t>(i));
      case DType::kI32:
        return Take<int32_t>(i);
      case DType::kU8:
        return Take<uint8_t>(i);
      default: {
        float wide = 0;
        Widen(dtype_, &wide, At(bytes_.data(), dtype_, i), 1);
        return wide;
      }
    }
  }
  int64_t count() const { return count_; }

 private:
  template <typename T>
  void Put(int64_t i, T value) {
    std::memcpy(At(bytes_.data(), dtype_, i), &value, sizeof(T));
  }
  template <typename T>
  T Take(int64_t i) const {
    T value;
    std::memcpy(&value, At(bytes_.data(), dtype_, i), sizeof(T));
    return value;
  }

  DType dtype_;
  int64_t count_;
  std::vector<uint8_t> bytes_;
};

// What rank `rank` puts at `i`: 0 to 6, so that sums of five ranks fit into every type.
inline double ValueAt(int rank, int64_t i) { return static_cast<double>((rank * 3 + i) % 7); }

inline TypedArray Filled(DType dtype, int64_t count, int rank) {
  TypedArray array(dtype, count);
  for (int64_t i = 0; i < count; ++i) array.Set(i, ValueAt(rank, i));
  return array;
}

// The first difference from `expected(i)`, or nothing.
inline std::string Difference(const TypedArray& array,
                              const std::function<double(int64_t)>& expected) {
  for (int64_t i = 0; i < array.count(); ++i) {
    if (array.Get(i) != expected(i)) {
      return "element " + std::to_string(i) + " is " + std::to_string(array.Get(i)) + ", not " +
             std::to_string(expected(i));
    }
  }
  return "";
}

inline double Reduced(ReduceOp op, int size, int64_t i) {
  double out = ValueAt(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double value = ValueAt(rank, i);
    out = op == ReduceOp::kSum   ? out + value
          : op == ReduceOp::kMax ? std::max(out, value)
                                 : std::min(out, value);
  }
  return out;
}

class CommunicatorContract : public ::testing::TestWithParam<ContractBackend> {
 protected:
  using Program = std::function<void(Communicator&)>;

  // Runs `program` on every rank of a new group; communicators end when all programs have.
  void OnRanks(int size, const CommunicatorOptions& options, const Program& program) {
    if (size > GetParam().max_size) GTEST_SKIP() << GetParam().limit_reason;
    std::vector<ContractBackend::Join> joins = GetParam().make(size, options);
    std::barrier<> all_done(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        std::unique_ptr<Communicator> communicator = joins[rank]();
        if (communicator == nullptr) {
          ADD_FAILURE() << "rank " << rank << " could not join";
          return all_done.arrive_and_drop();
        }
        program(*communicator);
        all_done.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void OnRanks(int size, const Program& program) { OnRanks(size, {}, program); }

  // What `program` returned on each rank.
  std::vector<absl::Status> StatusesOf(int size,
                                       const std::function<absl::Status(Communicator&)>& program) {
    std::vector<absl::Status> statuses(size);
    OnRanks(size, [&](Communicator& c) { statuses[c.rank()] = program(c); });
    return statuses;
  }

  // Each rank's program may also end its communicator.
  using OwningProgram = std::function<void(std::unique_ptr<Communicator>)>;
  void OnRanksOwning(int size, const CommunicatorOptions& options, const OwningProgram& program) {
    if (size > GetParam().max_size) GTEST_SKIP() << GetParam().limit_reason;
    std::vector<ContractBackend::Join> joins = GetParam().make(size, options);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { program(joins[rank]()); });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace muster::comm
