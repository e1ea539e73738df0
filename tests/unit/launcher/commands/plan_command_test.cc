#include "launcher/commands/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

using Args = std::vector<std::string>;

void ExpectRefused(const Args& args, const std::string& message) {
  EXPECT_THAT(PlanCommandText(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

std::string HashOf(const Args& args) {
  const absl::StatusOr<std::string> text = PlanCommandText(args);
  if (!text.ok()) return text.status().ToString();
  const size_t begin = text->find("hash ");
  return text->substr(begin, text->find('\n', begin) - begin);
}

TEST(PlanCommand, PlansAKnownModelForSoManyRanks) {
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m", "--world_size=8"}),
              IsOkAndHolds(AllOf(HasSubstr("gpt2-124m of 12 layers, 12 heads, hidden size 768"),
                                 HasSubstr("124,439,808"), HasSubstr("for 8 ranks"))));
}

TEST(PlanCommand, ShowsWhereTheRanksOfAMeshLie) {
  EXPECT_THAT(PlanCommandText(
                  {"--model=gpt2-124m", "--plan=zero-3", "--mesh=pp=2,shard=4", "--world_size=16"}),
              IsOkAndHolds(AllOf(HasSubstr("mesh, pp=2 x dp=2 x shard=4:"),
                                 ContainsRegex("node 1 +ranks 8-15: pp=1, dp=0-1, shard=0-3"),
                                 ContainsRegex("along pp +groups of 2 ranks, each over 2 nodes"),
                                 ContainsRegex("shard_ranks +4 +--mesh"),
                                 ContainsRegex("stages +2 +--mesh"),
                                 ContainsRegex("mesh +pp=2,shard=4 +--mesh"))));
  EXPECT_THAT(PlanCommandText({"--plan=zero-3", "--mesh=pp=2", "--world_size=4"}),
              IsOkAndHolds(Not(ContainsRegex("shard_ranks.*--mesh"))));
  ExpectRefused({"--mesh=pp=3", "--world_size=16"}, "16 ranks cannot be divided into 3 stages");
  ExpectRefused({"--plan=zero-3", "--mesh=pp=2,shard=3", "--world_size=16"},
                "--mesh is 3, which does not divide");
  ExpectRefused({"--mesh=dp=4", "--world_size=16"},
                "--mesh: dp is 4, and 16 ranks lie over dp=16; dp=16 fits, or leave it out");
}

// Thousands of ranks are proven like others, so nothing is left to say of them.
TEST(PlanCommand, PlansThousandsOfRanks) {
  EXPECT_THAT(PlanCommandText({"--model=llama-3-70b", "--plan=zero-3", "--stages=8",
                               "--accumulation=64", "--world_size=4096", "--dtype=bf16"}),
              IsOkAndHolds(AllOf(HasSubstr("for 4,096 ranks"), HasSubstr("and 504 more"))));
  // Their sums are added in several ways, and each rank hears of all others.
  EXPECT_THAT(PlanCommandText({"--model=llama-3-70b", "--mode=ordered", "--accumulation=3",
                               "--world_size=4096", "--dtype=bf16"}),
              IsOkAndHolds(HasSubstr("for 4,096 ranks")));
}

TEST(PlanCommand, TellsAGpusMemoryInEveryTypeThatItComputesIn) {
  for (const std::string dtype : {"f32", "bf16", "f16"}) {
    EXPECT_THAT(
        PlanCommandText({"--model=gpt2-124m", "--device=cuda", absl::StrCat("--dtype=", dtype)}),
        IsOkAndHolds(AllOf(ContainsRegex("products \\(cuBLASLt\\) +32 MiB"),
                           ContainsRegex("pinned for copies, at most +72 MiB"))));
  }
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m"}), IsOkAndHolds(Not(HasSubstr("cuBLASLt"))));
}

// Attention by cuDNN works in as much as the gradients of one layer do: in f32, or all of dS where
// they have the same bits in every run.
TEST(PlanCommand, CountsWhatAttentionByCudnnWorksIn) {
  const auto activations = [](const Args& more) {
    Args args = {"--model=gpt2-124m", "--device=cuda", "--dtype=bf16", "--batch_size=8"};
    args.insert(args.end(), more.begin(), more.end());
    const absl::StatusOr<std::string> text = PlanCommandText(args);
    EXPECT_THAT(text, IsOk());
    const std::vector<std::string> words =
        absl::StrSplit(text->substr(text->find("  activations, at their peak")),
                       absl::ByAnyChar(" \n"), absl::SkipEmpty());
    int64_t bytes = 0;  // "activations, at their peak 3.02 GiB 3,245,381,888 bytes"
    EXPECT_TRUE(absl::SimpleAtoi(absl::StrReplaceAll(words[6], {{",", ""}}), &bytes)) << words[6];
    return static_cast<double>(bytes) / (1 << 20);
  };
  const double own = activations({"--cuda_attention=own"});
  EXPECT_NEAR(activations({}) - own, 48, 12);
  EXPECT_EQ(activations({"--mode=ordered"}),
            activations({"--cuda_attention=own", "--mode=ordered"}));
  EXPECT_NEAR(activations({"--cuda_attention=cudnn"}) - own, 48, 12);
  EXPECT_NEAR(activations({"--cuda_attention=cudnn", "--mode=ordered"}) - own, 192, 12);
  EXPECT_THAT(PlanCommandText({"--device=cuda", "--dtype=bf16", "--cuda_attention=auto"}),
              IsOkAndHolds(ContainsRegex("attention +by cuDNN")));
}

// The small bucket is the first, so that its reduction starts early, as the engine does it.
TEST(PlanCommand, ShowsBucketsInTheOrderInWhichTheEngineReducesThem) {
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m", "--world_size=2", "--verbose"}),
              IsOkAndHolds(ContainsRegex("order of their reduction: [0-9]+\n  1 MiB, 25 MiB, ")));
}

TEST(PlanCommand, TakesTheSizesOfAKnownModelBesideThoseThatAreGiven) {
  EXPECT_THAT(PlanCommandText({"--model", "gpt2-124m", "--layers=3", "--vocabulary=300"}),
              IsOkAndHolds(HasSubstr(
                  "3 layers, 12 heads, hidden size 768, context 1024, vocabulary 300, in f32")));
}

TEST(PlanCommand, SaysFirstWhetherTheDevicesThatAreNamedHoldIt) {
  const auto first_line = [](const Args& args) {
    const absl::StatusOr<std::string> text = PlanCommandText(args);
    EXPECT_THAT(text, IsOk());
    return text->substr(0, text->find('\n'));
  };
  const std::string takes = "each rank takes [0-9.]+ [GM]iB and sends [0-9.]+ [GM]iB per step";
  EXPECT_THAT(first_line({"--model=gpt2-124m", "--world_size=2"}), MatchesRegex(takes));
  EXPECT_THAT(first_line({"--model=gpt2-124m", "--world_size=2", "--memory_limit=8"}),
              MatchesRegex(takes + "; it fits in the 8 GiB of --memory_limit"));
  EXPECT_THAT(first_line({"--model=gpt2-124m", "--device=cuda", "--gpu=h100"}),
              MatchesRegex("each rank takes .*; it fits in the [0-9.]+ GiB of h100"));
  EXPECT_THAT(first_line({"--model=llama-3-8b", "--device=cuda", "--gpu=h100", "--dtype=bf16",
                          "--world_size=8"}),
              MatchesRegex(takes + "; it does not fit: a rank takes .*, and its memory is "
                                   "[0-9.]+ GiB; the cheapest change that fits is --plan=.*"));
}

TEST(PlanCommand, CutsTheModelIntoStages) {
  EXPECT_THAT(
      PlanCommandText({"--model=gpt2-124m", "--world_size=8", "--plan=zero-1", "--stages=4",
                       "--accumulation=13"}),
      IsOkAndHolds(AllOf(HasSubstr("pipeline of 4 stages, one forward, one backward, each of 2"),
                         ContainsRegex("stage 0, embedding to h.[0-9]+ +[0-9.]+ GiB of memory"),
                         HasSubstr("3/16 of a step (18.8 %)"))));
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m", "--world_size=8", "--stages=4",
                               "--accumulation=8", "--stage_schedule=interleaved"}),
              IsOkAndHolds(AllOf(HasSubstr("pipeline of 8 stages, interleaved, each of 2 ranks"),
                                 ContainsRegex("stage 7, .*head +[0-9.]+ [GM]iB of memory"))));
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m", "--world_size=4", "--stages=4",
                               "--accumulation=8", "--stage_schedule=zbv"}),
              IsOkAndHolds(HasSubstr("pipeline of 8 stages, zbv, each of 1 rank")));
  for (const char* model : {"--model=gpt2-124m", "--model=llama-3.2-1b"}) {
    EXPECT_THAT(PlanCommandText({model, "--world_size=2", "--stages=2", "--accumulation=4",
                                 "--unit_costs", "embedding:30", "*:1"}),
                IsOkAndHolds(AllOf(ContainsRegex("stage 0, embedding .*[0-9] % of the time"),
                                   ContainsRegex("wait .* % of a step, by --unit_costs"),
                                   ContainsRegex("stage 1, .* to head .*[0-9] % of the time"))));
  }
  ExpectRefused({"--world_size=2", "--stages=2", "--accumulation=4", "--unit_costs", "h.*:1"},
                "--unit_costs: no cost for unit embedding; add embedding:COST");
  ExpectRefused({"--world_size=2", "--stages=2", "--accumulation=4", "--unit_costs=measured"},
                "nothing is run here; give the costs that muster-train prints");
  ExpectRefused(
      {"--world_size=8", "--stages=4", "--stage_schedule=interleaved", "--accumulation=9"},
      "the nearest that it can are 8 and 10");
  ExpectRefused({"--world_size=4", "--stages=4", "--stages_per_rank=2"},
                "1f1b has one stage per rank, and 2 are asked for; interleaved has several");
  ExpectRefused({"--world_size=4", "--stages=4", "--stage_schedule=zb-h1", "--recompute=full"},
                "1f1b works with --recompute");
  ExpectRefused({"--world_size=8", "--stages=3"}, "8 ranks cannot be divided into 3 stages");
  ExpectRefused({"--world_size=9", "--plan=pipeline"}, "it has 8 units, and there are to be 9");
}

TEST(PlanCommand, PrintsTheHashThatTellsPlansApart) {
  EXPECT_THAT(PlanCommandText({}), IsOkAndHolds(ContainsRegex("hash +[0-9a-f]{64}\n")));
  EXPECT_EQ(HashOf({"--lr=0.1"}), HashOf({"--lr", "1e-1", "--batch-size=9", "--world_size=3"}));
  EXPECT_NE(HashOf({"--lr=0.1"}), HashOf({"--lr=0.2"}));
  EXPECT_NE(HashOf({"--layers=3"}), HashOf({"--layers=4"}));
  EXPECT_NE(HashOf({"--dtype=f32"}), HashOf({"--dtype=f64"}));
}

TEST(PlanCommand, ShowsItsOptionsWithTheOnesOfTraining) {
  for (const char* flag : {"--help", "-h"}) {
    EXPECT_THAT(
        PlanCommandText({flag}),
        IsOkAndHolds(AllOf(HasSubstr("usage: muster plan"), HasSubstr("--world_size=N"),
                           HasSubstr("--gradient_accumulation_steps=N"), HasSubstr("gpt2-1558m"))));
  }
}

TEST(PlanCommand, RefusesBadInputWithTheFlagAndWhatWasExpected) {
  ExpectRefused({"--world_size=0"}, "--world_size=0: expected a whole number between 1 and");
  ExpectRefused({"--world-size=many"}, "--world_size=many: expected a whole number");
  ExpectRefused({"--model=gpt2-124"}, "--model=gpt2-124: 'gpt2-124' is not a known model");
  ExpectRefused({"--model=gpt2-124"}, "did you mean gpt2-124m?");
  ExpectRefused({"--model", ""}, "--model=: '' is not a known model");
  ExpectRefused({"--vocabulary=x"}, "--vocabulary=x: expected a whole number");
  ExpectRefused({"--vocabulary=0"}, "--vocabulary must be between 1 and");
  ExpectRefused({"--model=gpt2-124m", "--width=100"}, "--num_heads must divide the hidden size");
  ExpectRefused({"--wordl_size=2"}, "unknown option --wordl_size=2; did you mean --world_size?");
  ExpectRefused({"train.py"}, "'train.py' belongs to no option");
}

TEST(PlanCommand, RefusesHeadsThatNoAttentionKernelOfAGpuHas) {
  Args args = {"--device=cuda", "--heads=2", "--width=384"};
  ExpectRefused(args, "--heads must be 3 or more on a GPU, not 2: each of them has 192 numbers");
  args.insert(args.end(), {"--dtype=bf16", "--cuda_attention=own"});
  ExpectRefused(args, "and attention kernels there have at most 128; or train with --device=cpu");
  args.back() = "--mode=ordered";
  ExpectRefused(args, "--heads must be 3 or more");
  args.back() = "--cuda_attention=auto";  // cuDNN's may be wider
  EXPECT_THAT(PlanCommandText(args), IsOk());
  EXPECT_THAT(PlanCommandText({"--heads=2", "--width=384"}), IsOk());
  EXPECT_THAT(PlanCommandText({"--device=cuda", "--heads=3", "--width=384"}), IsOk());
}

TEST(PlanCommand, RefusesNumbersWhoseProductsCannotBeCounted) {
  const Args largest = {"--world_size=1048576", "--accumulation=1048576",
                        "--batch_size=1048576", "--heads=1",
                        "--layers=1",           "--width=1",
                        "--context=16777216"};
  ExpectRefused(largest, "a step would have");
  ExpectRefused({"--batch_size=1048576", "--context=16777216", "--width=16380", "--heads=1"},
                "bytes of activations");
}

TEST(PlanCommand, IsOneLinePerErrorHoweverStrangeTheInput) {
  for (const char* arg : {"--model=\n", "--plan=a\nb", "--vocabulary=\n1", "--layers=1\n2"}) {
    const absl::StatusOr<std::string> text = PlanCommandText({arg});
    EXPECT_THAT(text, StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("\n"))));
  }
}

TEST(PipelineSchedules, AreComparedOverRanksThatAreEachOneStage) {
  EXPECT_THAT(PlanCommandText({"--pipeline_schedule=all", "--world_size=4", "--accumulation=8"}),
              IsOkAndHolds(AllOf(HasSubstr("over 4 ranks and 8 micro-batches"),
                                 ContainsRegex("1f1b +1 +33 +9 +3/11 = 27.3 % +4 +48"),
                                 ContainsRegex("zb-h1 +1 +27 +3 +1/9 = 11.1 % +4 +48"),
                                 HasSubstr("muster-train runs any of them"))));
  EXPECT_THAT(PlanCommandText({"--pipeline_schedule=all", "--world_size=8", "--stages=2"}),
              IsOkAndHolds(HasSubstr("over 2 ranks and 1 micro-batches")));
}

TEST(PipelineSchedules, AreDrawnByName) {
  EXPECT_THAT(PlanCommandText({"--pipeline_schedule=gpipe", "--world_size=2", "--accumulation=2"}),
              IsOkAndHolds(HasSubstr("rank 0   F0 F1 .  .  .  B0=== B1===\n")));
  EXPECT_THAT(PlanCommandText({"--pipeline_schedule=zbv", "--world_size=2", "--pass_costs=2,2,1",
                               "--schedule_form=svg"}),
              IsOkAndHolds(HasSubstr("<svg")));
  ExpectRefused({"--pipeline_schedule=interleaved", "--world_size=4", "--accumulation=9"},
                "--pipeline_schedule=interleaved: interleaved over 4 ranks cannot divide 9");
  ExpectRefused({"--pipeline_schedule=1f1bb", "--world_size=4"}, "did you mean 1f1b?");
}

TEST(PipelineSchedules, AreReadFromAFileThatWasPrinted) {
  std::string file;
  const PlanSurroundings files = {
      .files = {.read_file = [&](const std::string& path) -> absl::StatusOr<std::string> {
        if (path == "./a.schedule") return file;
        return absl::NotFoundError("no such file");
      }}};
  const auto text = [&](const Args& args) { return PlanCommandText(args, nullptr, files); };
  const absl::StatusOr<std::string> printed = text(
      {"--pipeline_schedule=zb-h1", "--world_size=3", "--accumulation=4", "--schedule_form=file"});
  ASSERT_THAT(printed, IsOk());
  file = *printed;
  EXPECT_THAT(text({"--pipeline_schedule=./a.schedule"}),
              IsOkAndHolds(HasSubstr("schedule zb-h1: 3 ranks, 3 stages, 4 micro-batches")));
  EXPECT_THAT(text({"--pipeline_schedule=./a.schedule", "--world_size=4"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the file is for 3 ranks, and 4 are asked for")));
  file = absl::StrReplaceAll(file, {{" W1.3", ""}});
  EXPECT_THAT(text({"--pipeline_schedule=./a.schedule"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--pipeline_schedule=./a.schedule: this schedule cannot run: rank "
                                 "1 has I1.3 and no W1.3")));
  EXPECT_THAT(text({"--pipeline_schedule=./b.schedule"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such file")));
}

TEST(PipelineSchedules, RefuseOptionsThatHaveNothingToSay) {
  ExpectRefused({"--pass_costs=1,1,1"}, "--pass_costs is about --pipeline_schedule");
  ExpectRefused({"--pipeline_schedule=all", "--advise"}, "give one of them");
  ExpectRefused({"--pipeline_schedule=all", "--schedule_form=svg"}, "prints one schedule");
  ExpectRefused({"--pipeline_schedule=gpipe", "--pass_costs=1,0,1"}, "three whole numbers");
  ExpectRefused({"--pipeline_schedule=gpipe", "--world_size=4", "--stages=3"},
                "4 ranks cannot be divided into 3 stages");
}

}  // namespace
}  // namespace muster::launcher
