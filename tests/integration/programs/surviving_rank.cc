// A worker that goes on in the rounds of its job in one process. It adds up ones with the other
// ranks until somebody finds $OUT/done, and notes each place that it gets: the file
// $OUT/round<r>.rank<k> holds its process id and the number of ranks; $OUT/awaits<r>.<k> says that
// rank k will go on in round r. With the argument "deaf" it lets go of nothing.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "muster/runtime.h"

namespace {

using muster::Runtime;

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Ok once all have found that they are done.
absl::Status Step(muster::Communicator& world, const std::string& out) {
  while (true) {
    std::vector<int64_t> sums = {1, Exists(out + "/done") ? 1 : 0};
    if (absl::Status status = world.AllReduce(muster::BufferOf(sums)).Wait(); !status.ok()) {
      return status;
    }
    if (sums[0] != world.size()) return absl::InternalError("not everybody was there");
    if (sums[1] > 0) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(5));
  }
}

int Fail(const absl::Status& status) {
  std::printf("pid %d ends: %s\n", getpid(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string out = std::getenv("OUT");
  const bool is_deaf = argc > 1 && std::string_view(argv[1]) == "deaf";
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::FromEnvironment();
  while (true) {
    if (!runtime.ok()) return Fail(runtime.status());
    (*runtime)->SurviveRounds();
    const int rank = (*runtime)->rank();
    auto world = (*runtime)->MakeCommunicator("world");
    absl::Status status = world.status();
    if (world.ok()) {
      const std::string place = absl::StrCat("round", (*runtime)->restart_count(), ".rank", rank);
      std::ofstream(absl::StrCat(out, "/", place)) << getpid() << " " << (*runtime)->size();
      std::printf("pid %d has the place %s\n", getpid(), place.c_str());
      std::fflush(stdout);
      std::ofstream(absl::StrCat(out, "/", place, ".there")).close();
      status = Step(**world, out);
    }
    if (status.ok()) return (*runtime)->Finish(1).ok() ? 0 : 1;
    while (is_deaf && rank == 0) absl::SleepFor(absl::Seconds(1));
    if (world.ok()) world->reset();
    std::ofstream(absl::StrCat(out, "/awaits", (*runtime)->restart_count() + 1, ".", rank)).close();
    absl::StatusOr<std::unique_ptr<Runtime>> next = (*runtime)->NextRound(absl::Seconds(30));
    if (!next.ok()) return Fail(absl::IsCancelled(next.status()) ? next.status() : status);
    runtime = *std::move(next);
  }
}
