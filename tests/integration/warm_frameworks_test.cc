// Scripts of the frameworks, unchanged, under --warm=auto: an attempt whose workers are forked says
// and ends as the first one, whose workers are fresh. Lightning, accelerate and transformers are
// those of `deploy/dev deps --peers`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kPrograms[] = MUSTER_SOURCE_DIRECTORY "/tests/integration/programs/warm/";
// PyTorch takes a while to import beside other tests on a small machine.
constexpr absl::Duration kPatienceWithTorch = absl::Seconds(170);

struct Script {
  const char* name;
  const char* how;  // rank 0 ends: programs/warm/ends.py
  int exit_code;
  const char* imported;  // by the warm process
};

class WarmFramework : public JobTest, public ::testing::WithParamInterface<Script> {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  std::string logs() const { return directory() + "/logs"; }

  // The file that a rank of an attempt has left, but for what is of the time.
  std::string Left(int attempt, int rank, const std::string& name) const {
    for (const std::string& file : FilesBelow(logs())) {
      if (!absl::EndsWith(file, absl::StrCat("attempt_", attempt, "/", rank, "/", name))) continue;
      std::string text = ReadFile(absl::StrCat(logs(), "/", file));
      for (const char* of_time :
           {R"((W[0-9]{4} |[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9]{2}:[0-9]{2}:[0-9]{2}[.,][0-9]+)",
            R"('train_(runtime|[a-z]+_per_second)': '?[0-9.]+)", R"("timestamp": "[0-9]+")"}) {
        text = std::regex_replace(text, std::regex(of_time), "");
      }
      return text;
    }
    return "";
  }
};

TEST_P(WarmFramework, SaysInAForkedProcessWhatItSaysInAFreshOne) {
  const Script& script = GetParam();
  Subprocess job =
      Start({"run", "--nproc_per_node=2", "--max_restarts=1", "--warm=auto", "--redirects=3",
             "--log_dir=" + logs(), absl::StrCat(kPrograms, script.name, ".py"), out(), script.how},
            {{"PYTHON_EXEC", PeerPython()},
             {"PYTHONDONTWRITEBYTECODE", "1"},
             {"GLOO_SOCKET_IFNAME", "lo"},
             {"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(job.WaitForOutput("the warm process is ready", kPatienceWithTorch));
  WriteFile(Out("go"), "");
  const SubprocessResult result = job.Wait(kPatienceWithTorch);
  EXPECT_THAT(result, ExitsWith(script.exit_code));
  EXPECT_THAT(result.err, AllOf(HasSubstr(absl::StrCat(script.imported, " imported in ")),
                                Not(HasSubstr("; without ")),
                                HasSubstr("2 workers forked by the warm process")));
  EXPECT_THAT(Run({"report", logs()}).out, HasSubstr("(2 forked, back after "));
  for (const int rank : {0, 1}) {
    const std::string fresh = Left(0, rank, "stdout.log"), forked = Left(1, rank, "stdout.log");
    EXPECT_NE(fresh, "");
    if (script.exit_code == 0) {  // the first attempt was killed on its way
      EXPECT_THAT(forked, AllOf(StartsWith(fresh), Ne(fresh)));
      continue;
    }
    EXPECT_EQ(forked, fresh);
    for (const char* name : {"stderr.log", "error.json"}) {
      EXPECT_EQ(Left(1, rank, name), Left(0, rank, name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, WarmFramework,
    ::testing::Values(Script{"with_accelerate", "exit", 3, "accelerate, numpy, torch"},
                      Script{"with_trainer", "exception", 1, "torch, transformers"},
                      Script{"with_lightning", "os_exit", 5,
                             "lightning, numpy, torch, torchmetrics, transformers"},
                      Script{"with_pytorch_lightning", "exit", 3,
                             "numpy, pytorch_lightning, torch, torchmetrics, transformers"},
                      Script{"with_loaders", "kill", 0, "numpy, torch"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace muster::testing
