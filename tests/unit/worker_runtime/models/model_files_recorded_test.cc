// The models of tests/data/models, beside what transformers computes with them (record.py there).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/model_files.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::kSourceDirectory;
using ::muster::testing::LargestRelativeDifference;
using ::muster::testing::OnRanks;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::Under;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kContext = 16, kVocabulary = 256;
constexpr int kRowsOfStep = 2;

std::string DirectoryOf(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/data/models/", name);
}

// rows_of() of record.py, from row `first` on.
struct Rows {
  Rows(int64_t step, int first, int count) : count(count) {
    const auto id = [step](int64_t row, int64_t t) {
      return static_cast<int32_t>((step * 31 + row * 77 + t * 13 + step * t % 7 + t * t) %
                                  kVocabulary);
    };
    for (int64_t row = first; row < first + count; ++row) {
      for (int64_t t = 0; t < kContext; ++t) {
        inputs.push_back(id(row, t));
        targets.push_back(id(row, t + 1));
      }
    }
  }
  TokenBatch tokens() const { return {.tokens = inputs, .batch = count, .sequence = kContext}; }

  int count;
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

// A rank of the training of a model.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Create(Communicator& world,
                                                          const std::string& directory, Plan plan,
                                                          DType dtype = DType::kF32) {
    auto training = std::unique_ptr<Training>(new Training(world, dtype));
    MUSTER_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(directory));
    DecoderConfig config = files.config();
    config.context = kContext;
    MUSTER_ASSIGN_OR_RETURN(training->model_, Decoder::Create(config, training->store_));
    MUSTER_ASSIGN_OR_RETURN(
        training->engine_,
        Engine::Create(world, training->store_, std::move(plan), training->model_->Units(),
                       {.batch = kRowsOfStep / world.size(), .sequence = kContext}));
    MUSTER_RETURN_IF_ERROR(training->engine_->LoadModel(files));
    return training;
  }

  // The logits at POSITIONS of record.py.
  std::vector<double> Logits() {
    Tape tape(engine_->pool(), Tape::Mode::kInference);
    const Rows rows(0, 0, 1);
    const Activation logits = model_->Forward(tape, rows.tokens());
    EXPECT_THAT(tape.status(), IsOk());
    std::vector<double> picked;
    for (const int64_t position : {0, 7, 15}) {
      const auto row = logits.value.span<float>().subspan(position * kVocabulary, kVocabulary);
      picked.insert(picked.end(), row.begin(), row.end());
    }
    return picked;
  }

  std::vector<double> Losses(int steps) {
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      const int rows_of_rank = kRowsOfStep / world_.size();
      const Rows rows(step, world_.rank() * rows_of_rank, rows_of_rank);
      const auto result = engine_->Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
        return model_->ComputeLoss(tape, rows.tokens(), rows.targets);
      });
      EXPECT_THAT(result, IsOk());
      if (!result.ok()) break;
      losses.push_back(result->loss);
    }
    return losses;
  }

  Engine& engine() { return *engine_; }

 private:
  Training(Communicator& world, DType dtype) : world_(world), store_(dtype) {}

  Communicator& world_;
  ParameterStore store_;
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<Engine> engine_;
};

Plan PlanOf(const std::string& preset, int ranks) {
  Plan plan;
  plan.learning_rate = {.peak = 1e-3};
  return Under(preset, plan, ranks);
}

struct PlannedRanks {
  const char* preset;
  int ranks;
  int stages = 1;
};

class RecordedModels : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<double> Recorded(const std::string& what) const {
    std::ifstream file(DirectoryOf(GetParam()) + "/expected.json");
    return nlohmann::json::parse(file).at(what).get<std::vector<double>>();
  }
  // Shows a training of one rank to `look`.
  template <typename Look>
  void Alone(const Look& look, DType dtype = DType::kF32) const {
    OnRanks<int>(1, [&](Communicator& world) {
      auto training = Training::Create(world, DirectoryOf(GetParam()), PlanOf("ddp", 1), dtype);
      EXPECT_THAT(training, IsOk());
      if (training.ok()) look(**training);
      return 0;
    });
  }
};

TEST_P(RecordedModels, HaveTheLogitsOfTransformers) {
  Alone([&](Training& training) {
    const std::vector<double> ours = training.Logits(), theirs = Recorded("logits");
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_NEAR(ours[i], theirs[i], 1e-5 * std::max(1.0, std::abs(theirs[i]))) << i;
    }
  });
}

TEST_P(RecordedModels, LearnAsInTransformers) {
  const std::vector<double> theirs = Recorded("losses");
  for (const PlannedRanks& planned :
       {PlannedRanks{"ddp", 1}, PlannedRanks{"ddp", 2}, PlannedRanks{"zero-3", 2}}) {
    const auto losses = OnRanks<std::vector<double>>(planned.ranks, [&](Communicator& world) {
      auto training =
          Training::Create(world, DirectoryOf(GetParam()), PlanOf(planned.preset, planned.ranks));
      EXPECT_THAT(training, IsOk());
      if (!training.ok()) return std::vector<double>();
      return (*training)->Losses(static_cast<int>(theirs.size()));
    });
    ASSERT_THAT(losses, Each(SizeIs(theirs.size())));
    EXPECT_LT(LargestRelativeDifference(losses[0], theirs), 1e-5)
        << planned.preset << " " << planned.ranks;
  }
}

TEST_P(RecordedModels, AreTheSameUnderEveryPlan) {
  std::string alone;
  Alone([&](Training& training) { alone = training.engine().ParameterHash().value_or("none"); });
  for (const PlannedRanks& planned : {PlannedRanks{"zero-1", 2}, PlannedRanks{"zero-3", 2},
                                      PlannedRanks{"ddp", 2, /*stages=*/2}}) {
    const auto hashes = OnRanks<std::string>(planned.ranks, [&](Communicator& world) {
      Plan plan = PlanOf(planned.preset, planned.ranks);
      plan.stages = planned.stages;
      auto training = Training::Create(world, DirectoryOf(GetParam()), plan);
      EXPECT_THAT(training, IsOk());
      return training.ok() ? (*training)->engine().ParameterHash().value_or("none") : "none";
    });
    EXPECT_THAT(hashes, Each(alone)) << planned.preset << " " << planned.stages;
  }
}

TEST_P(RecordedModels, LoadIntoSixteenBits) {
  Alone(
      [&](Training& training) {
        const auto loss = training.Losses(1);
        ASSERT_THAT(loss, SizeIs(1));
        EXPECT_NEAR(loss[0], Recorded("losses")[0], 0.1);
      },
      DType::kBf16);
}

INSTANTIATE_TEST_SUITE_P(Each, RecordedModels,
                         ::testing::Values("gpt2", "llama2", "llama3", "mistral", "qwen2", "qwen3",
                                           "granite"),
                         [](const auto& info) { return info.param; });

TEST(LoadModel, RefusesFilesThatOtherRanksDoNotHave) {
  const TemporaryDirectory other;
  std::filesystem::copy(DirectoryOf("llama2"), other.path(),
                        std::filesystem::copy_options::recursive);
  std::ofstream(other.File("config.json"), std::ios::app) << "\n";
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    const std::string own = world.rank() == 0 ? DirectoryOf("llama2") : other.path();
    return Training::Create(world, own, PlanOf("ddp", 2)).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("is another model for this rank than for rank 0"))));
}

TEST(LoadModel, RefusesAModelOfOtherShapes) {
  OnRanks<int>(1, [](Communicator& world) {
    const auto files = ModelFiles::Open(DirectoryOf("llama2"));
    EXPECT_THAT(files, IsOk());
    DecoderConfig config = files->config();
    config.context = kContext;
    config.mlp_size = 32;
    ParameterStore store;
    const auto model = Decoder::Create(config, store);
    const auto engine = Engine::Create(world, store, PlanOf("ddp", 1), (*model)->Units(),
                                       {.batch = 1, .sequence = kContext});
    EXPECT_THAT((*engine)->LoadModel(*files),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("h.0.mlp.c_fc.weight is f32 [48, 16] there and f32")));
    return 0;
  });
}

}  // namespace
}  // namespace muster
