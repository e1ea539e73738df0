#include "worker_runtime/train/training_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

StartFacts Facts() {
  return {.model = {.layers = 4, .heads = 8, .hidden_size = 256, .context = 128, .vocabulary = 256},
          .size = 2,
          .batch_size = 8,
          .data = "14 files, 237.3 kB of text",
          .kernels = "avx512",
          .backend = "gloo"};
}

TEST(DescribeStart, NamesModelDataPlanAndWhatItRunsOn) {
  EXPECT_EQ(
      DescribeStart(Facts()),
      "  model    GPT, 4 layers, 8 heads, hidden size 256, context 128, vocabulary 256: 3.26M "
      "parameters in f32\n"
      "  data     14 files, 237.3 kB of text\n"
      "  plan     ddp, fast sums, 2 ranks x 8 rows x 128 tokens = 2048 tokens per step\n"
      "  runs on  avx512 kernels, gloo communicator\n");
}

TEST(DescribeStart, SaysOnTheFirstLineWhatSixteenBitsSaveOnTheHostAndWhatComputesThem) {
  StartFacts facts = Facts();
  facts.dtype = DType::kBf16;
  EXPECT_THAT(DescribeStart(facts),
              HasSubstr("parameters in bf16, computed in f32 by avx512 kernels: it saves memory on "
                        "this CPU, not time\n  data"));
  facts.products = DType::kBf16;
  EXPECT_THAT(DescribeStart(facts), HasSubstr("parameters in bf16\n  data"));
}

TEST(DescribeStart, NamesMicroBatchesWhereThereAreSeveral) {
  StartFacts facts = Facts();
  facts.plan.accumulation = 4;
  facts.plan.mode = SumMode::kOrdered;
  EXPECT_THAT(DescribeStart(facts),
              HasSubstr("ordered sums, 2 ranks x 4 micro-batches x 8 rows x 128 tokens = 8192 "));
}

TEST(DescribeStart, NamesTheCheckpointThatTrainingGoesOnFrom) {
  StartFacts facts = Facts();
  facts.resumed = "runs/a, after step 100";
  EXPECT_THAT(DescribeStart(facts), HasSubstr("  resumed  runs/a, after step 100\n"));
}

TEST(DescribeStart, SaysWhatIsToBeKnownOfTheDevice) {
  StartFacts facts = Facts();
  facts.device_notes = "attention by cuDNN 9.19.0";
  EXPECT_THAT(DescribeStart(facts), HasSubstr("  device   attention by cuDNN 9.19.0\n"));
}

TEST(DescribeStart, SaysWhyItIsNotNccl) {
  StartFacts facts = Facts();
  EXPECT_THAT(DescribeStart(facts), Not(HasSubstr("exchange")));
  facts.exchange_notes = "gloo instead of nccl: ranks 0 and 1 of 2 share GPU-a";
  EXPECT_THAT(DescribeStart(facts), HasSubstr("  exchange gloo instead of nccl: ranks 0 and 1"));
}

TEST(DescribeRound, NamesTheRankWhoseStateItIs) {
  EXPECT_EQ(DescribeRound({.round = 2, .size = 3, .step = 17, .whose_state = "rank 1's state"}),
            "round 2: goes on after step 17 with 3 ranks (rank 1's state)\n");
  EXPECT_EQ(DescribeRound({.round = 1, .size = 1, .step = 0, .whose_state = "rank 0's state"}),
            "round 1: goes on after step 0 with 1 rank (rank 0's state)\n");
}

TEST(DescribeRound, NamesTheCheckpointAndWhyNoRankHadTheState) {
  EXPECT_EQ(DescribeRound({.round = 2,
                           .size = 3,
                           .step = 15,
                           .no_state = "they lack 1 of 3 elements",
                           .resume = "runs/a"}),
            "round 2: goes on after step 15 with 3 ranks (the checkpoint in runs/a; they lack 1 of "
            "3 elements)\n");
}

TEST(DescribeRound, SaysThatAllIsLost) {
  EXPECT_EQ(DescribeRound({.round = 2, .size = 3, .no_state = "it is torn"}),
            "round 2: starts from the beginning with 3 ranks (there is no --resume; it is torn)\n");
  EXPECT_THAT(DescribeRound({.no_state = "it is torn", .resume = "a"}),
              HasSubstr("(no checkpoint in a; it is torn)"));
}

StepResult Step(double loss, int64_t num_tokens) {
  return {.loss = loss,
          .num_tokens = num_tokens,
          .times = {.forward = absl::Milliseconds(20),
                    .backward = absl::Milliseconds(60),
                    .wait = absl::Milliseconds(10),
                    .update = absl::Milliseconds(10),
                    .total = absl::Milliseconds(100),
                    .communication = absl::Milliseconds(40)}};
}

EndFacts End(int size) {
  EndFacts facts = {.elapsed = absl::Seconds(0.2),
                    .memory = {.parameters = 4'000'000,
                               .gradients = 4'000'000,
                               .optimizer = 8'000'000,
                               .activations_peak = 21'000'000},
                    .resident_bytes = 50'000'000,
                    .size = size};
  facts.totals.Add(Step(4, 1000));
  facts.totals.Add(Step(2, 3000));
  return facts;
}

TEST(TrainingTotals, WeighTheMeanLossByTokens) { EXPECT_DOUBLE_EQ(End(1).totals.mean_loss(), 2.5); }

TEST(DescribeEnd, SaysWhereTimeAndMemoryWent) {
  EXPECT_EQ(DescribeEnd(End(2)),
            "  trained  2 steps, 4.00k tokens in 0:00: 20.0k tok/s\n"
            "  step     forward 20.0 ms (20%), backward 60.0 ms (60%), waiting 10.0 ms (10%), "
            "update 10.0 ms (10%)\n"
            "  reduce   40.0 ms per step, 75% of it hidden behind the backward pass\n"
            "  memory   parameters 4.00 MB, gradients 4.00 MB, optimizer 8.00 MB, activations "
            "21.0 MB; together 37.0 MB, whole process 50.0 MB\n");
}

TEST(DescribeEnd, SaysNothingOfReductionsOnOneRank) {
  EXPECT_THAT(DescribeEnd(End(1)), AllOf(Not(HasSubstr("reduce")), Not(HasSubstr("waiting"))));
}

TEST(DescribeEnd, NamesBytesOnTheWireWhereTheyAreKnown) {
  EndFacts facts = End(2);
  facts.wire_bytes_per_step = 13'100'000;
  EXPECT_THAT(DescribeEnd(facts), HasSubstr(", 13.1 MB sent per step\n"));
}

TEST(DescribeEnd, CountsRoundsAndTheStepsThatWereMadeTwice) {
  EndFacts facts = End(2);
  EXPECT_THAT(DescribeEnd(facts), Not(HasSubstr("rounds")));
  facts.rounds = 3;
  EXPECT_THAT(DescribeEnd(facts), HasSubstr("  rounds   trained in 3 rounds of the job\n"));
  facts.repeated_steps = 1;
  EXPECT_THAT(DescribeEnd(facts), HasSubstr("3 rounds of the job; 1 step was lost between them and "
                                            "made again\n"));
}

TEST(DescribeEnd, IsEmptyWhenNothingWasTrained) { EXPECT_EQ(DescribeEnd({}), ""); }

}  // namespace
}  // namespace muster::train
