// A worker that steps until its job stops, together with the other ranks by files in
// $OUT/<attempt>/. It notes each step that it begins as step.<step>.<rank>, and prints after which
// it leaves and why.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "muster/runtime.h"

int main() {
  auto runtime = muster::Runtime::FromEnvironment();
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", std::string(runtime.status().message()).c_str());
    return 1;
  }
  const std::string out =
      absl::StrCat(std::getenv("OUT"), "/", std::getenv("TORCHELASTIC_RESTART_COUNT"));
  std::filesystem::create_directories(out);
  const auto begun = [&out](int64_t step, int rank) {
    return absl::StrCat(out, "/step.", step, ".", rank);
  };
  for (int64_t step = 0;; ++step) {
    std::ofstream(begun(step, (*runtime)->rank())).close();
    for (int other = 0; other < (*runtime)->size(); ++other) {
      while (access(begun(step, other).c_str(), F_OK) != 0) absl::SleepFor(absl::Milliseconds(5));
    }
    if ((*runtime)->ShouldStop(step)) {
      std::printf("left after step %d: %s\n", static_cast<int>(step),
                  (*runtime)->stop_reason().c_str());
      return (*runtime)->Finish(step).ok() ? 0 : 1;
    }
    // There and back again: the agent knows by now that this worker asks. The answer does not
    // matter.
    if (step == 0) (*runtime)->CommitCheckpoint(0).IgnoreError();
  }
}
