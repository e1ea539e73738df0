// A worker that commits steps for ever: rank 0 notes in $OUT/commits those that it may publish, and
// in $OUT/refused those that it may not, as "<node> <round> <step>". $NODE says where it runs.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "muster/runtime.h"

int main() {
  auto runtime = muster::Runtime::FromEnvironment();
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", std::string(runtime.status().message()).c_str());
    return 1;
  }
  const std::string out = std::getenv("OUT");
  const muster::CheckpointFence fence = (*runtime)->checkpoint_fence();
  int64_t step = 0;
  while (access((out + "/done").c_str(), F_OK) != 0) {
    if ((*runtime)->rank() == 0) {
      const absl::Status status = fence.commit(++step);
      std::ofstream(out + (status.ok() ? "/commits" : "/refused"), std::ios::app)
          << std::getenv("NODE") << " " << fence.round << " " << step << std::endl;
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return (*runtime)->Finish(step).ok() ? 0 : 1;
}
