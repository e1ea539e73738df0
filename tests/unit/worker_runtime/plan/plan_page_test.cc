#include "worker_runtime/plan/plan_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "muster/decoder.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/state_types.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

PlanPageInput TwoRanks() {
  PlanPageInput input = {.world_size = 2, .ranks_of_node = 2, .hash = "c0ffee", .verbose = true};
  input.options.batch_size = 3;
  input.options.plan.accumulation = 5;
  return input;
}

// Adds the model that its options describe.
PlanPageInput WithModel(PlanPageInput input, int stages = 1) {
  ParameterStore store(input.options.dtype);
  EXPECT_THAT(Decoder::Create(input.options.model, store), IsOk());
  input.parameters = engine::InfoOf(store);
  input.unit_names = store.unit_names();
  UseTrace trace = AssumedTrace(static_cast<int>(input.parameters.size()));
  for (int unit = 0; unit <= input.parameters.back().unit; ++unit) {
    trace.forward.push_back(unit);
    trace.backward.insert(trace.backward.begin(), unit);
  }
  trace.kept_bytes = 300;
  trace.peak_bytes = 1000;
  const BlockLayout layout = PlanBlockLayout(input.parameters);
  const auto units = static_cast<int>(layout.units.size());
  for (int s = 0; s < stages; ++s) {
    StageInfo stage = StageOfUnits(layout, units * s / stages, units * (s + 1) / stages, trace);
    stage.received_bytes = 1024;
    input.stages.push_back(std::move(stage));
  }
  return input;
}

// The page with runs of spaces as one.
std::string PageOf(const PlanPageInput& input, int stages = 1) {
  absl::StatusOr<std::string> page = FormatPlanPage(WithModel(input, stages));
  EXPECT_THAT(page, IsOk());
  std::string text = std::move(page).value_or("");
  while (absl::StrReplaceAll({{"  ", " "}}, &text) > 0) {
  }
  return text;
}

TEST(FormatPlanPage, BeginsWithWhatARankTakesAndThenTheModel) {
  PlanPageInput input = TwoRanks();
  const RankMemory memory = MemoryOfRank(WithModel(input));
  const std::string begin =
      absl::StrCat("each rank takes ", ReadableBytes(memory.total()), " and sends ",
                   ReadableBytes(memory.figures.sent_total()), " per step");
  EXPECT_THAT(PageOf(input),
              StartsWith(begin + "\n\nmodel: GPT of 6 layers, 6 heads, hidden size 384, context "
                                 "256, vocabulary 256, in f32\n parameters 10,844,160\n"));
  input.fits = "it fits in the 79 GiB of h100";
  EXPECT_THAT(PageOf(input), StartsWith(begin + "; it fits in the 79 GiB of h100\n\nmodel: "));
}

TEST(FormatPlanPage, ShowsOnlyWhatWasSaidOfThePlanUnlessItIsVerbose) {
  PlanPageInput input = TwoRanks();
  input.options.plan = *PlanPreset("zero-3");
  input.sources.by_field = {{"seed", "--seed"}};
  EXPECT_THAT(PageOf(input), HasSubstr("gathering of parameters:\n"));
  input.verbose = false;
  const std::string page = PageOf(input);
  EXPECT_THAT(page, HasSubstr("plan, for 2 ranks:\n preset zero-3 default\n seed "));
  EXPECT_THAT(page, HasSubstr(" --seed\n all else default; --verbose shows it\n hash c0ffee\n"));
  EXPECT_THAT(page, HasSubstr("\nmemory per rank:\n"));
  EXPECT_THAT(page, Not(HasSubstr("gathering")));
  EXPECT_THAT(page, Not(HasSubstr("buckets of gradients")));
}

TEST(FormatPlanPage, ShowsEveryFieldOfThePlanAndItsHash) {
  const PlanPageInput input = TwoRanks();
  const std::string page = PageOf(input);
  EXPECT_THAT(page, HasSubstr("plan, for 2 ranks:\n preset ddp default\n"));
  for (const auto& [key, value] : Describe(input.options.plan)) {
    EXPECT_THAT(page, HasSubstr("\n " + key + " " + value + " default\n"));
  }
  EXPECT_THAT(page, HasSubstr("\n hash c0ffee\n"));
}

TEST(FormatPlanPage, CountsTheTokensOfAStep) {
  EXPECT_THAT(PageOf(TwoRanks()), HasSubstr("\n tokens 7,680\n"));  // 2 * 5 * 3 * 256
}

TEST(FormatPlanPage, ShowsMemoryByStateWithTheTotal) {
  PlanPageInput input = TwoRanks();
  input.options.model = {.layers = 1, .heads = 1, .hidden_size = 1, .context = 1, .vocabulary = 1};
  input.options.batch_size = 1;
  const std::string page = PageOf(input);
  // A block for each of three units.
  EXPECT_THAT(page,
              HasSubstr("\n parameters 12 KiB 12,288 bytes\n gradients 12 KiB 12,288 bytes\n "
                        "optimizer 24 KiB 24,576 bytes\n buffers of collectives 32 B 32 bytes\n "
                        "activations, at their peak 0.977 KiB 1,000 bytes\n"));
  EXPECT_THAT(page, Not(HasSubstr("partial sums")));
}

TEST(FormatPlanPage, ShowsPartialSumsInOrderedModeOnly) {
  PlanPageInput input = TwoRanks();
  input.options.plan.mode = SumMode::kOrdered;
  input.options.plan.accumulation = 2;
  input.options.model = {.layers = 1, .heads = 1, .hidden_size = 1, .context = 1, .vocabulary = 1};
  EXPECT_THAT(PageOf(input), HasSubstr("\n partial sums (ordered mode) 12 KiB 12,288 bytes\n"));
}

TEST(FormatPlanPage, ShowsTheMemoryThatRanksExchangeIn) {
  PlanPageInput input = TwoRanks();
  // A ring, calls, and the loss as it is added up.
  EXPECT_THAT(PageOf(input), HasSubstr("\n exchange between ranks 512 KiB 524,384 bytes\n"));
  // What comes by a connection lands beside what it is added to: half of the largest bucket.
  input.ranks_of_node = 1;
  EXPECT_THAT(PageOf(input), HasSubstr("\n exchange between ranks 13 MiB "));
  input.world_size = 1;
  EXPECT_THAT(PageOf(input), Not(HasSubstr("exchange between ranks")));
}

TEST(FormatPlanPage, SaysWhatIsOfAGpuAndWhatOfItsHost) {
  PlanPageInput input = TwoRanks();
  const std::string on_host = PageOf(input);
  EXPECT_THAT(on_host, Not(HasSubstr("GPU")));
  input.gpu_bytes = 3 << 20;
  input.pinned_bytes_max = 5 << 20;
  const std::string page = PageOf(input);
  EXPECT_THAT(page, HasSubstr("\nmemory of the GPU per rank:\n"));
  EXPECT_THAT(page, HasSubstr("\n products (cuBLASLt) 3 MiB 3,145,728 bytes\n total "));
  EXPECT_THAT(page, HasSubstr("\nmemory of the host per rank:\n"
                              " pinned for copies, at most 5 MiB 5,242,880 bytes\n"
                              " exchange between ranks, gloo 512 KiB 524,384 bytes\n"));
}

TEST(FormatPlanPage, ListsBucketsInTheOrderOfTheirReduction) {
  const std::string page = PageOf(TwoRanks());
  EXPECT_THAT(page, HasSubstr("buckets of gradients, in the order of their reduction: "));
  EXPECT_THAT(page, Not(HasSubstr("more; the last")));
}

TEST(FormatPlanPage, CutsALongListOfBucketsShort) {
  PlanPageInput input = TwoRanks();
  input.options.plan.buckets.bytes_max = 1;
  // One bucket per block.
  input.options.plan.buckets.first_bytes = 1;
  EXPECT_THAT(PageOf(input), HasSubstr("reduction: 10,591\n"));
  EXPECT_THAT(PageOf(input), HasSubstr("and 10,559 more; the last 4 KiB\n"));
}

TEST(FormatPlanPage, ShowsTheBytesThatARankSends) {
  PlanPageInput input = TwoRanks();
  input.options.model = {.layers = 1, .heads = 1, .hidden_size = 1, .context = 1, .vocabulary = 1};
  EXPECT_THAT(PageOf(input), HasSubstr("sent per rank and step:\n gradients 12 KiB 12,288 bytes\n "
                                       "loss and tokens 16 B 16 bytes\n total 12 KiB "
                                       "12,304 bytes\n"));
  input.world_size = 1;
  EXPECT_THAT(PageOf(input), HasSubstr("\n total 0 B 0 bytes\n"));
}

// Gradients are in f32, whatever the parameters are in.
TEST(FormatPlanPage, ShowsBucketsInBytesOfGradients) {
  const auto buckets = [](DType dtype) {
    PlanPageInput input = TwoRanks();
    input.options.dtype = dtype;
    const std::string page = PageOf(input);
    const size_t begin = page.find("buckets of gradients");
    EXPECT_NE(begin, std::string::npos);
    return page.substr(begin, page.find("sent per rank", begin) - begin);
  };
  EXPECT_EQ(buckets(DType::kBf16), buckets(DType::kF32));
}

TEST(FormatPlanPage, ShowsWhatGatheringSendsWhereTheOptimizerIsSharded) {
  PlanPageInput input = TwoRanks();
  input.options.plan = *PlanPreset("zero-1");
  const std::string page = PageOf(input);
  EXPECT_THAT(page, HasSubstr("\n parameters 20.7 MiB"));
  EXPECT_THAT(page, HasSubstr("\n parts of the norm 8 B 8 bytes\n"));
}

TEST(FormatPlanPage, ShowsHowParametersAreGatheredAndWhenGradientsAreReduced) {
  PlanPageInput input = TwoRanks();
  input.options.plan = *PlanPreset("fsdp");
  input.options.plan.accumulation = 5;
  const std::string page = PageOf(input);
  EXPECT_THAT(page, HasSubstr("gathering of parameters:\n units at rest as shards 8 of 8\n"));
  EXPECT_THAT(page, HasSubstr("elements at once, at most "));
  EXPECT_THAT(page, HasSubstr("\n gathered parameters "));
  EXPECT_THAT(page, HasSubstr(" sent\n once, held whole before "));
  EXPECT_THAT(page, HasSubstr(" sent <- chosen: it sends less, for at most half as much memory "));
  input.options.plan.gradient_reduction = GradientReduction::kEachMicroBatch;
  EXPECT_THAT(PageOf(input), HasSubstr(" sent <- chosen: the plan says so\n once, held whole"));
}

// Where one choice just fits, what ranks exchange in would be too much.
TEST(DecideReduction, IsWhatAnEngineDecidesOfThatPlan) {
  PlanPageInput input = TwoRanks();
  input.options.plan = *PlanPreset("zero-2");
  input.options.plan.accumulation = 5;
  input = WithModel(input);
  input.options.plan.gradient_reduction = GradientReduction::kOnce;
  const int64_t once = plan::TotalOf(MemoryOfRank(input).figures.peak);
  input.options.plan.gradient_reduction = GradientReduction::kChosen;
  for (const int64_t limit : {int64_t{0}, once - 1, once, once + 1}) {
    input.options.plan.memory_bytes_max = limit;
    const ReductionChoice decided = ReductionOf({.plan = input.options.plan,
                                                 .parameters = input.parameters,
                                                 .types = TypesOf(input.options.plan, DType::kF32),
                                                 .mesh = *MeshOf(input.options.plan, 1, 2),
                                                 .stages = input.stages});
    EXPECT_EQ(DecideReduction(input).chosen, decided.chosen) << limit;
    EXPECT_EQ(decided.chosen,
              limit == 0 ? GradientReduction::kOnce : GradientReduction::kEachMicroBatch);
    EXPECT_EQ(DecideReduction(input).reason, decided.reason) << limit;
  }
}

// Bytes of the memory that a rank takes.
int64_t TotalOf(const std::string& page) {
  const size_t total = page.find("\n total ");
  const size_t end = page.find(" bytes", total);
  std::string digits = page.substr(page.rfind(' ', end - 1), end - page.rfind(' ', end - 1));
  absl::StrReplaceAll({{",", ""}, {" ", ""}}, &digits);
  return std::stoll(digits);
}

TEST(FormatPlanPage, TakesLessWithEachStageOfZeroAlsoOfASmallModel) {
  PlanPageInput input = TwoRanks();
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const char* preset : {"ddp", "zero-1", "zero-2", "full-shard"}) {
    input.options.plan = *PlanPreset(preset);
    const int64_t total = TotalOf(PageOf(input));
    EXPECT_GT(total, 50 << 20) << preset;
    EXPECT_LT(total, before) << preset;
    before = total;
  }
}

TEST(FormatPlanPage, SaysWhichOptionGivesUpWhatIsAllGatheredAtOnce) {
  PlanPageInput input = TwoRanks();
  input.options.plan = *PlanPreset("zero-3");
  EXPECT_THAT(PageOf(input), HasSubstr("All of them are gathered at once: --max_live_parameters or "
                                       "--max_reuse_distance\n below 10,"));
  input.options.plan.gathering.max_live_elements = 4'000'000;
  EXPECT_THAT(PageOf(input), Not(HasSubstr("All of them")));
  input.options.plan = *PlanPreset("fsdp");
  EXPECT_THAT(PageOf(input), Not(HasSubstr("All of them")));
}

TEST(FormatPlanPage, ShowsTheStagesOfAPipeline) {
  PlanPageInput input = TwoRanks();
  input.options.plan.stages = 2;
  const std::string page = PageOf(input, 2);
  EXPECT_THAT(page, HasSubstr("pipeline of 2 stages, one forward, one backward, each of 1 rank:\n "
                              "stage 0, embedding to h.2 "));
  EXPECT_THAT(page, HasSubstr("\n stage 1, h.3 to head "));
  EXPECT_THAT(page, HasSubstr(" sent per rank and step\n"));
  EXPECT_THAT(page, HasSubstr("\n handed on per micro-batch 1 KiB 1,024 bytes\n"));
  EXPECT_THAT(page, HasSubstr("\n time that stages wait 1/6 of a step (16.7 %)"));
  EXPECT_THAT(page, HasSubstr("\n to other stages 5 KiB 5,120 bytes\n"));
  EXPECT_THAT(page, HasSubstr("\n tokens 3,840\n"));  // of one replica: 5 * 3 * 256
}

TEST(FormatPlanPage, RefusesMoreTokensThanItCanCount) {
  PlanPageInput input = TwoRanks();
  input.world_size = 1 << 20;
  input.stages.resize(1);
  input.options.plan.accumulation = 1 << 20;
  input.options.batch_size = 1 << 20;
  EXPECT_THAT(FormatPlanPage(input),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a step would have")));
}

}  // namespace
}  // namespace muster::plan
