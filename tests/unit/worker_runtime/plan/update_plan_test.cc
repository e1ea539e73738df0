// Loss scales and learning rates against DeepSpeed and PyTorch (update_golden.txt, written by
// make_update_golden.py), and what the groups of a plan say of each parameter.
#include "worker_runtime/plan/update_plan.h"
#include "absl/strings/str_cat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/loss_scaler.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Words = std::vector<std::string>;
using Verdict = LossScaler::Verdict;

// The lines that begin with `word`, as words.
std::vector<Words> Golden(const std::string& word) {
  std::vector<Words> lines;
  std::istringstream file(ReadFile(absl::StrCat(
      testing::kSourceDirectory, "/tests/unit/worker_runtime/plan/update_golden.txt")));
  for (std::string line; std::getline(file, line);) {
    Words words = absl::StrSplit(line, ' ');
    if (words.front() == word) lines.push_back(std::move(words));
  }
  return lines;
}

double Number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

// What the words from `first` on say: a scale after each of `overflows`, = for the same, or "ends".
void ExpectScales(LossScaler scaler, const std::string& overflows, const Words& words,
                  size_t first) {
  for (size_t i = first; i < words.size(); ++i) {
    const double before = scaler.scale();
    const bool overflow = overflows[i - first] == '1';
    const Verdict verdict = scaler.Judge(overflow);
    if (words[i] == "ends") {
      EXPECT_EQ(verdict, Verdict::kAtLowest);
      EXPECT_EQ(scaler.scale(), before);
      return;
    }
    EXPECT_EQ(verdict, overflow ? Verdict::kSkip : Verdict::kUpdate);
    ASSERT_EQ(scaler.scale(), words[i] == "=" ? before : Number(words[i]))
        << "after step " << i - first + 1;
  }
}

TEST(LossScaler, ScalesAsDeepSpeedDoes) {
  const auto cases = Golden("deepspeed");
  EXPECT_GT(cases.size(), 500);
  for (const Words& words : cases) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    ExpectScales(LossScaler({.kind = LossScaling::Kind::kDeepSpeed,
                             .initial = std::ldexp(1.0, std::atoi(words[1].c_str())),
                             .window = std::atoi(words[2].c_str()),
                             .hysteresis = std::atoi(words[3].c_str()),
                             .consecutive_hysteresis = words[4] == "1",
                             .minimum = Number(words[5])}),
                 words[6], words, 7);
  }
}

TEST(LossScaler, ScalesAsGradScalerDoes) {
  const auto cases = Golden("torch");
  EXPECT_THAT(cases, SizeIs(500));
  for (const Words& words : cases) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    ExpectScales(LossScaler({.kind = LossScaling::Kind::kTorch,
                             .initial = Number(words[1]),
                             .window = std::atoi(words[4].c_str()),
                             .growth = Number(words[2]),
                             .backoff = Number(words[3])}),
                 words[5], words, 6);
  }
}

TEST(LossScaler, DoesNotRefillHysteresisBeforeItGrows) {
  LossScaler scaler({.kind = LossScaling::Kind::kDeepSpeed, .window = 4});
  std::vector<double> scales;
  for (const int overflow : {1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1}) {
    scaler.Judge(overflow == 1);
    scales.push_back(scaler.scale() / 1024);
  }
  EXPECT_THAT(scales, ElementsAre(64, 32, 16, 16, 16, 16, 16, 32, 32, 32, 32, 64, 64, 64, 32));
}

TEST(LossScaler, KeepsAStaticScaleAndSkipsTheSameSteps) {
  LossScaler scaler(LossScaling::Static(128));
  EXPECT_EQ(scaler.Judge(true), Verdict::kSkip);
  EXPECT_EQ(scaler.Judge(false), Verdict::kUpdate);
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, CountsSkippedStepsUntilAGoodOne) {
  for (const LossScaling& options :
       {LossScaling::Static(128), LossScaling::DeepSpeed(), LossScaling::Torch()}) {
    LossScaler scaler(options);
    std::vector<int64_t> counts;
    for (const bool overflow : {true, true, false, true}) {
      scaler.Judge(overflow);
      counts.push_back(scaler.skipped_in_a_row());
    }
    EXPECT_THAT(counts, ElementsAre(1, 2, 0, 1));
  }
}

TEST(SeedOfBackward, IsTheScaleOverTheNearestPowerOfTwoOfTheTokens) {
  EXPECT_EQ(SeedOfBackward(65536, 1), 65536);
  EXPECT_EQ(SeedOfBackward(65536, 2), 32768);
  EXPECT_EQ(SeedOfBackward(65536, 5), 65536 / 4);
  EXPECT_EQ(SeedOfBackward(65536, 6), 65536 / 8) << "5.7 lies in the middle";
  EXPECT_EQ(SeedOfBackward(1000, 4096), 1000.0 / 4096);
  EXPECT_EQ(SeedOfBackward(1, int64_t{1} << 40), 0x1p-40);
}

TEST(LossScaler, EndsWhereGradScalersScaleWouldBecomeZero) {
  LossScaler scaler({.kind = LossScaling::Kind::kTorch, .initial = 0x1p-149});
  EXPECT_EQ(scaler.Judge(true), Verdict::kAtLowest);
  EXPECT_EQ(scaler.scale(), 0x1p-149);
}

TEST(LossScaler, GoesOnFromWhatWasSavedAsIfItHadNeverStopped) {
  for (const LossScaling& options :
       {LossScaling{.kind = LossScaling::Kind::kDeepSpeed, .window = 3, .hysteresis = 2},
        LossScaling{.kind = LossScaling::Kind::kTorch, .window = 3}}) {
    LossScaler whole(options);
    LossScaler first(options);
    const std::string overflows = "0010110001000010000";
    for (size_t i = 0; i < overflows.size(); ++i) {
      whole.Judge(overflows[i] == '1');
      LossScaler next(options);
      ASSERT_THAT(next.Load(first.Save()), IsOk());
      next.Judge(overflows[i] == '1');
      EXPECT_EQ(next.Save(), whole.Save());
      ASSERT_THAT(first.Load(next.Save()), IsOk());
    }
  }
}

TEST(LossScaler, BeginsAnewFromACheckpointOfAnotherKind) {
  LossScaler deepspeed(LossScaling::DeepSpeed());
  deepspeed.Judge(true);
  deepspeed.Judge(true);
  LossScaler torch(LossScaling::Torch());
  EXPECT_THAT(torch.Load(deepspeed.Save()), IsOk());
  EXPECT_EQ(torch.scale(), 65536);
  EXPECT_THAT(torch.Load(LossScaler({}).Save()), IsOk());
}

TEST(LossScaler, RefusesADamagedStateByItsField) {
  LossScaler scaler(LossScaling::Torch());
  auto saved = scaler.Save();
  saved["loss_scale.scale"] = "-1";
  EXPECT_THAT(scaler.Load(saved),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loss_scale.scale is '-1'")));
  saved = scaler.Save();
  saved.erase("loss_scale.good_steps");
  EXPECT_THAT(scaler.Load(saved), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("loss_scale.good_steps is missing")));
}

TEST(LearningRate, IsThatOfDeepSpeedAndPyTorch) {
  using Kind = LearningRateSchedule::Kind;
  const auto cases = Golden("rate");
  EXPECT_THAT(cases, SizeIs(35));
  for (const Words& words : cases) {
    LearningRateSchedule schedule = {.peak = Number(words[3]),
                                     .floor = Number(words[4]),
                                     .warmup_steps = std::atoi(words[5].c_str()),
                                     .total_steps = std::atoi(words[6].c_str())};
    for (const Kind kind :
         {Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWarmup, Kind::kWarmupDecay}) {
      if (words[1] == ToString(kind)) schedule.kind = kind;
    }
    schedule.rise =
        words[2] == "log" ? LearningRateSchedule::Rise::kLog : LearningRateSchedule::Rise::kLinear;
    EXPECT_EQ(words[1], ToString(schedule.kind));
    for (size_t i = 7; i < words.size(); ++i) {
      const double expected = Number(words[i]);
      // PyTorch multiplies its rate on from step to step.
      EXPECT_NEAR(LearningRate(schedule, i - 7), expected, 1e-13 * schedule.peak)
          << absl::StrJoin(words, " ") << ", update " << i - 7;
    }
  }
}

const std::vector<ParameterInfo>& Model() {
  static const std::vector<ParameterInfo> model = {
      {.name = "wte.weight", .shape = {8}, .weight_decay = true},
      {.name = "h.0.fc.weight", .shape = {8}, .weight_decay = true},
      {.name = "h.0.fc.bias", .shape = {8}},
      {.name = "h.1.fc.weight", .shape = {8}, .weight_decay = true}};
  return model;
}

TEST(PlanUpdates, TakeTheFirstGroupWhosePatternFits) {
  Plan plan;
  plan.groups = {{.parameters = "h.0.*", .learning_rate_scale = 0.1},
                 {.parameters = "*.weight", .weight_decay = 0.25, .beta1 = 0.5, .beta2 = 0.75}};
  const auto updates = PlanUpdates(plan, Model());
  ASSERT_THAT(updates, IsOk());
  EXPECT_EQ((*updates)[0].learning_rate_scale, 1);
  EXPECT_EQ((*updates)[0].weight_decay, 0.25);
  EXPECT_EQ((*updates)[0].beta1, 0.5);
  EXPECT_EQ((*updates)[0].beta2, 0.75);
  EXPECT_EQ((*updates)[1].learning_rate_scale, 0.1);
  EXPECT_EQ((*updates)[1].weight_decay, plan.update.weight_decay);
  EXPECT_EQ((*updates)[1].beta1, plan.update.beta1);
}

TEST(PlanUpdates, DecayBiasesOnlyWhereAGroupSaysSo) {
  Plan plan;
  EXPECT_EQ((*PlanUpdates(plan, Model()))[2].weight_decay, 0);
  plan.groups = {{.parameters = "*.bias", .weight_decay = 0.5}};
  EXPECT_EQ((*PlanUpdates(plan, Model()))[2].weight_decay, 0.5);
}

TEST(PlanUpdates, NameAPatternThatFitsNothing) {
  Plan plan;
  plan.groups = {{.parameters = "wte.*"}, {.parameters = "wte.weigt"}};
  EXPECT_THAT(PlanUpdates(plan, Model()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("groups.1.parameters 'wte.weigt' fits no parameter of the model; "
                                 "expected a name such as wte.weight, with * for any letters; "
                                 "did you mean wte.weight?")));
}

TEST(PlanUpdates, RefuseToFreezeEverything) {
  Plan plan;
  plan.groups = {{.parameters = "*", .frozen = true}};
  EXPECT_THAT(PlanUpdates(plan, Model()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nothing to learn")));
}

TEST(FitsPattern, TakesAStarForAnyLetters) {
  for (const char* pattern : {"*", "h.0.fc.bias", "h.*", "*.bias", "h.*.bias", "*0*", "h.*.*.*",
                              "**h.0.fc.bias**", "h.0.fc.bia*s"}) {
    EXPECT_TRUE(FitsPattern("h.0.fc.bias", pattern)) << pattern;
  }
  for (const char* pattern : {"", "h", "h.0.fc.bias.", "*.weight", "x*", "h.0.fc.bias*s", "*.fc",
                              "h.*.0.*", "*bias*bias"}) {
    EXPECT_FALSE(FitsPattern("h.0.fc.bias", pattern)) << pattern;
  }
}

}  // namespace
}  // namespace muster::plan
