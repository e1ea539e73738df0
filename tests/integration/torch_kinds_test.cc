// All kinds of programs of PyTorch that wait for what no recorder has, over two, four and eight
// ranks, on one node and on two; and that healthy programs beside each other have no verdict.
#include "tests/integration/torch_kinds.h"

#include <cstdlib>
#include <deque>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace muster::testing {
namespace {

class TorchKinds : public TorchWaits, public ::testing::WithParamInterface<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, TorchKinds,
                         ::testing::Values(Shape{.num_local = 2}, Shape{.num_local = 4},
                                           Shape{.num_nodes = 2, .num_local = 4}),
                         [](const auto& shape) {
                           return absl::StrCat("Ranks", shape.param.num_ranks(), "Nodes",
                                               shape.param.num_nodes);
                         });

TEST_P(TorchKinds, NameWhoIsAtFaultOrWhatIsWaitedFor) {
  ExpectSaid(Hangs(GetParam().num_ranks()), GetParam(), {"--hang_timeout=12"});
}

TEST_P(TorchKinds, HaveHealthyTwinsOfWhichNobodyIsAccused) { ExpectNoHangs(GetParam()); }

class TorchSoak : public TorchWaits {
 protected:
  struct Job {
    std::string program;
    std::string how;
    Arguments options = {};
  };
  static std::vector<Job> Healthy() {
    std::vector<Job> jobs;
    for (const auto& each : HealthyOnes()) {
      jobs.push_back({"torch_waits.py", each.how, {"--hang_timeout=12"}});
    }
    for (const char* how :
         {"slow", "quiet", "checkpoint", "first_step", "short_pause", "long_pause", "uneven"}) {
      jobs.push_back({"torch_verdicts.py", how});
    }
    for (const char* how : {"checkpoint", "first_step", "straggler", "comes_late"}) {
      jobs.push_back({"torch_hangs.py", how});
    }
    return jobs;
  }
};

// For $MUSTER_SOAK_MINUTES, or two; `deploy/dev soak --healthy` runs it for an hour.
TEST_F(TorchSoak, HasNoVerdictOfHealthyProgramsSideBySide) {
  constexpr size_t kSideBySide = 5;
  const char* given = std::getenv("MUSTER_SOAK_MINUTES");
  double minutes = 2;
  ASSERT_TRUE(given == nullptr || absl::SimpleAtod(given, &minutes)) << given;
  const absl::Time end = absl::Now() + minutes * absl::Minutes(1);
  const std::vector<Job> healthy = Healthy();
  std::deque<std::pair<std::string, Subprocess>> running;
  size_t num_ended = 0;
  for (size_t next = 0; absl::Now() < end || !running.empty();) {
    for (; running.size() < kSideBySide && absl::Now() < end; ++next) {
      const Job& job = healthy[next % healthy.size()];
      const std::string out = Out(absl::StrCat(next));
      std::filesystem::create_directories(out);
      program_ = job.program;
      running.emplace_back(
          absl::StrCat(job.program, " ", job.how),
          StartJob(job.how, 3, job.options + Arguments{"--max_restarts=1", "--watch=restart"},
                   {{"OUT", out}, {"SECONDS", absl::StrCat(20 + next % 40)}}));
    }
    ExpectNoHang({running.front().first, true}, running.front().second.Wait(kPatience));
    running.pop_front();
    ++num_ended;
  }
  RecordProperty("programs", static_cast<int>(num_ended));
}

}  // namespace
}  // namespace muster::testing
