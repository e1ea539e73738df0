// muster-train under muster run, with models that train in seconds: what it learns, saves and goes
// on from, what it refuses, and how it ends when a rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/job_under_test.h"
#include "tests/support/small_file_system.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const Arguments kTinyModel = {"--layers=1",     "--heads=2",       "--width=16", "--context=16",
                              "--batch_size=2", "--plan=ddp",      "--seed=7",   "--lr=1e-2",
                              "--log_every=1",  "--bucket_mb=0.01"};

std::vector<std::string> LinesWith(const std::string& text, const std::string& part) {
  std::vector<std::string> found;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StrContains(line, part)) found.emplace_back(line);
  }
  return found;
}

// What follows `name` in the last line that has it, up to a blank; empty if there is none.
std::string LastValue(const std::string& text, const std::string& name) {
  const std::vector<std::string> lines = LinesWith(text, name);
  if (lines.empty()) return "";
  absl::string_view rest = lines.back();
  rest.remove_prefix(rest.find(name) + name.size());
  rest = absl::StripLeadingAsciiWhitespace(rest);
  return std::string(rest.substr(0, rest.find_first_of(" \n")));
}

double Loss(const std::string& line) {
  double loss = -1;
  EXPECT_TRUE(absl::SimpleAtod(LastValue(line, "  loss "), &loss)) << line;
  return loss;
}

class TrainJob : public JobTest {
 protected:
  // A text that a tiny model can learn.
  std::string Text() const {
    std::string text;
    for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "abcdefgh ", i % 10, "\n");
    WriteFile(Out("text"), text);
    return Out("text");
  }

  Arguments CommandOf(int num_ranks, const Arguments& more) const {
    Arguments command = {"run", absl::StrCat("--nproc_per_node=", num_ranks), MusterTrainBinary()};
    if (std::find(more.begin(), more.end(), "--data") == more.end()) {
      command = command + Arguments{"--data", Text()};
    }
    return command + kTinyModel + more;
  }

  SubprocessResult Train(int num_ranks, const Arguments& more) const {
    return Run(CommandOf(num_ranks, more));
  }

  // The hash that a training of two ranks ends with.
  std::string HashOf(const Arguments& more) const {
    const SubprocessResult result = Train(2, more + Arguments{"--hash", "--quiet"});
    EXPECT_THAT(result, ExitsWith(0));
    const std::string hash = LastValue(result.out, "hash=");
    EXPECT_THAT(hash, SizeIs(64)) << ToString(result);
    return hash;
  }
};

using Training = TrainJob;

TEST_F(Training, OfTwoRanksLearnsTheTextAndSaysSoOnce) {
  const SubprocessResult result = Train(2, {"--steps=60", "--sample_tokens=40"});
  ASSERT_THAT(result, ExitsWith(0));
  const std::vector<std::string> lines = LinesWith(result.out, "  loss ");
  ASSERT_THAT(lines, SizeIs(60)) << "one line per step, from rank 0 alone";
  EXPECT_GT(Loss(lines.front()), 5);
  EXPECT_LT(Loss(lines.back()), 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("1 layer, 2 heads, hidden size 16, context 16"),
                                HasSubstr("2 ranks x 2 rows x 16 tokens = 64 tokens per step"),
                                HasSubstr("the model writes"), HasSubstr("tok/s")));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(Training, NeedsNoLauncherForOneRank) {
  SubprocessOptions options = OptionsFor({});
  options.argv = Arguments{MusterTrainBinary(), "--data", Text()} + kTinyModel +
                 Arguments{"--steps=3", "--sample_tokens=0", "--hash"};
  const SubprocessResult result = Subprocess(options).Wait();
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("1 rank x 2 rows"));
  EXPECT_THAT(result.out, ContainsRegex("\nhash=[0-9a-f]*\n$"));
}

// accelerate starts a single process so: without torchrun's variables.
TEST_F(Training, OfOneRankNeedsNoVariablesOfRanks) {
  const SubprocessResult result =
      Run(Arguments{"run", "--rank_variables=off", MusterTrainBinary(), "--data", Text()} +
          kTinyModel + Arguments{"--steps=3", "--sample_tokens=0"});
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("1 rank x 2 rows"));
}

// Every GPU is hidden from it, where there are any.
TEST_F(Training, SaysInOneSentenceThatThereIsNoGpuToTrainOn) {
  SubprocessOptions options = OptionsFor({});
  options.argv = Arguments{"/usr/bin/env", "CUDA_VISIBLE_DEVICES=", MusterTrainBinary(), "--data",
                           Text(),         "--device=cuda"};
  const SubprocessResult result = Subprocess(options).Wait();
  EXPECT_NE(result.exit_code, 0) << ToString(result);
  EXPECT_THAT(LinesWith(result.err, ""), SizeIs(2)) << ToString(result);  // and what follows it
  EXPECT_THAT(result.err, AllOf(HasSubstr("muster-train: device cuda: "), HasSubstr("use ")));
}

TEST_F(Training, WithoutDataTakesTheTextsOfTheMachine) {
  if (!std::filesystem::is_directory("/usr/share/common-licenses"))
    GTEST_SKIP() << "this machine has no /usr/share/common-licenses";
  SubprocessOptions options = OptionsFor({});
  options.argv =
      Arguments{MusterTrainBinary()} + kTinyModel + Arguments{"--steps=1", "--sample_tokens=0"};
  const SubprocessResult result = Subprocess(options).Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, ContainsRegex("  data .* of text"));
}

TEST_F(Training, PrintsNothingButTheHashWhenQuiet) {
  const SubprocessResult result = Train(2, {"--steps=2", "--quiet", "--hash"});
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(LinesWith(result.out, ""), SizeIs(2)) << "the hash, and what follows its line end";
  EXPECT_THAT(result.out, HasSubstr("hash="));
}

using Resuming = TrainJob;

TEST_F(Resuming, GoesOnToTheSameParametersAsATrainingWithoutABreak) {
  const std::string whole = HashOf({"--steps=8"});
  HashOf({"--steps=5", "--save", Out("saved")});
  EXPECT_EQ(HashOf({"--steps=8", "--resume", Out("saved")}), whole);
}

TEST_F(Resuming, TakesTheNewestOfSeveralCheckpointsAndSaysWhich) {
  ASSERT_THAT(Train(2, {"--steps=5", "--save", Out("saved"), "--save_every=2"}), ExitsWith(0));
  const SubprocessResult result = Train(2, {"--steps=6", "--resume", Out("saved")});
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("after step 5"));
  EXPECT_THAT(LinesWith(result.out, "  loss "), SizeIs(1));
}

// One that is cut off, as a copy that was broken off leaves it, and one that lacks a file. Those
// that were passed over are replaced when training comes to their steps again.
TEST_F(Resuming, PassesOverNewerCheckpointsThatAreNotWholeAndSaysSo) {
  ASSERT_THAT(Train(2, {"--steps=6", "--save", Out("saved"), "--save_every=2"}), ExitsWith(0));
  const std::string damaged = Out("saved/step_00000004");
  std::filesystem::resize_file(damaged + "/slices_00001.safetensors", 100);
  std::filesystem::remove(Out("saved/step_00000006/training.json"));
  const Arguments both = {"--save", Out("saved"), "--resume", Out("saved"), "--save_every=2"};

  const SubprocessResult named = Train(2, {"--steps=8", "--resume", damaged});
  EXPECT_THAT(named, ExitsWith(2));
  EXPECT_THAT(named.err, ContainsRegex("muster-train: .*step_00000004/slices_00001.safetensors"));
  const SubprocessResult result = Train(2, Arguments{"--steps=8", "--quiet"} + both);

  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("passed over: " + Out("saved/step_00000006") + " is incomplete: "),
                    HasSubstr("passed over: " + damaged + "/slices_00001.safetensors")));
  const SubprocessResult next = Train(2, Arguments{"--steps=9"} + both);
  ASSERT_THAT(next, ExitsWith(0));
  EXPECT_THAT(next.out, AllOf(HasSubstr("after step 8"), Not(HasSubstr("passed over"))));
}

TEST_F(Resuming, BeginsWhereThePlaceOfCheckpointsIsStillEmpty) {
  const Arguments both = {"--save", Out("saved"), "--resume", Out("saved")};
  EXPECT_THAT(Train(2, Arguments{"--steps=2"} + both), ExitsWith(0));
  const SubprocessResult result = Train(2, Arguments{"--steps=3"} + both);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(LinesWith(result.out, "  loss "), SizeIs(1)) << "the same command line goes on";
}

TEST_F(Resuming, HasNothingToTrainWhereAllStepsAreDone) {
  const std::string saved = HashOf({"--steps=3", "--save", Out("saved")});
  EXPECT_EQ(HashOf({"--steps=3", "--resume", Out("saved")}), saved);
}

struct BadInput {
  const char* name;
  Arguments arguments;  // {OUT} stands for the directory of this test
  std::vector<const char*> said;
};

std::string ReplaceOut(std::string text, const std::string& out) {
  const size_t at = text.find("{OUT}");
  if (at != std::string::npos) text.replace(at, 5, out);
  return text;
}

class BadTraining : public TrainJob, public ::testing::WithParamInterface<BadInput> {
 protected:
  // What the cases refer to.
  void SetUp() override {
    TrainJob::SetUp();
    WriteFile(Out("empty"), "");
    WriteFile(Out("short"), "too short");
    std::string header(1024, '\0');
    const int32_t fields[] = {20240520, 1, 40};
    header.replace(0, sizeof(fields), reinterpret_cast<const char*>(fields), sizeof(fields));
    WriteFile(Out("wrong.bin"), header + std::string(80, '\xff'));
    WriteFile(Out("cut.bin"), header + "ab");
    std::filesystem::create_directory(Out("directory"));
  }
};

TEST_P(BadTraining, EndsOnAllRanksWithOneSentence) {
  Arguments arguments;
  for (const std::string& argument : GetParam().arguments) {
    arguments.push_back(ReplaceOut(argument, out()));
  }
  const SubprocessResult result = Train(2, Arguments{"--steps=2"} + arguments);
  EXPECT_THAT(result, ExitsWith(2));
  // Lines of the workers; the launcher's summary shows them again, indented.
  std::vector<std::string> said;
  for (const std::string& line : LinesWith(result.err, "muster-train: ")) {
    if (absl::StartsWith(line, "muster-train: ")) said.push_back(line);
  }
  ASSERT_THAT(said, SizeIs(1)) << ToString(result);
  for (const char* part : GetParam().said) EXPECT_THAT(said[0], ContainsRegex(part));
}

std::string NameOfCase(const ::testing::TestParamInfo<BadInput>& info) { return info.param.name; }
void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

INSTANTIATE_TEST_SUITE_P(
    Data, BadTraining,
    ::testing::Values(BadInput{"IsMissing", {"--data", "{OUT}/none"}, {"/none"}},
                      BadInput{"IsEmpty", {"--data", "{OUT}/empty"}, {"/empty"}},
                      BadInput{"IsADirectory", {"--data", "{OUT}/directory"}, {"/directory"}},
                      BadInput{"IsShorterThanTheContext", {"--data", "{OUT}/short"}, {"9", "17"}},
                      BadInput{"IsATokenFileCutOff", {"--data", "{OUT}/cut.bin"}, {"cut.bin"}},
                      BadInput{"IsMixed", {"--data", "{OUT}/text", "{OUT}/wrong.bin"}, {"text"}}),
    NameOfCase);

INSTANTIATE_TEST_SUITE_P(
    Options, BadTraining,
    ::testing::Values(
        BadInput{"HeadsDoNotDivideTheWidth", {"--heads=3"}, {"heads", "16", "3"}},
        BadInput{"BatchIsZero", {"--batch_size=0"}, {"batch.size", "0"}},
        BadInput{"OptionIsMisspelt", {"--stepz=3"}, {"--stepz", "--steps"}},
        BadInput{"PlanIsUnknown", {"--plan=zeus"}, {"zeus"}},
        BadInput{"ModelIsLargerThanTheMachine", {"--width=65536", "--layers=100"}, {"parameters"}},
        BadInput{"TakesMoreThanItsMemory",
                 {"--layers=4", "--heads=8", "--width=512", "--memory_limit=0.1"},
                 {"a rank takes [0-9]* MiB, and its memory is 102 MiB", "--plan=full-shard"}},
        BadInput{"BackendIsUnknown", {"--backend=pigeon"}, {"pigeon", "gloo"}},
        BadInput{"PromptIsEmpty", {"--prompt", ""}, {"--prompt"}},
        BadInput{"SavePlaceIsAFile", {"--save", "{OUT}/short"}, {"/short"}},
        BadInput{"ResumedCheckpointIsMissing", {"--resume", "{OUT}/directory"}, {"/directory"}}),
    NameOfCase);

// All ranks plan by the least that one of them has, and so refuse together.
TEST_F(Training, IsRefusedOnAllRanksWhereOneLacksTheMemory) {
  Arguments command = {
      "run",         "--nproc_per_node=2",
      "--no_python", "/bin/sh",
      "-c",          "test $RANK = 1 && limit=0.1; exec \"$@\" --memory_limit=${limit:-8}",
      "sh",          MusterTrainBinary(),
      "--data",      Text()};
  const SubprocessResult result =
      Run(command + kTinyModel + Arguments{"--layers=4", "--heads=8", "--width=512"});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("muster-train: a rank takes"));
  EXPECT_THAT(result.err, HasSubstr("its memory is 102 MiB"));
}

TEST_F(Training, RefusesACheckpointOfAnotherModelAndNamesTheDifference) {
  ASSERT_THAT(Train(1, {"--steps=1", "--save", Out("saved")}), ExitsWith(0));
  const SubprocessResult wider = Train(2, {"--steps=2", "--width=32", "--resume", Out("saved")});
  EXPECT_THAT(wider, ExitsWith(2));
  EXPECT_THAT(wider.err, ContainsRegex("muster-train: .*another model.*16.*32"));
  const SubprocessResult heads = Train(2, {"--steps=2", "--heads=4", "--resume", Out("saved")});
  EXPECT_THAT(heads, ExitsWith(2));
  EXPECT_THAT(heads.err, HasSubstr("heads is 2 there and 4 here"));
}

// Rotary positions of another base have no shape that differs.
TEST_F(Training, RefusesACheckpointWhosePartsDifferInNoShape) {
  const Arguments parts = {"--steps=2", "--mlp_size=64", "--kv_heads=1"};
  ASSERT_THAT(Train(1, Arguments{"--model=llama-2-7b"} + parts + Arguments{"--save", Out("saved")}),
              ExitsWith(0));
  const SubprocessResult other =
      Train(1, Arguments{"--model=llama-3-8b"} + parts + Arguments{"--resume", Out("saved")});
  EXPECT_THAT(other, ExitsWith(2));
  EXPECT_THAT(other.err, HasSubstr("parts is "));
}

TEST_F(Training, EndsAtATokenOutsideTheVocabularyAndNamesTheFile) {
  std::string header(1024, '\0');
  const int32_t fields[] = {20240520, 1, 40};
  header.replace(0, sizeof(fields), reinterpret_cast<const char*>(fields), sizeof(fields));
  WriteFile(Out("wrong.bin"), header + std::string(80, '\xff'));
  const SubprocessResult result = Train(2, {"--steps=2", "--data", Out("wrong.bin")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: .*wrong\\.bin.*65535"));
}

TEST_F(Training, RefusesAFileThatMayNotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string text = Text();
  chmod(text.c_str(), 0);
  const SubprocessResult result = Train(2, {"--steps=2", "--data", text});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr(text));
}

TEST_F(Training, GoesOnWhereThereIsNoSpaceForACheckpointAndEndsWhereThereIsNoneForTheLast) {
  const SmallFileSystem full(Out("saved"), "200k");
  if (!full.mounted()) GTEST_SKIP() << full.why_not();
  const SubprocessResult result = Train(2, {"--steps=9", "--save", Out("saved"), "--save_every=1"});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: .*(space|full)"));
  EXPECT_THAT(result.out, HasSubstr("saved after step 1 "));
  EXPECT_THAT(result.out, ContainsRegex("not saved after step 8: .*(space|full).*; earlier "
                                        "checkpoints stay; training goes on"));
  EXPECT_THAT(result.out, HasSubstr("step 9/9"));
  EXPECT_THAT(Train(2, {"--steps=1", "--resume", Out("saved")}), ExitsWith(0));
}

TEST_F(Training, SavesWhatAStepThatIsNotFiniteHasLeftAsItWas) {
  const Arguments diverges = {"--steps=60", "--lr=1e6", "--save", Out("saved")};
  const SubprocessResult result = Train(2, diverges);
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, ContainsRegex("step [0-9]+: .* not finite.*; what was trained until step "
                                        "[0-9]+ is in .*saved"));
  EXPECT_THAT(Train(1, {"--steps=1", "--resume", Out("saved")}), ExitsWith(0));
}

TEST_F(Training, RefusesRanksWhoseDataAreOthersOfTheSameLength) {
  WriteFile(Out("text0"), std::string(1000, 'a'));
  WriteFile(Out("text1"), std::string(999, 'a') + "b");
  const std::string worker =
      ShellScript("worker.sh", absl::StrCat("exec ", MusterTrainBinary(), " --data=", Out("text"),
                                            "$RANK --steps=2 --layers=1 --heads=2 --width=16 "
                                            "--context=16 --batch_size=2"));
  const SubprocessResult result = Run({"run", "--nproc_per_node=2", worker});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err,
              ContainsRegex("SHA-256 of --data is [0-9a-f]+ on rank 0 and .* on rank 1"));
}

TEST_F(Training, RefusesRanksOfWhichOneWasGivenAnotherOption) {
  const std::string worker =
      ShellScript("worker.sh", absl::StrCat("exec ", MusterTrainBinary(),
                                            " --steps=2 --layers=1 --heads=2 --width=16 "
                                            "--context=16 --batch_size=2 --sample_tokens=1$RANK"));
  const SubprocessResult result = Run({"run", "--nproc_per_node=2", worker});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err,
              HasSubstr("--sample_tokens is 10 on rank 0 and --sample_tokens is 11 on rank 1"));
}

TEST_F(Training, GoesOnWhereOneRankAloneTracesAndEndsForAllWhereItCannot) {
  const auto trace_of_rank_1 = [this](const std::string& directory) {
    const std::string worker =
        ShellScript("worker.sh", absl::StrCat("[ $RANK = 0 ] || trace=--trace=", directory,
                                              "\nexec ", MusterTrainBinary(),
                                              " $trace --steps=2 --layers=1 --heads=2 "
                                              "--width=16 --context=16 --batch_size=2 "
                                              "--sample_tokens=0"));
    return Run({"run", "--nproc_per_node=2", worker});
  };
  EXPECT_THAT(trace_of_rank_1(Out("traces")), ExitsWith(0));
  EXPECT_FALSE(FilesBelow(Out("traces")).empty());
  WriteFile(Out("file"), "");
  const SubprocessResult result = trace_of_rank_1(Out("file"));
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: rank 1: .*file"));
}

TEST_F(Training, SaysWhatItGoesOnWithThatItWasNotTrainedWith) {
  ASSERT_THAT(Train(1, {"--steps=2", "--save", Out("saved")}), ExitsWith(0));
  const SubprocessResult same = Train(1, {"--steps=2", "--resume", Out("saved")});
  EXPECT_THAT(same.out, Not(HasSubstr("settings that differ")));
  const SubprocessResult other =
      Train(1, {"--steps=2", "--resume", Out("saved"), "--seed=9", "--lr=0.5"});
  EXPECT_THAT(other, ExitsWith(0));
  EXPECT_THAT(other.out, AllOf(HasSubstr("after step 2; settings that differ: "),
                               HasSubstr("seed is 9 and was 7"),
                               HasSubstr("learning_rate.peak is 0.5 and was 0.01")));
}

class Ending : public TrainJob {
 protected:
  // A training that goes on until somebody ends it, in its loop.
  Subprocess StartLong(const Arguments& more = {}) const {
    Subprocess job = Start(CommandOf(2, Arguments{"--steps=100000000"} + more));
    EXPECT_TRUE(job.WaitForOutput("step         2/"));
    return job;
  }
};

TEST_F(Ending, OfARankByKillEndsTheOthersWhoNameIt) {
  Subprocess job = StartLong();
  const pid_t victim = WorkerOf(1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: .*rank 1")) << ToString(result);
}

TEST_F(Ending, BySignalSavesFirstAndTheTrainingGoesOnFromThere) {
  Subprocess job = StartLong({"--save", Out("saved")});
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.out, HasSubstr("SIGTERM"));
  const std::string step = LastValue(result.out, " after step ");
  const SubprocessResult resumed = Train(2, {"--steps=1", "--resume", Out("saved")});
  EXPECT_THAT(resumed, ExitsWith(0));
  EXPECT_THAT(resumed.out, HasSubstr("after step " + step));
}

TEST_F(Ending, BySignalToOneRankEndsAllAfterTheSameStep) {
  Subprocess job = StartLong({"--save", Out("saved")});
  const pid_t worker = WorkerOf(1);
  ASSERT_GT(worker, 0);
  kill(worker, SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.out, HasSubstr("saved after step "));
}

TEST_F(Ending, BySignalWithoutAPlaceToSaveSaysThatNothingIsSaved) {
  Subprocess job = StartLong();
  job.Signal(SIGINT);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGINT));
  EXPECT_THAT(result.out, HasSubstr("nothing is saved"));
}

}  // namespace
}  // namespace muster::testing
