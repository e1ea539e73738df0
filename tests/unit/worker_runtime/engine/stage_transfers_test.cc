#include "worker_runtime/engine/stage_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::engine {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using plan::PassKind;
using plan::Payload;
using plan::Transfer;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Four units of one parameter of two elements, each a stage; the last uses that of the first.
struct Rank {
  explicit Rank(Communicator& world, const std::string& schedule) {
    for (int unit = 0; unit < 4; ++unit) {
      store.BeginUnit("u" + std::to_string(unit));
      store.Declare({.name = "p" + std::to_string(unit), .shape = {2}});
      Parameter& parameter = *store.parameters().back();
      parameter.BindValue(Filled(unit));
      parameter.BindGradient(Filled(10 * unit));
    }
    Plan plan;
    plan.stages = 2;
    plan.schedule = schedule;
    set_up.parameters = InfoOf(store);
    set_up.layout = plan::PlanBlockLayout(set_up.parameters);
    for (int stage = 0; stage < 4; ++stage) {
      set_up.stages.push_back(plan::StageOfUnits(set_up.layout, stage, stage + 1, {}));
    }
    set_up.stages[3].borrowed = {0};
    set_up.received = {{}, {{2}}, {{2}}, {{2}, {2}}};
    set_up.mesh = plan::Mesh({2, 1, 1, 1, 1});
    set_up.schedule = *plan::ScheduleOf(plan, 2);
    transfers.emplace(world, store, set_up, plan::TypesOf(plan, DType::kF32), passes, queue, pool);
  }

  Tensor Filled(float value) {
    Tensor tensor = pool.Allocate(DType::kF32, {2});
    tensor.span<float>()[0] = value;
    tensor.span<float>()[1] = value + 1;
    return tensor;
  }

  // Carries it out.
  absl::Status Carry(Transfer transfer) {
    transfer.bytes = 2 * sizeof(float);
    std::vector<Tensor> memory = transfers->MemoryOf(transfer);
    for (const Work& work : transfers->Start(transfer, memory)) {
      MUSTER_RETURN_IF_ERROR(work.Wait());
    }
    transfers->Finish(transfer, std::move(memory));
    return absl::OkStatus();
  }

  TensorPool pool;
  Queue queue{pool.device(), &pool};
  ParameterStore store;
  EngineSetUp set_up;
  PassesInFlight passes{pool, {}};
  std::optional<StageTransfers> transfers;
};

std::vector<float> Elements(const Tensor& tensor) {
  const auto all = tensor.span<float>();
  return {all.begin(), all.end()};
}

MATCHER_P2(Holds, first, second, "") {
  return ExplainMatchResult(ElementsAre(first, second), Elements(arg), result_listener);
}

TEST(StageTransfers, BringWhatAStageHasMadeToTheOneThatWaitsForIt) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    Rank rank(world, "interleaved");  // stages 0 and 2, 1 and 3
    const bool sends = world.rank() == 0;
    const int peer = 1 - world.rank();
    // Forward from stage 2 to stage 3, backward from stage 2 to stage 1.
    if (sends) {
      rank.passes.At(2, 5).output.passed_on = {{rank.Filled(3)}, {rank.Filled(8)}};
      rank.passes.At(2, 5).input_gradients = {rank.Filled(7)};
    }
    for (const Payload payload : {Payload::kActivation, Payload::kGradient}) {
      absl::Status status = rank.Carry({.is_send = sends, .what = {payload, 2, 5}, .place = peer});
      if (!status.ok()) return status;
    }
    if (sends) {
      EXPECT_THAT(rank.passes.At(2, 5).input_gradients, IsEmpty()) << "their memory has left";
    } else {
      EXPECT_THAT(rank.passes.At(3, 5).came, ElementsAre(Holds(3, 4), Holds(8, 9)));
      EXPECT_THAT(rank.passes.At(1, 5).gradients, ElementsAre(Holds(7, 8)));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
}

TEST(StageTransfers, BringGradientsOfTiedParametersBackAndTheirValuesThere) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    Rank rank(world, "interleaved");
    const bool lends = world.rank() == 0;
    const int peer = 1 - world.rank();
    absl::Status status =
        rank.Carry({.is_send = !lends, .what = {Payload::kTied, 3, 1}, .place = peer});
    if (!status.ok()) return status;
    Parameter& tied = *rank.store.parameters()[0];
    if (lends) {
      // What came is written first, and what the stage itself finds is added.
      PassInFlight& pass = rank.passes.At(0, 1);
      tied.ForgetGradient();
      tied.gradient().span<float>()[0] = 100;
      rank.transfers->AddTiedGradient(0, pass);
      EXPECT_THAT(Elements(tied.gradient()), ElementsAre(0, 1));
      EXPECT_TRUE(tied.BeginGradient().accumulate);
      EXPECT_TRUE(pass.tied_gradient.empty());
      tied.value().span<float>()[0] = 42;
    }
    status = rank.Carry({.is_send = lends, .what = {Payload::kValue, 0}, .place = peer});
    EXPECT_THAT(Elements(tied.value()), ElementsAre(42, 1));
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
}

TEST(StageTransfers, AreNamedByStageMicroBatchAndDirection) {
  OnRanks<int>(2, [](Communicator& world) {
    const Rank rank(world, "interleaved");
    EXPECT_EQ(rank.transfers->NameOf({.what = {Payload::kActivation, 2, 5}, .place = 1}),
              "the activation of stage 2 and micro-batch 5, from rank 1");
    EXPECT_EQ(rank.transfers->NameOf({.is_send = true, .what = {Payload::kValue, 0}, .place = 0}),
              "the tied value of stage 0, to rank 0");
    return 0;
  });
}

TEST(StageTransfers, KeepWhatTheSameRankGoesOnWith) {
  OnRanks<int>(2, [](Communicator& world) {
    Rank rank(world, "zbv");  // stages 0 and 3, 1 and 2
    rank.passes.At(1, 0).output.passed_on = {{rank.Filled(3)}};
    rank.transfers->Keep({.kind = PassKind::kForward, .stage = 1, .micro_batch = 0});
    EXPECT_THAT(rank.passes.At(2, 0).came, ElementsAre(Holds(3, 4)));
    rank.passes.At(2, 0).input_gradients = {rank.Filled(5)};
    rank.transfers->Keep({.kind = PassKind::kInputGradient, .stage = 2, .micro_batch = 0});
    EXPECT_THAT(rank.passes.At(1, 0).gradients, ElementsAre(Holds(5, 6)));
    rank.passes.At(0, 0).output.passed_on = {{rank.Filled(3)}};
    rank.transfers->Keep({.kind = PassKind::kForward, .stage = 0, .micro_batch = 0});
    EXPECT_THAT(rank.passes.At(1, 0).came, IsEmpty()) << "that one travels";
    return 0;
  });
}

}  // namespace
}  // namespace muster::engine
