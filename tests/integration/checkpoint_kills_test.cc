// What is left of a training whose ranks were killed at two hundred random moments of their saves.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/sliced_training.h"

namespace muster::testing {
namespace {

TEST_F(SlicedTraining, LosesNoCheckpointToTwoHundredKills) {
  for (int i = 0; i < 10; ++i) {
    const std::string place = Out(absl::StrCat("saved", i));
    ExpectThatKilledSavesLeaveACheckpoint(place, 20);
    std::filesystem::remove_all(place);
  }
}

}  // namespace
}  // namespace muster::testing
