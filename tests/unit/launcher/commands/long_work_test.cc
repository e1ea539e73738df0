#include "launcher/commands/long_work.h"

#include <atomic>

#include "gtest/gtest.h"
#include "tests/support/subprocess.h"

namespace muster::launcher {
namespace {

TEST(LongWork, IsSaidOnceItIsLong) {
  std::atomic<int> said = 0;
  const LongWork work(absl::ZeroDuration(), [&] { ++said; });
  EXPECT_TRUE(testing::WaitUntil([&] { return said == 1; }));
}

TEST(LongWork, IsNotSaidWhereItIsShort) {
  std::atomic<int> said = 0;
  {
    const LongWork work(absl::Hours(1), [&] { ++said; });
  }
  EXPECT_EQ(said, 0);
}

}  // namespace
}  // namespace muster::launcher
