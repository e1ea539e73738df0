#include "agent/console/error_file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTorchForm[] = R"({"message": {"message": "ValueError: bad batch",)"
                              R"( "extraInfo": {"py_callstack": "Traceback: line 3",)"
                              R"( "timestamp": "1700000000"}}})";

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = ::testing::TempDir() + "/error_file_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

 private:
  std::string path_;
};

// The job has failed by one worker.
absl::Status Write(const std::string& path, const WorkerFailure& root_cause) {
  return WriteErrorFile(path, {.exit_code = 1, .root_cause = root_cause}, absl::Now());
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

TEST(ParseErrorRecord, ReadsMessageCallstackAndTimeOfTorchsForm) {
  const ErrorRecord record = ParseErrorRecord(kTorchForm);
  EXPECT_EQ(record.message, "ValueError: bad batch");
  EXPECT_EQ(record.callstack, "Traceback: line 3");
  EXPECT_EQ(record.unix_millis, 1700000000000);
}

TEST(ParseErrorRecord, TakesANumberAndAFractionAsTime) {
  EXPECT_EQ(ParseErrorRecord(R"({"message": {"message": "m", "extraInfo": {"timestamp": 1.5}}})")
                .unix_millis,
            1500);
}

TEST(ParseErrorRecord, IgnoresATimeThatIsNone) {
  for (const char* time : {R"("soon")", R"("nan")", "-1", "1e300", "[]", "null", R"("")"}) {
    const ErrorRecord record = ParseErrorRecord(
        absl::StrCat(R"({"message": {"message": "m", "extraInfo": {"timestamp": )", time, "}}}"));
    EXPECT_EQ(record.unix_millis, std::nullopt) << time;
    EXPECT_EQ(record.message, "m") << time;
  }
}

TEST(ParseErrorRecord, ReadsTheOlderFormWithAPlainMessage) {
  EXPECT_EQ(ParseErrorRecord(R"({"message": "it broke", "timestamp": 1700000000})"),
            (ErrorRecord{"it broke", "", 1700000000000}));
}

TEST(ParseErrorRecord, KeepsTheMessageWithoutExtraInfo) {
  EXPECT_EQ(ParseErrorRecord(R"({"message": {"message": "m", "extraInfo": 7}})"),
            (ErrorRecord{.message = "m"}));
}

TEST(ParseErrorRecord, ShowsTheTextOfAFileThatIsNoJson) {
  EXPECT_EQ(ParseErrorRecord("Segmentation fault\n").message, "Segmentation fault");
}

TEST(ParseErrorRecord, ShowsTheTextOfATruncatedFile) {
  const std::string cut(kTorchForm, 40);
  EXPECT_EQ(ParseErrorRecord(cut).message, cut);
}

TEST(ParseErrorRecord, ShowsTheTextOfJsonInAnotherForm) {
  for (const char* text : {"[1,2]", "{}", R"({"message": null})", R"({"message": {}})",
                           R"({"message": {"message": 3}})", "7"}) {
    EXPECT_EQ(ParseErrorRecord(text).message, text);
  }
}

TEST(ParseErrorRecord, SurvivesDeepNesting) {
  const std::string deep(500000, '[');
  EXPECT_EQ(ParseErrorRecord(deep).message, deep.substr(0, kErrorTextBytesMax));
}

TEST(ReadErrorFile, ShowsTheFirstBytesOfAHugeFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("error.json", std::string(kErrorFileBytesMax * 3, 'x'));
  const std::optional<ErrorRecord> record = ReadErrorFile(path);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, std::string(kErrorTextBytesMax, 'x'));
}

TEST(ReadErrorFile, HasNothingWhereNoFileOrAnEmptyOneIs) {
  const TemporaryDirectory directory;
  EXPECT_FALSE(ReadErrorFile(directory.Path("absent")));
  EXPECT_FALSE(ReadErrorFile(directory.Write("empty", "")));
  EXPECT_FALSE(ReadErrorFile(directory.Path(".")));
}

TEST(ReadErrorFile, DoesNotWaitForTheWriterOfAPipe) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo(directory.Path("fifo").c_str(), 0600), 0);
  EXPECT_FALSE(ReadErrorFile(directory.Path("fifo")));
}

TEST(WriteErrorFile, CopiesTheWorkersFileAndAddsTheExitCode) {
  const TemporaryDirectory directory;
  const WorkerFailure failure{
      .exit_code = 3, .message = "other", .error_file = directory.Write("worker.json", kTorchForm)};
  ASSERT_TRUE(Write(directory.Path("own.json"), failure).ok());
  nlohmann::json expected = nlohmann::json::parse(kTorchForm);
  expected["message"]["errorCode"] = 3;
  EXPECT_EQ(ReadJson(directory.Path("own.json")), expected);
}

TEST(WriteErrorFile, WritesTheNegativeNumberOfASignal) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(Write(directory.Path("own.json"), {.signal = 9, .message = "killed"}).ok());
  const nlohmann::json error = ReadJson(directory.Path("own.json"))["message"];
  EXPECT_EQ(error["errorCode"], -9);
  EXPECT_THAT(error["message"].get<std::string>(),
              AllOf(HasSubstr("SIGKILL"), HasSubstr(": killed")));
}

TEST(WriteErrorFile, MakesAFileFromWhatIsKnownIfTheWorkersIsElsewhere) {
  const TemporaryDirectory directory;
  const WorkerFailure failure{.exit_code = 1,
                              .message = "bad \xff byte",
                              .error_file = directory.Path("on_another_node.json"),
                              .unix_millis = 1700000000999};
  ASSERT_TRUE(Write(directory.Path("own.json"), failure).ok());
  const std::optional<ErrorRecord> record = ReadErrorFile(directory.Path("own.json"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, "bad \xef\xbf\xbd byte");
  EXPECT_EQ(record->unix_millis, 1700000000000);
}

TEST(WriteErrorFile, SaysHowAWorkerEndedThatSaidNothing) {
  const TemporaryDirectory directory;
  const WorkerFailure failure{.rank = Rank(2), .pid = 77, .exit_code = 9, .last_output = "bad\n"};
  ASSERT_TRUE(Write(directory.Path("own.json"), failure).ok());
  const std::optional<ErrorRecord> record = ReadErrorFile(directory.Path("own.json"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, "rank 2 (pid 77) exited with code 9");
  EXPECT_EQ(record->callstack, "bad\n");
}

// A launcher that was stopped, that never met the other nodes, that lost its server.
TEST(WriteErrorFile, SaysTheReasonWhereNoWorkerFailed) {
  const TemporaryDirectory directory;
  const JobOutcome outcome{.exit_code = 143, .reason = "got SIGTERM"};
  ASSERT_TRUE(
      WriteErrorFile(directory.Path("own.json"), outcome, absl::FromUnixSeconds(1700000000)).ok());
  const std::optional<ErrorRecord> record = ReadErrorFile(directory.Path("own.json"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, "got SIGTERM");
  EXPECT_EQ(record->unix_millis, 1700000000000);
  EXPECT_EQ(ReadJson(directory.Path("own.json"))["message"]["errorCode"], 143);
}

// Those whom a verdict ended are not at fault.
TEST(WriteErrorFile, SaysTheVerdictThatEndedTheWorkers) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(Write(directory.Path("own.json"),
                    {.signal = 15, .message = "ended", .ended_by = "rank 3 does not answer"})
                  .ok());
  EXPECT_EQ(ReadJson(directory.Path("own.json"))["message"]["message"], "rank 3 does not answer");
}

TEST(WriteErrorFile, NamesAPathThatCannotBeWritten) {
  const TemporaryDirectory directory;
  const absl::Status status = Write(directory.Path("absent/own.json"), {.exit_code = 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory.Path("absent/own.json")));
}

// Deep enough to end the process at the end of its stack, if it were copied or written.
TEST(ErrorFile, NestedWithoutEndIsTakenAsText) {
  const std::string deep = absl::StrCat(R"({"message": {"message": "m", "extraInfo": )",
                                        std::string(500'000, '['), std::string(500'000, ']'), "}}");
  EXPECT_EQ(ParseErrorRecord(deep).message, deep.substr(0, kErrorTextBytesMax));
  const TemporaryDirectory directory;
  const WorkerFailure failure{
      .exit_code = 3, .message = "ended", .error_file = directory.Write("worker.json", deep)};
  EXPECT_TRUE(Write(directory.Path("own.json"), failure).ok());
  EXPECT_EQ(ReadJson(directory.Path("own.json"))["message"]["message"], "ended");
}

}  // namespace
}  // namespace muster::agent
