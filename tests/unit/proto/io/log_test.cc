#include "proto/io/log.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/base/mutex.h"

namespace muster::log {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What was written since construction. Lines go nowhere afterwards.
class CapturedLog {
 public:
  explicit CapturedLog(Options options = {}) {
    options.sink = [this](const std::string& line) {
      base::MutexLock lock(mu_);
      lines_.push_back(line);
    };
    Configure(std::move(options));
  }
  ~CapturedLog() {
    Configure({.sink = [](const std::string&) {}});
  }
  std::vector<std::string> lines() {
    base::MutexLock lock(mu_);
    return lines_;
  }

 private:
  base::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

TEST(Log, ShowsPeopleTheSentenceOnly) {
  CapturedLog log;
  Write(Level::kInfo, "round_completed", "round 3 starts", {{"round", "3"}});
  EXPECT_THAT(log.lines(), ElementsAre("muster: round 3 starts"));
}

TEST(Log, NamesTheLevelOfWarningsAndErrors) {
  CapturedLog log;
  Write(Level::kWarning, "disk_full", "cannot write");
  Write(Level::kError, "job_failed", "the job failed");
  EXPECT_THAT(log.lines(),
              ElementsAre("muster: warning: cannot write", "muster: error: the job failed"));
}

TEST(Log, LeavesNothingThatSteersATerminal) {
  for (const Format format : {Format::kText, Format::kJson}) {
    CapturedLog log({.format = format, .level = Level::kDebug});
    Write(Level::kInfo, "e", "t\xc2\x9b", {{"a", "\x1b[2J"}, {"b", "x \x7f\xc2\x9b"}});
    ASSERT_EQ(log.lines().size(), 1u);
    EXPECT_THAT(log.lines().front(),
                AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\x7f")), Not(HasSubstr("\xc2\x9b"))));
  }
}

TEST(Log, DropsWhatIsBelowTheLevel) {
  CapturedLog log({.level = Level::kWarning});
  Write(Level::kDebug, "e", "debug");
  Write(Level::kInfo, "e", "info");
  EXPECT_THAT(log.lines(), IsEmpty());
}

TEST(Log, AppendsQuotedFieldsInOrderAtDebugLevel) {
  CapturedLog log({.level = Level::kDebug});
  Write(Level::kInfo, "round_completed", "go",
        {{"run", "j7"}, {"reason", "last call \"now\""}, {"empty", ""}});
  EXPECT_THAT(
      log.lines(),
      ElementsAre(
          "muster: go event=round_completed run=j7 reason=\"last call \\\"now\\\"\" empty=\"\""));
}

TEST(Log, PassesBracesThroughUnchanged) {
  CapturedLog log;
  Write(Level::kInfo, "e", "unknown key {} %v {0}");
  EXPECT_THAT(log.lines(), ElementsAre("muster: unknown key {} %v {0}"));
}

TEST(Log, ShowsWhatNobodySees) {
  CapturedLog log;
  Write(Level::kError, "e", "unknown key 'debug\xc2\xa0'");
  EXPECT_THAT(log.lines(), ElementsAre("muster: error: unknown key 'debug<U+00A0>'"));
}

TEST(Log, WritesOneJsonObjectWithTheSameFields) {
  const std::string line =
      FormatJson({Level::kWarning, "lost", "node \"a\"\nis lost", {{"round", "3"}, {"node", "a"}}},
                 absl::FromUnixMillis(1700000000123));
  EXPECT_EQ(line, R"({"time":"2023-11-14T22:13:20.123Z","level":"warning","event":"lost",)"
                  R"("text":"node \"a\"\nis lost","round":"3","node":"a"})");
}

TEST(Log, ChoosesJsonByOption) {
  CapturedLog log({.format = Format::kJson});
  Write(Level::kInfo, "e", "t", {{"k", "v"}});
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(log.lines()[0])["k"], "v");
}

TEST(Log, ReplacesBytesThatAreNotUtf8InJson) {
  const std::string line = FormatJson({Level::kInfo, "e", "\xff", {}}, absl::UnixEpoch());
  EXPECT_EQ(nlohmann::json::parse(line)["text"], "\xef\xbf\xbd");
}

TEST(Log, LetsTheSinkLogItself) {
  std::vector<std::string> lines;
  Configure({.sink = [&lines](const std::string& line) {
    lines.push_back(line);
    if (lines.size() == 1) Write(Level::kInfo, "inner", "inner");
  }});
  Write(Level::kInfo, "outer", "outer");
  EXPECT_THAT(lines, ElementsAre("muster: outer", "muster: inner"));
  Configure({.sink = [](const std::string&) {}});
}

TEST(Log, KeepsEveryLineOfSeveralThreads) {
  CapturedLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 250; ++i) Write(Level::kInfo, "e", "line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(log.lines(), ::testing::SizeIs(1000));
}

}  // namespace
}  // namespace muster::log
