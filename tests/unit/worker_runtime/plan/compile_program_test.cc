#include "worker_runtime/plan/compile_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/plan/programs.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// "F0 B0 F1 B1": what a rank computes, in order.
std::string Passes(const Program& program) {
  std::string text;
  for (const Action& action : program.actions) {
    const Pass* const pass = action.If<Pass>();
    if (pass == nullptr) continue;
    text += std::string(" ") + LetterOf(pass->of.kind) + std::to_string(pass->of.micro_batch);
  }
  return text.substr(1);
}

std::vector<Action> Of(const Program& program, ActionKind kind) {
  std::vector<Action> found;
  for (const Action& action : program.actions) {
    if (action.kind() == kind) found.push_back(action);
  }
  return found;
}

TEST(PlanBlockLayout, BeginsEveryUnitWithABlockAndAlignsParameters) {
  const std::vector<ParameterInfo> parameters = {{.name = "a", .shape = {3}},
                                                 {.name = "b", .shape = {1}},
                                                 {.name = "c", .shape = {5}, .unit = 1}};
  const BlockLayout layout = PlanBlockLayout(parameters);
  EXPECT_THAT(layout.offsets, ElementsAre(0, 16, kBlockElements));
  EXPECT_THAT(layout.units, ElementsAre(BlockRange{0, 1}, BlockRange{1, 2}));
  EXPECT_EQ(layout.num_blocks, 2);
}

// A block is of parameters that tensor ranks share, or of such that they cut.
TEST(PlanBlockLayout, KeepsWhatTensorRanksCutInBlocksOfItsOwn) {
  const std::vector<ParameterInfo> parameters = {
      {.name = "norm", .shape = {3}},
      {.name = "wide", .shape = {1000}, .cut = true},
      {.name = "wide.bias", .shape = {40}, .cut = true},
      {.name = "bias", .shape = {3}},
      {.name = "frozen", .shape = {9}, .frozen = true, .cut = true},
      {.name = "next", .shape = {5}, .unit = 1, .cut = true}};
  const BlockLayout layout = PlanBlockLayout(parameters);
  EXPECT_THAT(layout.offsets,
              ElementsAre(0, kBlockElements, kBlockElements + 1008, 3 * kBlockElements,
                          3 * kBlockElements + 16, 4 * kBlockElements));
  EXPECT_THAT(layout.cut, ElementsAre(BlockRange{1, 3}, BlockRange{4, 5}));
}

TEST(PlanBlockLayout, GivesAnEmptyRangeToAUnitWithoutParameters) {
  const BlockLayout layout = PlanBlockLayout(std::vector<ParameterInfo>{
      {.name = "a", .shape = {1025}}, {.name = "b", .shape = {1}, .unit = 2}});
  EXPECT_THAT(layout.units, ElementsAre(BlockRange{0, 2}, BlockRange{2, 2}, BlockRange{2, 3}));
}

TEST(PlanBlockLayout, PutsFrozenParametersBehindAllOthers) {
  const std::vector<ParameterInfo> parameters = {
      {.name = "a", .shape = {3}, .frozen = true},
      {.name = "b", .shape = {1}},
      {.name = "c", .shape = {1025}, .unit = 1, .frozen = true},
      {.name = "d", .shape = {5}, .unit = 2}};
  const BlockLayout layout = PlanBlockLayout(parameters);
  EXPECT_EQ(layout.num_blocks, 2);
  EXPECT_THAT(layout.units, ElementsAre(BlockRange{0, 1}, BlockRange{1, 1}, BlockRange{1, 2}));
  EXPECT_THAT(layout.frozen_units,
              ElementsAre(BlockRange{2, 3}, BlockRange{3, 5}, BlockRange{5, 5}));
  EXPECT_EQ(layout.OffsetOf(0), 2 * kBlockElements);
  EXPECT_EQ(layout.OffsetOf(1), 0);
  EXPECT_EQ(layout.OffsetOf(2), 3 * kBlockElements);
  EXPECT_EQ(layout.OffsetOf(3), kBlockElements);
}

// Six units of two blocks; of two all is frozen, of one the weight.
TEST(CompileProgram, HoldsAShardOfFrozenParametersAndNoStateOfThem) {
  Job job({.replicas = 4}, {.preset = "full-shard", .freezes = true});
  job.plan.gathering.persistence_threshold = 0;
  const int64_t block = kBlockElements * 4;
  const Program program = job.ProgramOf(0);
  EXPECT_EQ(program.learned.count, 3 * 2 + 1);
  // A shard of one block of each of the four units' learned and three units' frozen parameters.
  EXPECT_EQ(At(program.held, Arena::kParameters), (4 + 3) * block);
  EXPECT_EQ(At(program.held, Arena::kOptimizer), 2 * 4 * block);
  EXPECT_EQ(FiguresOf(program).sent[static_cast<size_t>(ActionKind::kReduce)],
            4 * 4 * block * 3 / 4);
  Job whole({.replicas = 4}, {.freezes = true});
  EXPECT_EQ(At(whole.ProgramOf(0).held, Arena::kParameters), (3 * 2 + 1 + 3 * 2) * block);
}

TEST(CompileProgram, HoldsTheFrozenParametersOfItsStageAlone) {
  const Job job({.stages = 3, .replicas = 1}, {.freezes = true});
  const int64_t block = kBlockElements * 4;
  EXPECT_EQ(At(job.ProgramOf(0).held, Arena::kParameters), (2 + 2) * block);  // units 0 and 1
  EXPECT_EQ(At(job.ProgramOf(1).held, Arena::kParameters), (1 + 2 + 2) * block);
  EXPECT_EQ(At(job.ProgramOf(2).held, Arena::kParameters), (2 + 2) * block);
}

TEST(ShardOf, GivesTheLastRanksFewerBlocksOrNone) {
  EXPECT_EQ(ShardOf({10, 15}, 0, 4), (BlockRange{10, 12}));
  EXPECT_EQ(ShardOf({10, 15}, 2, 4), (BlockRange{14, 15}));
  EXPECT_EQ(ShardOf({10, 15}, 3, 4).num_blocks(), 0);
}

TEST(CompileProgram, ReducesBucketsWithTheLastBackwardPass) {
  const Job job({.replicas = 2}, {.accumulation = 2});
  const Program program = job.ProgramOf(0);
  EXPECT_EQ(Passes(program), "F0 B0 F1 B1");
  const std::vector<Action> reduces = Of(program, ActionKind::kReduce);
  ASSERT_THAT(reduces, SizeIs(Gt(1u)));
  for (const Action& reduce : reduces) {
    EXPECT_EQ(program.actions[BackwardOf(reduce)].As<Pass>().of.micro_batch, 1);
    EXPECT_EQ(ExchangeOf(reduce)->collective, Collective::kAllReduce);
  }
}

TEST(CompileProgram, ReducesAfterTheBackwardPassWithoutOverlap) {
  const Job job({.replicas = 2}, {.overlap = false});
  for (const Action& reduce : Of(job.ProgramOf(1), ActionKind::kReduce)) {
    EXPECT_EQ(BackwardOf(reduce), kNone);
    EXPECT_THAT(reduce.after, SizeIs(1));
  }
}

TEST(CompileProgram, SendsNothingAlone) {
  const Program program = Job({}, {.accumulation = 3}).ProgramOf(0);
  EXPECT_EQ(FiguresOf(program).sent_total(), 0);
  for (const Action& action : program.actions) {
    EXPECT_EQ(LaneOf(action.kind()), Lane::kCompute) << Describe(action, program);
  }
}

// Source: reference volumes of a ring: all-reduce 2(n-1)/n, reduce-scatter and all-gather (n-1)/n
// each, so that ZeRO-1 moves what DDP moves.
TEST(CompileProgram, MovesAsMuchForZeroOneAsForDdp) {
  const Program ddp = Job({.replicas = 4}, {}).ProgramOf(1);
  const Program zero = Job({.replicas = 4}, {.sharded = true}).ProgramOf(1);
  const StepFigures ddp_figures = FiguresOf(ddp);
  const StepFigures zero_figures = FiguresOf(zero);
  const int64_t bytes = ddp.learned.count * kBlockElements * 4;
  const auto sent = [](const StepFigures& figures, ActionKind kind) {
    return figures.sent[static_cast<size_t>(kind)];
  };
  EXPECT_EQ(sent(ddp_figures, ActionKind::kReduce), 2 * bytes * 3 / 4);
  EXPECT_NEAR(sent(zero_figures, ActionKind::kReduce), bytes * 3 / 4, 0.02 * bytes);
  EXPECT_NEAR(sent(zero_figures, ActionKind::kUnshard), bytes * 3 / 4, 0.02 * bytes);
}

// What a small model could put into one bucket stays in several, since two are on their way at
// once.
TEST(CompileProgram, HoldsLessForZeroTwoThanForDdpOfASmallModel) {
  const auto held = [](const std::string& preset) {
    const Program program =
        Job({.replicas = 2}, {.bucket_blocks = 1000, .preset = preset}).ProgramOf(0);
    return TotalOf(program.held);
  };
  EXPECT_LT(held("zero-2"), held("ddp"));
}

TEST(CompileProgram, HoldsAShardOfTheMomentsForZeroOne) {
  const Job job({.replicas = 4}, {.sharded = true});
  int64_t owned = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Program program = job.ProgramOf(rank);
    for (const BlockRange& blocks : OwnedBlocks(program)) owned += blocks.num_blocks();
    EXPECT_LT(At(program.held, Arena::kOptimizer), At(program.held, Arena::kParameters));
  }
  EXPECT_EQ(owned, job.ProgramOf(0).learned.count) << "each block is one rank's";
}

TEST(TypesOf, KeepsAMasterInFullPrecisionOverParametersOfSixteenBits) {
  const StateTypes types = TypesOf(Plan(), DType::kBf16);
  EXPECT_TRUE(types.has_master());
  EXPECT_EQ(types.master, DType::kF32);
  EXPECT_EQ(types.gradients, DType::kF32);
  EXPECT_FALSE(TypesOf(Plan(), DType::kF64).has_master());
  Plan plan;
  plan.dtypes.gradients = DType::kBf16;
  EXPECT_EQ(TypesOf(plan, DType::kBf16).gradients, DType::kBf16);
}

// Source: 2 bytes of parameter, 4 of gradient, 12 of master and moments.
TEST(CompileProgram, CountsTheBytesOfEachStateByItsType) {
  const Program program = Job({.replicas = 2}, {.dtype = DType::kBf16}).ProgramOf(0);
  const int64_t elements = program.stages.at(0).blocks.num_elements();
  EXPECT_EQ(At(program.held, Arena::kParameters), 2 * elements);
  EXPECT_EQ(At(program.held, Arena::kGradients), 4 * elements);
  EXPECT_EQ(At(program.held, Arena::kOptimizer), 12 * elements);
}

TEST(CompileProgram, SendsOneNumberPerRankForTheNormUnlessSumsAreOrdered) {
  const Program fast = Job({.replicas = 4}, {.sharded = true}).ProgramOf(0);
  Action squares = Of(fast, ActionKind::kSquares).at(0);
  EXPECT_EQ(ExchangeOf(squares)->bytes, kPartialBytes);
  EXPECT_EQ(FiguresOf(fast).sent[static_cast<size_t>(ActionKind::kSquares)], 2 * kPartialBytes)
      << "recursive doubling";
  const Program ordered = Job({.replicas = 4}, {.sharded = true, .ordered = true}).ProgramOf(0);
  squares = Of(ordered, ActionKind::kSquares).at(0);
  EXPECT_EQ(ExchangeOf(squares)->bytes, ordered.learned.count * kPartialBytes);
}

TEST(CompileProgram, CountsTheRootsOfOrderedSums) {
  // A rank has 3 of 6 leaves: (0+1), 2 | 3, (4+5).
  const Program program = Job({.replicas = 2}, {.accumulation = 3, .ordered = true}).ProgramOf(0);
  EXPECT_THAT(program.sums.root_slots, SizeIs(2));
  const int64_t bytes = program.learned.count * kBlockElements * 4;
  EXPECT_EQ(FiguresOf(program).sent[static_cast<size_t>(ActionKind::kReduce)], 3 * bytes / 2);
}

// Source: Narayanan et al., 2021, section 2.2.1: at most p - s micro-batches in flight.
TEST(CompileProgram, RunsOneForwardOneBackwardInAPipeline) {
  const Job job({.stages = 3}, {.accumulation = 5});
  EXPECT_EQ(Passes(job.ProgramOf(0)), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(Passes(job.ProgramOf(1)), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(Passes(job.ProgramOf(2)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
}

TEST(CompileProgram, GoesInTheOrderOfTheSchedule) {
  const Job gpipe({.stages = 2}, {.accumulation = 3, .schedule = "gpipe"});
  EXPECT_EQ(Passes(gpipe.ProgramOf(0)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Passes(gpipe.ProgramOf(1)), "F0 F1 F2 B0 B1 B2");
  const Job split({.stages = 2}, {.accumulation = 3, .schedule = "zb-h1"});
  EXPECT_EQ(Passes(split.ProgramOf(0)), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
  EXPECT_EQ(Passes(split.ProgramOf(1)), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
  const Job turns({.stages = 2}, {.accumulation = 2, .schedule = "interleaved"});
  const Program program = turns.ProgramOf(1);
  EXPECT_EQ(Passes(program), "F0 F1 F0 B0 F1 B1 B0 B1");
  std::vector<int> stages;
  for (const StageBlocks& own : program.stages) stages.push_back(own.stage);
  EXPECT_THAT(stages, ElementsAre(1, 3));
}

// Gradients of the stage that is done first are reduced while the rank goes on with others.
TEST(CompileProgram, ReducesAStageBeforeTheRankIsThroughWithOthers) {
  const Job job({.stages = 2, .replicas = 2}, {.accumulation = 2, .schedule = "interleaved"});
  const Program program = job.ProgramOf(0);
  size_t first_reduce = 0;
  while (program.actions[first_reduce].kind() != ActionKind::kReduce) ++first_reduce;
  const auto is_backward = [](const Action& action) {
    return action.kind() == ActionKind::kBackward;
  };
  EXPECT_EQ(std::count_if(program.actions.begin() + static_cast<int64_t>(first_reduce),
                          program.actions.end(), is_backward),
            2);
}

TEST(CheckSchedule, RefusesWhatThisVersionCannotCarryOut) {
  const auto check = [](const Job& job) {
    return CheckSchedule({.plan = job.plan,
                          .parameters = job.parameters,
                          .types = TypesOf(job.plan, job.dtype),
                          .mesh = job.mesh,
                          .stages = job.stages},
                         *ScheduleOf(job.plan, job.mesh.places()));
  };
  Job split({.stages = 3}, {.accumulation = 5, .schedule = "zb-h1"});
  EXPECT_THAT(check(split), IsOk());
  split.plan.recompute.kind = Recompute::Kind::kFull;
  EXPECT_THAT(check(split), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("1f1b works with --recompute")));
}

TEST(CompileProgram, KeepsTheActivationsOfWhatIsInFlight) {
  const Job job({.stages = 3}, {.accumulation = 5});
  for (int stage = 0; stage < 3; ++stage) {
    const StepFigures figures = FiguresOf(job.ProgramOf(stage));
    const int64_t received = stage == 0 ? 0 : job.stages[stage].received_bytes;
    // Or received back: the first stage sends nothing in its last passes, so all of theirs may come
    // before the first of them.
    const int64_t handed_back = (stage == 0 ? 3 : 1) * job.stages[0].received_bytes;
    EXPECT_EQ(At(figures.peak, Arena::kActivations),
              (3 - stage) * (kKeptBytes + received) + (kPeakBytes - kKeptBytes) + handed_back);
  }
}

// Ordered sums are over micro-batches; others are made before they travel.
TEST(CompileProgram, HandsTheGradientOfWhatIsBorrowedBackOncePerStepUnlessSumsAreOrdered) {
  for (const bool ordered : {false, true}) {
    const Job job({.stages = 3}, {.accumulation = 5, .ordered = ordered, .tied = true});
    for (const int rank : {0, 2}) {
      int64_t num_tied = 0;
      for (const Action& action : job.ProgramOf(rank).actions) {
        const Transfer* const transfer = action.If<Transfer>();
        if (transfer && transfer->what.payload == Payload::kTied) ++num_tied;
      }
      EXPECT_EQ(num_tied, ordered ? 5 : 1) << "rank " << rank;
    }
  }
}

TEST(CompileProgram, ReducesBucketsInTheOrderOfTheirGradients) {
  Job job({.replicas = 2}, {});
  std::vector<int>& gradients = job.stages[0].trace.gradients;
  std::reverse(gradients.begin(), gradients.end());
  const std::vector<Bucket> buckets = job.ProgramOf(0).buckets;
  EXPECT_EQ(buckets.front().blocks.begin, 0) << "the first parameter's gradient comes first now";
}

TEST(Describe, NamesEachActionAndWhatItWaitsFor) {
  const std::string text = Describe(Job({.replicas = 2}, {}).ProgramOf(0));
  EXPECT_THAT(text, HasSubstr("action 0=FORWARD stage 0 micro-batch 0\n"));
  EXPECT_THAT(text, HasSubstr("action 2=BACKWARD stage 0 micro-batch 0 to slot 0\n"));
  EXPECT_THAT(text, HasSubstr("REDUCE bucket 0 blocks ["));
  EXPECT_THAT(text, HasSubstr("all-reduce in world"));
}

TEST(RankThatNeedsMost, HoldsTheMostPartialSums) {
  Plan plan;
  plan.mode = SumMode::kOrdered;
  plan.accumulation = 3;
  // Sums of 9 leaves: (0+1), 2 | 3, (4+5) | (6+7), 8.
  const Job job({.replicas = 3}, {.accumulation = 3, .ordered = true});
  const int rank = RankThatNeedsMost({.plan = plan,
                                      .parameters = job.parameters,
                                      .types = {},
                                      .mesh = job.mesh,
                                      .stages = job.stages});
  for (int other = 0; other < 3; ++other) {
    EXPECT_GE(OrderedPartialSums(rank, 3, 3), OrderedPartialSums(other, 3, 3));
  }
}

}  // namespace
}  // namespace muster::plan
