#include "worker_runtime/plan/prove_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data_parallel_presets.h"
#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::plan {
namespace {

using ::muster::testing::DataParallelPresets;
using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kBroken = absl::StatusCode::kFailedPrecondition;

// Each by itself, and all together: no rank stands for another.
absl::Status Prove(const std::vector<Program>& programs) {
  JobPrograms job = {.programs = programs};
  for (const Program& program : programs) {
    if (absl::Status status = ProveMemory(program); !status.ok()) return status;
    job.kind_of_rank.push_back(static_cast<int>(job.kind_of_rank.size()));
  }
  return ProvePrograms(job);
}

// Those of all ranks, and those of one rank of each kind.
absl::Status Prove(const Job& job) {
  if (absl::Status status = Prove(job.Programs()); !status.ok()) return status;
  return ProvePrograms(CompileJob(job.Input()));
}

int Find(const Program& program, ActionKind kind) {
  const auto found = std::find_if(program.actions.begin(), program.actions.end(),
                                  [&](const Action& action) { return action.kind() == kind; });
  return static_cast<int>(found - program.actions.begin());
}

Entry& EntryOf(Action& pass, size_t number) { return std::get<Pass>(pass.body).entries[number]; }

// --- what is proven -----------------------------------------------------------------------------

TEST(ProvePrograms, HoldsForEveryPresetOnOneToSixtyFourRanks) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const bool sharded : {false, true}) {
      for (const bool ordered : {false, true}) {
        for (const int64_t accumulation : {1, 3}) {
          const Job job({.replicas = ranks},
                        {.accumulation = accumulation, .sharded = sharded, .ordered = ordered});
          EXPECT_THAT(Prove(job), IsOk())
              << ranks << " ranks, sharded " << sharded << ", ordered " << ordered;
        }
      }
    }
  }
}

TEST(ProvePrograms, HoldsForPipelinesWithReplicasInEachStage) {
  for (const int stages : {2, 3, 6}) {
    for (const int replicas : {1, 2, 3}) {
      for (int64_t accumulation = 1; accumulation <= 2 * stages + 1; ++accumulation) {
        for (const bool tied : {false, true}) {
          const Job job({.stages = stages, .replicas = replicas},
                        {.accumulation = accumulation, .ordered = tied, .tied = tied});
          EXPECT_THAT(Prove(job), IsOk())
              << stages << " stages of " << replicas << ", " << accumulation << " micro-batches";
        }
      }
    }
  }
}

TEST(ProvePrograms, HoldsForEveryPresetWithFrozenParametersAndWithoutAGradientOfThem) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const Places places : {Places{.replicas = 4}, Places{.stages = 3, .replicas = 2}}) {
      for (const bool ordered : {false, true}) {
        for (const int64_t accumulation : {1, 3}) {
          Job job(places, {.accumulation = accumulation,
                           .ordered = ordered,
                           .tied = places.stages > 1,
                           .preset = preset,
                           .shard_ranks = preset.find("hybrid") == std::string::npos ? 0 : 2,
                           .freezes = true});
          job.plan.gathering.persistence_threshold = 0;
          const std::vector<Program> programs = job.Programs();
          EXPECT_THAT(Prove(programs), IsOk()) << preset << ", " << places.stages << " stages";
          for (const Program& program : programs) {
            for (const Action& action : program.actions) {
              const bool moves_values = action.If<Unshard>() || action.If<Reshard>();
              if (BucketOf(action) == kNone || moves_values) continue;
              EXPECT_FALSE(program.buckets[BucketOf(action)].frozen) << Describe(action, program);
            }
          }
        }
      }
    }
  }
}

TEST(ProvePrograms, FindsFrozenParametersThatNothingHasGathered) {
  Job job({.replicas = 2}, {.preset = "fsdp", .freezes = true});
  job.plan.gathering.persistence_threshold = 0;
  const std::vector<Program> whole = job.Programs();
  int num_dropped = 0;
  for (size_t i = 0; i < whole[0].actions.size(); ++i) {
    const absl::Span<const Entry> entries = EntriesOf(whole[0].actions[i]);
    for (size_t e = 0; e < entries.size(); ++e) {
      for (size_t u = 0; u < entries[e].unshards.size(); ++u) {
        std::vector<Program> programs = whole;
        std::vector<int>& unshards = EntryOf(programs[0].actions[i], e).unshards;
        unshards.erase(unshards.begin() + static_cast<int64_t>(u));
        EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("nothing has gathered")));
        ++num_dropped;
      }
    }
  }
  EXPECT_GT(num_dropped, 12);
}

// Divisors of n but 1 and itself.
std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 2; d < n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

class ProvePreset : public ::testing::TestWithParam<std::string> {};

TEST_P(ProvePreset, HoldsOnOneToSixtyFourRanks) {
  const Plan plan = *PlanPreset(GetParam());
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const bool ordered : {false, true}) {
      for (const int64_t accumulation : {1, 2}) {
        JobOptions options = {
            .accumulation = accumulation, .ordered = ordered, .preset = GetParam()};
        const std::vector<int64_t> divisors = Divisors(ranks);
        const int64_t some = divisors.empty() ? ranks : divisors[divisors.size() / 2];
        if (plan.shard_ranks != 0) options.shard_ranks = some;
        if (plan.gathering.secondary_ranks != 0) options.secondary_ranks = some;
        EXPECT_THAT(Prove(Job({.replicas = ranks}, options)), IsOk())
            << ranks << " ranks, groups of " << some << ", ordered " << ordered << ", accumulation "
            << accumulation;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ProvePreset, ::testing::ValuesIn(DataParallelPresets()),
                         [](const auto& preset) {
                           return absl::StrReplaceAll(preset.param, {{"-", "_"}});
                         });

TEST(ProvePrograms, HoldsForEveryPipelineOnOneToSixtyFourRanks) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (int stages = 1; stages <= 6; ++stages) {
      if (ranks % stages != 0) continue;
      for (const bool sharded : {false, true}) {
        for (const int64_t accumulation : {1, 4}) {
          const Job job({.stages = stages, .replicas = ranks / stages},
                        {.accumulation = accumulation,
                         .sharded = sharded,
                         .ordered = accumulation == 4,
                         .tied = stages > 1});
          EXPECT_THAT(Prove(job), IsOk())
              << stages << " stages, " << ranks << " ranks, sharded " << sharded;
        }
      }
    }
  }
}

TEST(ProvePrograms, HoldsWhereGradientsAreRoundedOnTheirWay) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const int64_t accumulation : {1, 3}) {
      for (const bool overlap : {false, true}) {
        JobOptions options = {.accumulation = accumulation,
                              .overlap = overlap,
                              .preset = preset,
                              .reduce_dtype = DType::kBf16};
        if (PlanPreset(preset)->shard_ranks != 0) options.shard_ranks = 2;
        EXPECT_THAT(Prove(Job({.replicas = 4}, options)), IsOk()) << preset;
      }
    }
  }
}

TEST(ProvePrograms, HoldsForPipelinesThatShardWithinTheirStages) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const int stages : {2, 3}) {
      for (const int replicas : {2, 4}) {
        for (const bool tied : {false, true}) {
          JobOptions options = {.accumulation = 3, .tied = tied, .preset = preset};
          if (PlanPreset(preset)->shard_ranks != 0) options.shard_ranks = 2;
          const Job job({.stages = stages, .replicas = replicas}, options);
          EXPECT_THAT(Prove(job), IsOk())
              << preset << ", " << stages << " stages of " << replicas << ", tied " << tied;
        }
      }
    }
  }
}

struct ScheduleRow {
  const char* name;
  int64_t stages_per_rank;
};
constexpr ScheduleRow kSchedules[] = {{"gpipe", 1},       {"1f1b", 1},  {"interleaved", 2},
                                      {"interleaved", 3}, {"zb-h1", 1}, {"zbv", 2},
                                      {"dualpipev", 2}};

TEST(ProvePrograms, HoldsForEveryScheduleOfTwoToSixPlacesAndOneToThirteenMicroBatches) {
  int num_proven = 0;
  for (const ScheduleRow& row : kSchedules) {
    for (int places = 2; places * row.stages_per_rank <= 6; ++places) {
      for (int64_t accumulation = 1; accumulation <= 2 * places + 1; ++accumulation) {
        for (const bool tied : {false, true}) {
          const Job job({.stages = places, .replicas = 2},
                        {.accumulation = accumulation,
                         .ordered = tied,
                         .tied = tied,
                         .schedule = row.name,
                         .stages_per_rank = row.stages_per_rank});
          if (!ScheduleOf(job.plan, places).ok()) continue;
          EXPECT_THAT(Prove(job), IsOk())
              << row.name << ", " << places << " places of " << row.stages_per_rank << ", "
              << accumulation << " micro-batches, tied " << tied;
          ++num_proven;
        }
      }
    }
  }
  EXPECT_GT(num_proven, 200);
}

TEST(ProvePrograms, HoldsForEveryScheduleWhateverItsRanksShard) {
  for (const ScheduleRow& row : kSchedules) {
    for (const std::string& preset : DataParallelPresets()) {
      for (const bool ordered : {false, true}) {
        for (const GradientReduction reduction :
             {GradientReduction::kEachMicroBatch, GradientReduction::kOnce}) {
          JobOptions options = {.accumulation = 4,
                                .ordered = ordered,
                                .tied = true,
                                .preset = preset,
                                .schedule = row.name,
                                .stages_per_rank = row.stages_per_rank};
          if (PlanPreset(preset)->shard_ranks != 0) options.shard_ranks = 2;
          Job job({.stages = 2, .replicas = 4}, options);
          job.plan.gradient_reduction = reduction;
          EXPECT_THAT(Prove(job), IsOk())
              << row.name << " under " << preset << ", ordered " << ordered;
        }
      }
    }
  }
}

TEST(ProvePrograms, HoldsForEveryWayToPrefetchAndToKeep) {
  int num_proven = 0;
  for (const BackwardPrefetch prefetch :
       {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
    for (const bool reshard : {false, true}) {
      for (const int64_t units : {0, 1, 3}) {
        for (const int64_t live :
             {int64_t{2} * kBlockElements, 3 * kBlockElements, GatherPlan::kNoLimit}) {
          for (const int64_t reuse : {int64_t{0}, 4 * kBlockElements}) {
            for (const bool overlap : {false, true}) {
              Job job({.replicas = 3}, {.accumulation = 2, .overlap = overlap, .preset = "fsdp"});
              job.plan.gathering = {.reshard_after_forward = reshard,
                                    .backward_prefetch = prefetch,
                                    .prefetch_units = units,
                                    .max_live_elements = live,
                                    .max_reuse_distance = reuse};
              const std::vector<Program> programs = job.Programs();
              EXPECT_THAT(Prove(programs), IsOk()) << Describe(programs[0]);
              EXPECT_LE(programs[0].live_elements, live);
              ++num_proven;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(num_proven, 3 * 2 * 3 * 3 * 2 * 2);
}

TEST(ProvePrograms, HoldsWhereBucketsOfGradientsAreSmallerThanUnits) {
  for (const int ranks : {2, 3, 8}) {
    for (const bool ordered : {false, true}) {
      for (const int64_t accumulation : {1, 3}) {
        for (const bool overlap : {false, true}) {
          for (const bool freezes : {false, true}) {
            const Job job({.replicas = ranks}, {.accumulation = accumulation,
                                                .ordered = ordered,
                                                .overlap = overlap,
                                                .bucket_blocks = 1,
                                                .preset = "zero-2",
                                                .freezes = freezes,
                                                .knows_parameters = true});
            const std::vector<Program> programs = job.Programs();
            EXPECT_THAT(Prove(programs), IsOk()) << ranks << " ranks, ordered " << ordered;
            EXPECT_EQ(UsesBuckets(programs[0]), programs[0].streams_gradients);
          }
        }
      }
    }
  }
}

// --- what is found ------------------------------------------------------------------------------

TEST(ProvePrograms, FindsAWaitThatWasDropped) {
  std::vector<Program> programs = Job({.replicas = 2}, {}).Programs();
  Action& norm = programs[1].actions[Find(programs[1], ActionKind::kNorm)];
  norm.after.erase(norm.after.begin());
  EXPECT_THAT(Prove(programs),
              StatusIs(kBroken, AllOf(HasSubstr("rank 1"), HasSubstr("NORM"),
                                      HasSubstr("does not wait for"), HasSubstr("REDUCE"))));
}

TEST(ProvePrograms, FindsEveryWaitThatWasDropped) {
  const std::vector<Program> whole =
      Job({.stages = 2, .replicas = 2}, {.accumulation = 2, .ordered = true, .tied = true})
          .Programs();
  int num_dropped = 0;
  int num_found = 0;
  for (size_t rank = 0; rank < whole.size(); ++rank) {
    for (size_t i = 0; i < whole[rank].actions.size(); ++i) {
      const Action& action = whole[rank].actions[i];
      // What travels hands its own memory on: the engine, not the arenas, would miss the wait.
      if (action.If<Transfer>()) continue;
      for (size_t wait = 0; wait < action.after.size(); ++wait) {
        const ActionKind kind = whole[rank].actions[action.after[wait]].kind();
        if (kind == ActionKind::kRecv || kind == ActionKind::kSend) continue;
        std::vector<Program> programs = whole;
        std::vector<int>& after = programs[rank].actions[i].after;
        after.erase(after.begin() + wait);
        // Computing goes in order anyway.
        const bool matters =
            LaneOf(action.kind()) != Lane::kCompute || LaneOf(kind) != Lane::kCompute;
        if (!matters) continue;
        ++num_dropped;
        if (!Prove(programs).ok()) ++num_found;
      }
    }
  }
  EXPECT_GT(num_dropped, 10);
  EXPECT_EQ(num_found, num_dropped);
}

TEST(ProvePrograms, FindsRanksThatCallInAnotherOrder) {
  std::vector<Program> programs = Job({.replicas = 2}, {}).Programs();
  const int reduce = Find(programs[0], ActionKind::kReduce);
  std::swap(programs[0].actions[reduce], programs[0].actions[reduce + 1]);
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, AllOf(HasSubstr("meets"), HasSubstr("rank 0"),
                                                       HasSubstr("rank 1"))));
}

// Each group sees the same order on its ranks, and yet the ranks would wait for each other in a
// ring.
TEST(ProvePrograms, FindsTwoOrdersOverGroups) {
  const auto collective = [](int group, std::vector<int> after) {
    return Action{.body = SumLoss{{.group = group}}, .after = std::move(after)};
  };
  constexpr Dimensions kRows = {Dimension::kReplica}, kColumns = {Dimension::kShard};
  std::vector<Program> programs;
  for (int rank = 0; rank < 4; ++rank) {
    const bool rows_first = rank == 0 || rank == 3;
    programs.push_back({.mesh = Mesh({1, 2, 2, 1, 1}),
                        .rank = rank,
                        .groups = {kWorld, kRows, kColumns},
                        .sums = {.root_slots = {0}}});
    programs.back().actions = {collective(rows_first ? 1 : 2, {}),
                               collective(rows_first ? 2 : 1, {0})};  // of one memory
  }
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("comes before another")));
}

TEST(ProvePrograms, FindsARankThatWaitsForWhatNeverComes) {
  std::vector<Program> programs = Job({.replicas = 2}, {}).Programs();
  std::vector<Action>& actions = programs[1].actions;
  const int loss = Find(programs[1], ActionKind::kLoss);
  actions[loss].body = Norm{};  // rank 1 leaves it out
  EXPECT_FALSE(Prove(programs).ok());
}

TEST(ProvePrograms, FindsATransferThatIsAnothers) {
  std::vector<Program> programs = Job({.stages = 2}, {.accumulation = 2}).Programs();
  Action& send = programs[0].actions[Find(programs[0], ActionKind::kSend)];
  std::get<Transfer>(send.body).bytes += 4;
  EXPECT_THAT(Prove(programs),
              StatusIs(kBroken, AllOf(HasSubstr("SEND"), HasSubstr("meets"), HasSubstr("RECV"))));
}

TEST(ProvePrograms, FindsAParameterShardThatIsNeverGathered) {
  std::vector<Program> programs = Job({.replicas = 2}, {.sharded = true}).Programs();
  std::vector<Action>& actions = programs[0].actions;
  actions.erase(actions.begin() + Find(programs[0], ActionKind::kUnshard));
  EXPECT_FALSE(Prove(programs).ok());
}

TEST(ProvePrograms, FindsAReshardThatIsMissing) {
  const std::vector<Program> whole = Job({.replicas = 2}, {.preset = "fsdp"}).Programs();
  int num_dropped = 0;
  for (size_t i = 0; i < whole[0].actions.size(); ++i) {
    if (!whole[0].actions[i].If<Reshard>()) continue;
    std::vector<Program> programs = whole;
    // Left where it is, so that others are numbered as before, but it gives up nothing.
    programs[0].actions[i].body = Clip{};
    EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("rank 0"))) << i;
    ++num_dropped;
  }
  EXPECT_GT(num_dropped, 5);
}

TEST(ProvePrograms, FindsAReshardOfWhatNothingHasGathered) {
  std::vector<Program> programs = Job({.replicas = 2}, {.preset = "fsdp"}).Programs();
  std::vector<Action>& actions = programs[0].actions;
  const int forward = Find(programs[0], ActionKind::kForward);
  std::get<Reshard>(actions[Find(programs[0], ActionKind::kReshard)].body).unshard = forward;
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("nothing has gathered")));
}

// What gathers, waits for the memory, or is waited for: none may be forgotten.
TEST(ProvePrograms, FindsEveryWaitOfAUseThatWasDropped) {
  Job job({.replicas = 2}, {.accumulation = 2, .preset = "fsdp"});
  job.plan.gathering.prefetch_units = 2;
  const std::vector<Program> whole = job.Programs();
  int num_dropped = 0;
  const auto expect_broken = [&](const std::vector<Program>& programs, size_t i) {
    ++num_dropped;
    EXPECT_FALSE(Prove(programs).ok()) << NameOfAction(whole[0], i);
  };
  for (size_t i = 0; i < whole[0].actions.size(); ++i) {
    const Action& action = whole[0].actions[i];
    const absl::Span<const Entry> entries = EntriesOf(action);
    for (size_t e = 0; e < entries.size(); ++e) {
      std::vector<Program> programs = whole;
      EntryOf(programs[0].actions[i], e).unshards.clear();
      expect_broken(programs, i);
      for (size_t w = 0; w < entries[e].waits.size(); ++w) {
        programs = whole;
        std::vector<int>& waits = EntryOf(programs[0].actions[i], e).waits;
        waits.erase(waits.begin() + static_cast<int64_t>(w));
        expect_broken(programs, i);
      }
    }
    if (action.at.pass != kNone && action.If<Reduce>()) {
      std::vector<Program> programs = whole;
      programs[0].actions[i].at = {};
      expect_broken(programs, i);
    }
  }
  EXPECT_GT(num_dropped, 30);
}

TEST(ProvePrograms, FindsAGradientThatCountsTwiceInTheNorm) {
  std::vector<Program> programs = Job({.stages = 2, .replicas = 2}, {}).Programs();
  for (Bucket& bucket : programs[1].buckets) bucket.groups.copies = kNone;  // of rank 0's
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("counts 2 times")));
}

// One rank of thousands, whose program is another's but for this.
JobPrograms WithOneChanged(JobPrograms job, int rank, const std::function<void(Program&)>& change) {
  Program changed = job.programs[job.kind_of_rank[rank]];
  changed.rank = rank;
  change(changed);
  job.kind_of_rank[rank] = static_cast<int>(job.programs.size());
  job.programs.push_back(std::move(changed));
  return job;
}

TEST(ProvePrograms, FindsOneRankOf257ThatHasDroppedAWait) {
  const JobPrograms job = CompileJob(Job({.replicas = 257}, {.preset = "zero-3"}).Input());
  EXPECT_THAT(ProvePrograms(job), IsOk());
  ASSERT_EQ(job.programs.size(), 1);
  // Its NORM may come before its reductions, which no other rank can tell.
  const JobPrograms broken = WithOneChanged(job, 256, [](Program& program) {
    program.actions[Find(program, ActionKind::kNorm)].after.clear();
  });
  EXPECT_THAT(ProvePrograms(broken), IsOk());
  EXPECT_THAT(ProveMemory(broken.programs.back()),
              StatusIs(kBroken, AllOf(HasSubstr("rank 256"), HasSubstr("does not wait for"))));
}

TEST(ProvePrograms, FindsOneRankOfThousandsThatLeavesACollectiveOut) {
  const Job whole({.stages = 3, .replicas = 1024},
                  {.accumulation = 2, .preset = "hybrid-shard", .shard_ranks = 32});
  const JobPrograms job = CompileJob(whole.Input());
  EXPECT_THAT(ProvePrograms(job), IsOk());
  EXPECT_LE(job.programs.size(), 3 * 4);
  for (const int rank : {0, 1500, 3071}) {
    const JobPrograms shorter = WithOneChanged(job, rank, [](Program& program) {
      program.actions[Find(program, ActionKind::kReduce)].body = Norm{};
    });
    EXPECT_FALSE(ProvePrograms(shorter).ok()) << rank;
    const JobPrograms turned = WithOneChanged(job, rank, [](Program& program) {
      std::vector<Action>& actions = program.actions;
      const int squares = Find(program, ActionKind::kSquares);
      std::swap(actions[squares].body, actions[Find(program, ActionKind::kShareLoss)].body);
    });
    EXPECT_THAT(ProvePrograms(turned), StatusIs(kBroken, HasSubstr(absl::StrCat("rank ", rank))));
  }
}

// --- tensor ranks

TEST(ProvePrograms, HoldsForTensorRanksUnderEveryPresetAndSchedule) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const Places places :
         {Places{.replicas = 4, .tensor_ranks = 2},
          Places{.stages = 2, .replicas = 2, .tensor_ranks = 3}, Places{.tensor_ranks = 4}}) {
      for (const bool ordered : {false, true}) {
        for (const int64_t accumulation : {1, 3}) {
          for (const bool overlap : {false, true}) {
            const bool is_hybrid = PlanPreset(preset)->shard_ranks != 0;
            const Job job(places, {.accumulation = accumulation,
                                   .ordered = ordered,
                                   .overlap = overlap,
                                   .preset = preset,
                                   .shard_ranks = is_hybrid && places.replicas > 1 ? 2 : 0});
            EXPECT_THAT(Prove(job), IsOk()) << preset << ", ordered " << ordered;
          }
        }
      }
    }
  }
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1", "interleaved", "zbv", "dualpipev"}) {
    const Job job({.stages = 2, .replicas = 2, .tensor_ranks = 2},
                  {.accumulation = 4, .schedule = schedule});
    EXPECT_THAT(Prove(job), IsOk()) << schedule;
  }
}

TEST(ProvePrograms, HoldsForTensorRanksWhereBucketsAreEntered) {
  const Job job({.replicas = 2, .tensor_ranks = 2},
                {.accumulation = 1, .preset = "zero-2", .knows_parameters = true});
  ASSERT_TRUE(UsesBuckets(job.ProgramOf(0)));
  EXPECT_THAT(Prove(job), IsOk());
}

TEST(ProvePrograms, FindsASumThatOneTensorRankLeavesOut) {
  std::vector<Program> programs = Job({.replicas = 2, .tensor_ranks = 2}, {}).Programs();
  Program& one = programs[3];
  const int sum = Find(one, ActionKind::kCombine);
  std::vector<Entry>& entries = std::get<Pass>(one.actions[one.actions[sum].at.pass].body).entries;
  entries.erase(entries.begin() + one.actions[sum].at.entry);
  EXPECT_THAT(Prove(programs),
              StatusIs(kBroken, AllOf(HasSubstr("rank 3"), HasSubstr("goes on without its sum"))));
  one.actions[sum].at = {};
  entries.clear();
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, AllOf(HasSubstr("rank 3"), HasSubstr("COMBINE"),
                                                       HasSubstr("that no pass comes to"))));
}

TEST(ProvePrograms, FindsAPassThatGoesOnWithoutItsSum) {
  std::vector<Program> programs = Job({.tensor_ranks = 2}, {}).Programs();
  const int sum = Find(programs[1], ActionKind::kCombine);
  const Point at = programs[1].actions[sum].at;
  EntryOf(programs[1].actions[at.pass], at.entry).waits.clear();
  EXPECT_THAT(Prove(programs),
              StatusIs(kBroken, AllOf(HasSubstr("rank 1"), HasSubstr("goes on without its sum"))));
}

TEST(ProvePrograms, FindsSumsOfTwoSizes) {
  std::vector<Program> programs = Job({.tensor_ranks = 2}, {}).Programs();
  ExchangeOf(programs[1].actions[Find(programs[1], ActionKind::kCombine)])->bytes += 4;
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, AllOf(HasSubstr("COMBINE"), HasSubstr("meets"))));
}

// A gradient that is not whole would be reduced.
TEST(ProvePrograms, FindsAReductionThatComesBeforeItsGradients) {
  std::vector<Program> programs = Job({.replicas = 2, .tensor_ranks = 2}, {}).Programs();
  int num_moved = 0;
  for (size_t i = 0; i < programs[0].actions.size(); ++i) {
    const Action& action = programs[0].actions[i];
    if (!action.If<Reduce>() || action.at.pass == kNone || action.at.entry == 0) continue;
    std::vector<Program> broken = programs;
    broken[0].actions[i].at.entry = 0;
    EXPECT_THAT(Prove(broken), StatusIs(kBroken, HasSubstr("REDUCE"))) << i;
    ++num_moved;
  }
  EXPECT_GT(num_moved, 2);
}

TEST(ProvePrograms, FindsAPartOfTheGradientThatCountsForNoTensorRank) {
  std::vector<Program> programs = Job({.tensor_ranks = 2}, {}).Programs();
  for (Program& program : programs) program.learned.cut.pop_back();
  EXPECT_THAT(Prove(programs), IsOk()) << "as if the ranks had all of it alike";
  programs = Job({.tensor_ranks = 2}, {}).Programs();
  programs[1].learned.cut.pop_back();
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("rank 0 cuts other blocks")));
}

// What is shown of one rank of a kind is shown of the others: they differ in what they own alone.
TEST(CompileJob, GivesEachRankTheProgramOfItsKind) {
  int num_kinds = 0;
  for (const std::string& preset : DataParallelPresets()) {
    for (const Places places : {Places{.replicas = 12}, Places{.stages = 3, .replicas = 8},
                                Places{.stages = 2, .replicas = 4, .tensor_ranks = 2}}) {
      for (const bool ordered : {false, true}) {
        JobOptions options = {.accumulation = 3, .ordered = ordered, .preset = preset};
        if (PlanPreset(preset)->shard_ranks != 0) options.shard_ranks = 4;
        const Job job(places, options);
        const JobPrograms compiled = CompileJob(job.Input());
        for (int rank = 0; rank < job.mesh.size(); ++rank) {
          Program own = compiled.programs[compiled.kind_of_rank[rank]];
          own.rank = rank;
          for (Bucket& bucket : own.buckets) bucket.owned = OwnedBy(rank, bucket, own);
          EXPECT_EQ(Describe(own), Describe(job.ProgramOf(rank))) << preset << ", rank " << rank;
        }
        num_kinds += static_cast<int>(compiled.programs.size());
      }
    }
  }
  EXPECT_GT(num_kinds, 100);
}

TEST(ProvePrograms, FindsAWaitForWhatComesLater) {
  std::vector<Program> programs = Job({}, {}).Programs();
  programs[0].actions[0].after = {1};
  EXPECT_THAT(Prove(programs), StatusIs(kBroken, HasSubstr("what comes later")));
}

}  // namespace
}  // namespace muster::plan
