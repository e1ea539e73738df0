// Descriptors that are parked are still open, and are not in the table.
#include "agent/process/parked_descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

namespace muster::agent {
namespace {

int NumOpen() {
  const std::unique_ptr<DIR, int (*)(DIR*)> table(::opendir("/proc/self/fd"), ::closedir);
  int count = 0;
  while (::readdir(table.get()) != nullptr) ++count;
  return count;
}

// The ends of a pipe: what is written to the second comes out of the first.
std::pair<UniqueFd, UniqueFd> MakePipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

class ParkedDescriptorsTest : public ::testing::Test {
 protected:
  // Keeps the reading end, and parks the other, twice.
  void ParkOne() {
    auto [out, in] = MakePipe();
    readers_.push_back(std::move(out));
    std::vector<UniqueFd> group;
    group.emplace_back(::fcntl(in.get(), F_DUPFD_CLOEXEC, 0));
    group.push_back(std::move(in));
    parked_.Park(std::move(group));
  }
  // 1: a byte; 0: the end; -1: somebody could still write.
  static int ReadOne(const UniqueFd& reader) {
    char byte;
    return static_cast<int>(::read(reader.get(), &byte, 1));
  }

  ParkedDescriptors parked_;
  std::vector<UniqueFd> readers_;
};

TEST_F(ParkedDescriptorsTest, StayOpenAndTakeNoRoom) {
  const int before = NumOpen();
  for (int i = 0; i < 200; ++i) ParkOne();
  EXPECT_LE(NumOpen(), before + 200 + 10);
  EXPECT_EQ(ReadOne(readers_[17]), -1);
}

TEST_F(ParkedDescriptorsTest, AreTakenInTheOrderOfParking) {
  for (int i = 0; i < 200; ++i) ParkOne();
  for (int i = 0; i < 200; ++i) {
    std::vector<UniqueFd> group = parked_.TakeNext();
    ASSERT_EQ(group.size(), 2u) << i;
    ASSERT_EQ(::write(group[1].get(), "x", 1), 1);
    EXPECT_EQ(ReadOne(readers_[i]), 1) << i;
    group.clear();
    EXPECT_EQ(ReadOne(readers_[i]), 0) << i;
  }
  EXPECT_TRUE(parked_.TakeNext().empty());
  ParkOne();
  EXPECT_EQ(parked_.TakeNext().size(), 2u);
}

TEST_F(ParkedDescriptorsTest, AreClosedWithTheirOwner) {
  ParkOne();
  parked_.Clear();
  EXPECT_EQ(ReadOne(readers_[0]), 0);
}

}  // namespace
}  // namespace muster::agent
