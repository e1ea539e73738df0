#include "worker_runtime/engine/step_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace muster::engine {
namespace {

StepShape Shape(int64_t batch, int64_t allocations = 0) {
  StepShape shape = {.batch = batch, .sequence = 8};
  shape.pool.system_allocations = allocations;
  return shape;
}

// Ranks that take steps together; captures work unless they are said to fail.
class Ranks {
 public:
  explicit Ranks(int size) : forms(size) {}

  // One step on batches of those shapes, by rank; memory stays as it is.
  StepForm Step(const std::vector<StepShape>& shapes, bool captures = true) {
    StepForm form = StepForm::kLaunch;
    for (size_t r = 0; r < forms.size(); ++r) form = std::min(form, forms[r].Propose(shapes[r]));
    for (size_t r = 0; r < forms.size(); ++r) {
      forms[r].Agreed(form);
      if (form == StepForm::kPut) forms[r].WasPut(shapes[r], shapes[r]);
      if (form == StepForm::kCapture) forms[r].WasCaptured(captures);
    }
    return form;
  }
  StepForm Step() { return Step(std::vector<StepShape>(forms.size(), Shape(1))); }

  std::vector<StepForms> forms;
};

TEST(StepForms, AreCapturedAfterAStepThatTookNoMemoryAndLaunchedThen) {
  StepForms forms;
  EXPECT_EQ(forms.Propose(Shape(1)), StepForm::kPut);
  forms.Agreed(StepForm::kPut);
  forms.WasPut(Shape(1), Shape(1, 5));  // it took some
  EXPECT_EQ(forms.Propose(Shape(1, 5)), StepForm::kPut);
  forms.Agreed(StepForm::kPut);
  forms.WasPut(Shape(1, 5), Shape(1, 5));
  EXPECT_EQ(forms.Propose(Shape(1, 5)), StepForm::kCapture);
  forms.Agreed(StepForm::kCapture);
  forms.WasCaptured(true);
  EXPECT_EQ(forms.Propose(Shape(1, 5)), StepForm::kLaunch);
  EXPECT_EQ(forms.Propose(Shape(1, 6)), StepForm::kPut);  // memory was taken since
  EXPECT_EQ(forms.Propose(Shape(2, 5)), StepForm::kPut);
}

TEST(StepForms, AreTheWorstOfAllRanksAndAllBeginAnewWithIt) {
  Ranks ranks(3);
  EXPECT_EQ(ranks.Step(), StepForm::kPut);
  EXPECT_EQ(ranks.Step(), StepForm::kCapture);
  EXPECT_EQ(ranks.Step(), StepForm::kLaunch);
  const std::vector<StepShape> one_differs = {Shape(1), Shape(2), Shape(1)};
  EXPECT_EQ(ranks.Step(one_differs), StepForm::kPut);
  // A rank that could have launched captures again, since the others do.
  EXPECT_EQ(ranks.Step(one_differs), StepForm::kCapture);
  EXPECT_EQ(ranks.Step(one_differs), StepForm::kLaunch);
}

TEST(StepForms, AreCapturedAnewByWhoCouldLaunchIfAnotherCouldOnlyCapture) {
  Ranks ranks(2);
  ranks.Step();
  ranks.Step();
  ranks.forms[1].Agreed(StepForm::kCapture);
  EXPECT_EQ(ranks.forms[0].Propose(Shape(1)), StepForm::kLaunch);
  EXPECT_EQ(ranks.Step(), StepForm::kCapture);
  EXPECT_EQ(ranks.Step(), StepForm::kLaunch);
}

TEST(StepForms, AreSettledForGoodOnceOneRankDeclinesOrItsCaptureFails) {
  Ranks declining(2), failing(2);
  declining.Step();
  declining.forms[1].Decline();
  EXPECT_EQ(declining.Step(), StepForm::kNever);
  failing.Step();
  EXPECT_EQ(failing.Step({Shape(1), Shape(1)}, /*captures=*/false), StepForm::kCapture);
  for (const auto& ranks : {declining, failing}) {
    for (const StepForms& forms : ranks.forms) EXPECT_TRUE(forms.are_settled());
  }
}

TEST(StepForms, BeginAnewAfterAFailure) {
  Ranks ranks(2);
  for (int i = 0; i < 3; ++i) ranks.Step();
  for (StepForms& forms : ranks.forms) forms.Forget();
  EXPECT_EQ(ranks.Step(), StepForm::kPut);
  EXPECT_EQ(ranks.Step(), StepForm::kCapture);
}

}  // namespace
}  // namespace muster::engine
