// Engines whose ranks exchange as those of processes do: what their communicators take is planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data/token_sources.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/comm/gloo/gloo_communicator.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::testing {
namespace {

constexpr DecoderConfig kModel = {
    .layers = 3, .heads = 2, .hidden_size = 48, .context = 16, .vocabulary = 40};
constexpr Engine::BatchSize kSize = {.batch = 2, .sequence = 16};

struct Exchanged {
  int64_t memory = 0;
  int64_t sent = 0;  // in a step
};

// What is planned for each rank.
std::vector<Exchanged> Planned(Plan plan, int ranks, int ranks_of_node) {
  ParameterStore store(DType::kF32, TensorRanks::Of(0, plan.tensor_ranks));
  const auto gpt = *Decoder::Create(kModel, store);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const int stages = *NumStages(plan, ranks);
  plan.stages = stages;
  const PipelineCut cut = *engine::CutModel(store, plan, stages, gpt->Units(), sample);
  const auto traces = *engine::RecordStages(store, plan, cut, gpt->Units(), sample);
  const auto parameters = engine::InfoOf(store);
  const auto infos = engine::StagesOf(store, plan::PlanBlockLayout(parameters), cut, traces);
  std::vector<Exchanged> planned;
  for (int rank = 0; rank < ranks; ++rank) {
    const plan::Program program = plan::CompileProgram({.plan = plan,
                                                        .parameters = parameters,
                                                        .types = plan::TypesOf(plan, DType::kF32),
                                                        .mesh = *plan::MeshOf(plan, stages, ranks),
                                                        .stages = infos},
                                                       rank);
    planned.push_back({plan::ExchangeMemoryOf(program, ranks_of_node).total(),
                       plan::FiguresOf(program).sent_total()});
    // Ranks show each other what they call, which is something to a model as small.
    for (const plan::Action& action : program.actions) {
      const bool sends =
          plan::ExchangeOf(action) != nullptr || action.kind() == plan::ActionKind::kSend;
      if (sends) planned.back().sent += plan::kCallBytes;
    }
  }
  return planned;
}

// What each rank has taken after three steps.
std::vector<Exchanged> Taken(const Plan& plan, int ranks, bool by_memory) {
  auto store = std::make_shared<comm::MemoryStore>();
  std::vector<Exchanged> taken(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = comm::GlooCommunicator::Make(
          {.group = "world", .rank = rank, .size = ranks, .options = {.shared_memory = by_memory}},
          *comm::OpenGlooDevice("127.0.0.1", "lo"), store, "test");
      ASSERT_THAT(world, IsOk());
      ParameterStore parameters(DType::kF32, TensorRanks::Of(rank, plan.tensor_ranks));
      const auto gpt = *Decoder::Create(kModel, parameters);
      auto engine = Engine::Create(**world, parameters, plan, gpt->Units(), kSize);
      ASSERT_THAT(engine, IsOk());
      const CountingSource source(kModel.vocabulary);  // each token once
      auto reader = (*engine)->Read(source, kSize);
      ASSERT_THAT(reader, IsOk());
      for (int step = 0; step < 3; ++step) {
        const int64_t before = (*engine)->bytes_sent();
        ASSERT_THAT((*engine)->Step(**reader), IsOk());
        taken[rank].sent = (*engine)->bytes_sent() - before;
      }
      taken[rank].memory = (*engine)->memory().exchange;
      ASSERT_THAT((*world)->Barrier().Wait(), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return taken;
}

void ExpectAsPlanned(const Plan& plan, int ranks, const std::string& name) {
  for (const bool by_memory : {true, false}) {
    const auto taken = Taken(plan, ranks, by_memory);
    const auto planned = Planned(plan, ranks, by_memory ? ranks : 1);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string what = absl::StrCat(name, ", rank ", rank, " of ", ranks, ", ",
                                            ToString(plan.mode), by_memory ? ", by memory" : "");
      // Stages tell each other of their use in a call or two before the first step.
      EXPECT_NEAR(static_cast<double>(taken[rank].memory),
                  static_cast<double>(planned[rank].memory), 64)
          << what;
      // Norms of so few blocks go by doubling, which sends a little more than a ring.
      constexpr double kNorms = 512;
      const auto sent = static_cast<double>(planned[rank].sent);
      EXPECT_NEAR(static_cast<double>(taken[rank].sent), sent, std::max(0.01 * sent, kNorms))
          << what;
    }
  }
}

TEST(Exchange, OfEveryPresetTakesTheMemoryAndSendsTheBytesThatArePlanned) {
  for (const std::string& preset : PlanPresetNames()) {
    for (const int ranks : {2, 4}) {
      for (const SumMode mode : {SumMode::kFast, SumMode::kOrdered}) {
        if (ranks > 2 && mode == SumMode::kOrdered) continue;  // to be quick
        Plan plan = Under(preset, SmallPlan(mode, 2), ranks);
        plan.stages = PlanPreset(preset)->stages;
        ExpectAsPlanned(plan, ranks, preset);
      }
    }
  }
}

TEST(Exchange, OfTensorRanksTakesTheMemoryAndSendsTheBytesThatArePlanned) {
  for (const char* preset : {"ddp", "zero-3"}) {
    for (const SumMode mode : {SumMode::kFast, SumMode::kOrdered}) {
      Plan plan = Under(preset, SmallPlan(mode, 2), 2);
      plan.tensor_ranks = 2;
      for (const int64_t stages : {1, 2}) {
        plan.stages = stages;
        ExpectAsPlanned(plan, 4, absl::StrCat(preset, ", ", stages, " stages of tensor ranks"));
      }
    }
  }
}

}  // namespace
}  // namespace muster::testing
