#include "worker_runtime/train/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/field_checks.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

TrainOptions Parsed(const std::vector<std::string>& args) {
  const absl::StatusOr<TrainCommand> command = ParseTrainCommand(args);
  EXPECT_TRUE(command.ok()) << command.status();
  return command.ok() ? command->options : TrainOptions();
}

TEST(ParseTrainCommand, NeedsNoOption) {
  const TrainOptions options = Parsed({});
  EXPECT_THAT(options.data, IsEmpty());
  EXPECT_EQ(options.backend, "auto");
  EXPECT_THAT(options.saving.directory, IsEmpty());
  EXPECT_FALSE(options.print.hash);
}

TEST(ParseTrainCommand, NamesFileAndLineWhereTheBatchEquationDoesNotHoldForTheJob) {
  const std::string text = "{\"train_batch_size\": 64,\n\"train_micro_batch_size_per_gpu\": 3}";
  const plan::ConfigView files = {
      .read_file = [&](const std::string&) -> absl::StatusOr<std::string> { return text; },
      .facts = {{"world_size", "2"}}};
  EXPECT_THAT(
      ParseTrainCommand({"--deepspeed=ds.json"}, files).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("64 is not 3 x ? x 2"), HasSubstr("from ds.json:1: train_batch"))));
  EXPECT_THAT(ParseTrainCommand({"--deepspeed=ds.json", "--batch_size=4"}, files), IsOk());
}

TEST(InWordsOf, NamesTheOptionOfWhatTheEngineRefuses) {
  const auto command = ParseTrainCommand({"--stages=2", "--unit_costs", "heads:3"});
  ASSERT_THAT(command, IsOk());
  EXPECT_THAT(InWordsOf(command->options, plan::PlanError("unit_costs", ": 'heads' fits no unit")),
              StatusIs(absl::StatusCode::kInvalidArgument, "--unit_costs: 'heads' fits no unit"));
  const absl::Status other = absl::InvalidArgumentError("plan: unit_costs of no field");
  EXPECT_EQ(InWordsOf(command->options, other), other);
}

TEST(ParseTrainCommand, TrainsOnTheHostUnlessItIsToldOtherwise) {
  EXPECT_EQ(Parsed({}).plan.device, "cpu");
  EXPECT_EQ(Parsed({"--device=cuda", "--dtype=bf16"}).plan.device, "cuda");
  EXPECT_THAT(ParseTrainCommand({"--device=gpu"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--device=gpu"), HasSubstr("expected cpu or cuda"))));
}

TEST(ParseTrainCommand, NamesATypeThatAGpuDoesNotTrainIn) {
  EXPECT_THAT(ParseTrainCommand({"--device=cuda", "--dtype=f64"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--device=cuda computes in f32, bf16 and f16, not in f64")));
}

TEST(ParseTrainCommand, SurvivesTheLossOfOtherWorkersOnlyIfItIsToldTo) {
  EXPECT_FALSE(Parsed({}).survive);
  EXPECT_TRUE(Parsed({"--survive=yes"}).survive);
  EXPECT_FALSE(Parsed({"--survive=no"}).survive);
  EXPECT_THAT(ParseTrainCommand({"--survive=maybe"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--survive"), HasSubstr("maybe"))));
}

TEST(ParseTrainCommand, CapturesStepsOfAGpuAsItIsToldAndLeavesTheRestToTheEngine) {
  EXPECT_EQ(Parsed({}).capture_steps, std::nullopt);
  EXPECT_THAT(Parsed({"--device=cuda", "--capture_steps=yes"}).capture_steps, Optional(true));
  EXPECT_THAT(Parsed({"--capture_steps=no"}).capture_steps, Optional(false));
  EXPECT_THAT(ParseTrainCommand({"--capture_steps=yes"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs --device=cuda")));
}

TEST(ParseTrainCommand, RegistersBuffersOnlyOfGpusWithNcclAndOnlyIfAsked) {
  EXPECT_FALSE(Parsed({"--device=cuda", "--backend=nccl"}).register_buffers);
  EXPECT_FALSE(Parsed({"--register_buffers=no"}).register_buffers);
  EXPECT_TRUE(
      Parsed({"--device=cuda", "--backend=nccl", "--register_buffers=yes"}).register_buffers);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{}, {"--device=cuda", "--backend=gloo"}, {"--backend=nccl"}}) {
    std::vector<std::string> all = {"--register_buffers=yes"};
    all.insert(all.end(), args.begin(), args.end());
    EXPECT_THAT(ParseTrainCommand(all).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("needs --device=cuda and --backend=nccl, not --device=")));
  }
}

TEST(ParseTrainCommand, WarnsOfTheHangOfRegisteredBuffersWhereTheyAreOffered) {
  const auto command = ParseTrainCommand({"--help"});
  ASSERT_THAT(command, IsOk());
  const std::string help =
      absl::StrJoin(absl::StrSplit(command->help, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
  const size_t first = help.find("NVIDIA/nccl issue 2389: large calls");
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(help.find("NVIDIA/nccl issue 2389: large calls", first + 1), std::string::npos);
  EXPECT_THAT(help, HasSubstr("captured steps between nodes are exposed too"));
}

TEST(CheckCapture, RefusesWhatSeveralWorkersCannotCaptureAndSaysWhatTheyCan) {
  const auto refusal = [](const std::vector<std::string>& args, int size, bool captures) {
    std::vector<std::string> all = {"--device=cuda", "--capture_steps=yes"};
    all.insert(all.end(), args.begin(), args.end());
    return CheckCapture(Parsed(all), size, captures);
  };
  EXPECT_THAT(
      refusal({"--backend=gloo"}, 2, false),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("2 workers over --backend=gloo"), HasSubstr("--backend=nccl"))));
  EXPECT_THAT(refusal({"--backend=nccl", "--mode=ordered"}, 2, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--mode=fast")));
  EXPECT_THAT(refusal({"--backend=nccl"}, 2, true), IsOk());
  EXPECT_THAT(refusal({"--mode=ordered"}, 1, true), IsOk());
  EXPECT_THAT(CheckCapture(Parsed({"--capture_steps=no"}), 2, false), IsOk());
}

TEST(ParseTrainCommand, TakesSeveralFilesBehindOneOption) {
  EXPECT_THAT(Parsed({"--data", "a.txt", "b.txt", "--hash"}).data, ElementsAre("a.txt", "b.txt"));
}

TEST(ParseTrainCommand, AddsTheFilesOfARepeatedOption) {
  EXPECT_THAT(Parsed({"--data=a.txt", "--data", "b.txt"}).data, ElementsAre("a.txt", "b.txt"));
}

TEST(ParseTrainCommand, TakesBothSpellings) {
  EXPECT_EQ(Parsed({"--save=d", "--save_every=5"}).saving.every, 5);
  EXPECT_EQ(Parsed({"--save", "d", "--save-every", "5"}).saving.every, 5);
  EXPECT_EQ(Parsed({"--save=d", "--keep=3"}).saving.keep, 3);
}

TEST(ParseTrainCommand, TakesTheOptionsOfThePlan) {
  const TrainOptions options = Parsed({"--layers=2", "--batch-size=7", "--steps", "12"});
  EXPECT_EQ(options.plan.model.layers, 2);
  EXPECT_EQ(options.plan.batch_size, 7);
  EXPECT_EQ(options.plan.steps, 12);
}

// What a row does not say may differ has to be alike: a new row that is forgotten is safe.
TEST(ParseTrainCommand, HasAllValuesInCommonButThoseThatConcernOneRank) {
  const std::string common = TextOfCommonValues(Parsed({}));
  for (const char* own :
       {"--data=f", "--log_every=3", "--trace=d", "--trace_steps=3", "--memory_limit=8"}) {
    EXPECT_EQ(TextOfCommonValues(Parsed({own})), common) << own;
  }
  for (const char* shared : {"--steps=3", "--batch_size=3", "--num_heads=2", "--save=d", "--quiet",
                             "--sample_tokens=0", "--prompt=a", "--survive=yes", "--seed=3"}) {
    EXPECT_NE(TextOfCommonValues(Parsed({shared})), common) << shared;
  }
}

TEST(ParseTrainCommand, KeepsAPromptAsItIs) {
  EXPECT_THAT(Parsed({"--prompt", " a\n"}).prompt, Optional(std::string(" a\n")));
  EXPECT_EQ(Parsed({}).prompt, std::nullopt);
}

TEST(ParseTrainCommand, AllowsNoSample) {
  EXPECT_EQ(Parsed({"--sample_tokens=0"}).sample_tokens, 0);
}

TEST(ParseTrainCommand, GivesHelpThatNamesEveryKindOfOptionAndTheExitCodes) {
  const absl::StatusOr<TrainCommand> command = ParseTrainCommand({"--help"});
  ASSERT_TRUE(command.ok());
  EXPECT_THAT(command->help, AllOf(HasSubstr("--data=FILE"), HasSubstr("--num_layers=N"),
                                   HasSubstr("--plan="), HasSubstr("Exit codes:")));
  EXPECT_THAT(command->help, Not(HasSubstr("\n\n\n")));
}

struct WrongLine {
  std::vector<std::string> args;
  std::vector<const char*> said;
};

class Refused : public ::testing::TestWithParam<WrongLine> {};

TEST_P(Refused, InOneSentenceThatNamesTheFlag) {
  const absl::StatusOr<TrainCommand> command = ParseTrainCommand(GetParam().args);
  ASSERT_THAT(command.status(), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* part : GetParam().said) {
    EXPECT_THAT(std::string(command.status().message()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    ParseTrainCommand, Refused,
    ::testing::Values(
        WrongLine{{"--dta", "x"}, {"--dta", "--data"}}, WrongLine{{"--save="}, {"--save"}},
        WrongLine{{"--save"}, {"--save"}}, WrongLine{{"--save", "--hash"}, {"--save", "--hash"}},
        WrongLine{{"--save=d", "--save_every=0"}, {"--save_every", "0"}},
        WrongLine{{"--save=d", "--save_every=often"}, {"--save_every", "often"}},
        WrongLine{{"--save_every=5"}, {"--save_every", "--save="}},
        WrongLine{{"--save=d", "--keep=0"}, {"--keep", "0"}},
        WrongLine{{"--keep=2"}, {"--keep", "--save="}},
        WrongLine{{"--save=d", "--base=d", "--lora=2", "--keep=2"}, {"--keep", "--base=d"}},
        WrongLine{{"--save=./d/", "--base=d/step_00000001", "--lora=2", "--keep=2"}, {"--keep"}},
        WrongLine{{"--sample_tokens=-1"}, {"--sample_tokens", "-1"}},
        WrongLine{{"--log_every=x"}, {"--log_every", "x"}},
        WrongLine{{"--batch_size=0"}, {"batch_size", "0"}}, WrongLine{{"book.txt"}, {"book.txt"}}));

}  // namespace
}  // namespace muster::train
