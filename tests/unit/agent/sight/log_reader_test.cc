// Windows of log files: their bounds, where they begin and go on, and what is not read.
#include "agent/sight/log_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using status::LogsAsk;
using status::LogsOfNode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TemporaryDirectory;
using testing::WriteFile;

constexpr size_t kRoom = 1 << 20;

class LogReader : public ::testing::Test {
 protected:
  // A file of local rank `local_rank`.
  std::string File(int attempt, int local_rank, const std::string& name) const {
    const std::string folder = directory_.File(absl::StrCat("attempt_", attempt, "/", local_rank));
    std::filesystem::create_directories(folder);
    return absl::StrCat(folder, "/", name);
  }
  LogFiles Files(int attempt = 0, int num_ranks = 1) const {
    return {.run_directory = directory_.path(),
            .first_rank = 4,
            .num_ranks = num_ranks,
            .attempt = attempt};
  }
  LogsOfNode Read(const LogFiles& files, const LogsAsk& ask, size_t room = kRoom) const {
    const auto logs = ReadLogs(files, ask, std::nullopt, room);
    EXPECT_TRUE(logs.ok()) << logs.status();
    return logs.ok() ? *logs : LogsOfNode{};
  }

  TemporaryDirectory directory_;
};

TEST_F(LogReader, GivesTheLastLines) {
  WriteFile(File(0, 0, "stdout.log"), "one\ntwo\nthree\n");
  const LogsOfNode logs = Read(Files(), {.tail_lines = 2});
  ASSERT_THAT(logs.pieces, SizeIs(1));
  EXPECT_EQ(logs.pieces[0].text, "two\nthree\n");
  EXPECT_EQ(logs.pieces[0].from.rank, 4);
  EXPECT_EQ(logs.pieces[0].from.offset, 4);
  EXPECT_EQ(logs.pieces[0].next, 14);
}

TEST_F(LogReader, GivesALastLineWithoutItsEnd) {
  WriteFile(File(0, 0, "stdout.log"), "one\ntwo");
  EXPECT_EQ(Read(Files(), {.tail_lines = 1}).pieces[0].text, "two");
  EXPECT_EQ(Read(Files(), {.tail_lines = 9}).pieces[0].text, "one\ntwo");
  EXPECT_EQ(Read(Files(), {.tail_lines = 0}).pieces[0].text, "");
}

TEST_F(LogReader, GoesOnInWholeLines) {
  WriteFile(File(0, 0, "stdout.log"), "one\ntwo\nthr");
  const LogsOfNode logs = Read(Files(), {.places = {{.rank = 4, .stream = "stdout", .offset = 4}}});
  ASSERT_THAT(logs.pieces, SizeIs(1));
  EXPECT_EQ(logs.pieces[0].text, "two\n");
  EXPECT_THAT(Read(Files(), {.places = {{.rank = 4, .stream = "stdout", .offset = 8}}}).pieces,
              IsEmpty());
}

TEST_F(LogReader, GoesOnInTheNextAttempt) {
  WriteFile(File(0, 0, "stdout.log"), "one\n");
  WriteFile(File(2, 0, "stdout.log"), "again\n");
  const LogsOfNode logs =
      Read(Files(2), {.places = {{.rank = 4, .stream = "stdout", .offset = 4}}});
  ASSERT_THAT(logs.pieces, SizeIs(1));
  EXPECT_EQ(logs.pieces[0].text, "again\n");
  EXPECT_EQ(logs.pieces[0].from.attempt, 2);
}

TEST_F(LogReader, ReadsAKeptWorkersLogInTheAttemptThatStartedIt) {
  WriteFile(File(0, 0, "stdout.log"), "one\n");
  EXPECT_EQ(Read(Files(3), {.tail_lines = 5}).pieces[0].from.attempt, 0);
}

TEST_F(LogReader, NeverAnswersWithMoreThanItMay) {
  std::string text;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&text, "line \x01\x02\xff of many ", i, "\n");
  WriteFile(File(0, 0, "stdout.log"), text);
  WriteFile(File(0, 0, "stderr.log"), text);
  WriteFile(File(0, 1, "stdout.log"), std::string(1 << 20, 'x'));
  for (const size_t room : {4096, 20000, 1 << 20}) {
    for (const int64_t lines : {-1, 1000000}) {
      const LogsOfNode logs = Read(Files(0, 2), {.tail_lines = lines}, room);
      EXPECT_LE(ToJson(logs).size(), room);
      EXPECT_THAT(logs.pieces, SizeIs(3));
    }
  }
}

TEST_F(LogReader, GivesAllOfALogWindowByWindow) {
  std::string text;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  WriteFile(File(0, 0, "stdout.log"), text);
  std::string read;
  LogsAsk ask{.tail_lines = -1};
  for (int i = 0; i < 100; ++i) {
    const LogsOfNode logs = Read(Files(), ask, 4096);
    if (logs.pieces.empty()) break;
    read += logs.pieces[0].text;
    ask.places = {logs.pieces[0].from};
    ask.places[0].offset = logs.pieces[0].next;
  }
  EXPECT_EQ(read, text);
}

TEST_F(LogReader, FollowsNoLink) {
  WriteFile(directory_.File("secret"), "secret\n");
  ASSERT_EQ(symlink(directory_.File("secret").c_str(), File(0, 0, "stdout.log").c_str()), 0);
  EXPECT_EQ(ReadLogs(Files(), {.tail_lines = 9}, std::nullopt, kRoom).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(LogReader, SaysThatAJobKeepsNoLogs) {
  EXPECT_THAT(std::string(ReadLogs(Files(), {}, std::nullopt, kRoom).status().message()),
              HasSubstr("start it with --redirects=3"));
}

TEST_F(LogReader, FindsWhatAFailedRankSays) {
  WriteFile(File(0, 0, "error.json"),
            R"({"message": {"message": "ValueError: bad batch",
                "extraInfo": {"py_callstack": "at train.py", "timestamp": "1700000000"}}})");
  WriteFile(File(0, 1, "stderr.log"), "fine\nTraceback (most recent call last):\n  File x\n");
  const LogsOfNode logs = Read(Files(0, 2), {.first_error = true});
  ASSERT_THAT(logs.errors, SizeIs(2));
  EXPECT_EQ(logs.errors[0].rank, 4);
  EXPECT_THAT(logs.errors[0].text, HasSubstr("ValueError: bad batch"));
  EXPECT_THAT(logs.errors[1].text, ::testing::StartsWith("Traceback"));
}

}  // namespace
}  // namespace muster::agent
