#include "agent/core/file_timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Expired = FileTimers::Expired;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

std::string Request(int pid, const std::string& scope, double expires, int signal = 9) {
  return absl::StrCat("{\"version\": 1, \"pid\": ", pid, ", \"scope_id\": \"", scope,
                      "\", \"expiration_time\": ", expires, ", \"signal\": ", signal, "}");
}

TEST(FileTimers, ExpireAtTheirTime) {
  FileTimers timers;
  EXPECT_EQ(timers.NextExpiry(), absl::InfiniteFuture());
  ASSERT_TRUE(timers.Take(Request(7, "step", 10)).ok());
  EXPECT_EQ(timers.NextExpiry(), At(10));
  EXPECT_THAT(timers.Expire(At(9)), IsEmpty());
  EXPECT_THAT(timers.Expire(At(10)), ElementsAre(Expired{7, "step", 9}));
  EXPECT_THAT(timers.Expire(At(11)), IsEmpty());
}

TEST(FileTimers, AreTakenBackAndSetAnew) {
  FileTimers timers;
  ASSERT_TRUE(timers.Take(Request(7, "step", 10)).ok());
  ASSERT_TRUE(timers.Take(Request(7, "step", 20)).ok());
  EXPECT_THAT(timers.Expire(At(15)), IsEmpty());
  ASSERT_TRUE(timers.Take(Request(7, "step", -1, 0)).ok());
  EXPECT_THAT(timers.Expire(At(25)), IsEmpty());
}

TEST(FileTimers, NameTheEarliestOfAProcessThatHasASignal) {
  FileTimers timers;
  ASSERT_TRUE(timers.Take(Request(7, "a", 12)).ok());
  ASSERT_TRUE(timers.Take(Request(7, "b", 10, 0)).ok());
  ASSERT_TRUE(timers.Take(Request(7, "c", 11, 15)).ok());
  ASSERT_TRUE(timers.Take(Request(7, "later", 99)).ok());
  ASSERT_TRUE(timers.Take(Request(8, "d", 13, -1)).ok());
  EXPECT_THAT(timers.Expire(At(20)), ElementsAre(Expired{7, "c", 15}, Expired{8, "d", 0}));
  EXPECT_EQ(timers.NextExpiry(), absl::InfiniteFuture()) << "all of a process are forgotten";
}

TEST(FileTimers, RefuseWhatIsNotARequest) {
  FileTimers timers;
  for (const char* line : {"", "{", "[]", "7", "{}", R"({"pid": 1})",
                           R"({"pid": 0, "scope_id": "a", "expiration_time": 1})",
                           R"({"pid": "1", "scope_id": "a", "expiration_time": 1})",
                           R"({"pid": 1, "scope_id": 2, "expiration_time": 1})",
                           R"({"pid": 1, "scope_id": "a", "expiration_time": "soon"})",
                           R"({"pid": 99999999999, "scope_id": "a", "expiration_time": 1})"}) {
    EXPECT_EQ(timers.Take(line).code(), absl::StatusCode::kInvalidArgument) << line;
  }
  EXPECT_EQ(timers.NextExpiry(), absl::InfiniteFuture());
}

TEST(FileTimers, AreBounded) {
  FileTimers timers;
  for (size_t i = 0; i < FileTimers::kTimersMax; ++i) {
    ASSERT_TRUE(timers.Take(Request(1, absl::StrCat(i), 10)).ok());
  }
  EXPECT_EQ(timers.Take(Request(2, "more", 10)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(timers.Take(Request(1, "7", 20)).ok());
}

}  // namespace
}  // namespace muster::agent
