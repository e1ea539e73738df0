// Scripts of the frameworks, unchanged, under --warm=auto: an attempt whose workers are forked says
// and ends as the first one, whose workers are fresh. Lightning, accelerate and transformers are
// those of `deploy/dev deps --peers`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <regex>
#include <string>

#include "absl/algorithm/container.h"
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

const std::string kPrograms = absl::StrCat(kSourceDirectory, "/tests/integration/programs/warm/");
// PyTorch takes a while to import beside other tests on a small machine.
constexpr absl::Duration kPatienceWithTorch = absl::Seconds(170);

struct Script {
  const char* program;
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

  // The first attempt ends once the warm process is ready.
  SubprocessResult RunJob(const Script& script) {
    logs_ += "s";
    std::remove(Out("go").c_str());
    Subprocess job =
        Start({"run", "--nproc_per_node=2", "--max_restarts=1", "--warm=auto", "--redirects=3",
               "--log_dir=" + logs_, absl::StrCat(kPrograms, script.program), out(), script.how},
              {{"PYTHON_EXEC", PeerPython()},
               {"PYTHONDONTWRITEBYTECODE", "1"},
               {"GLOO_SOCKET_IFNAME", "lo"},
               {"OMP_NUM_THREADS", "1"}});
    EXPECT_TRUE(job.WaitForOutput("the warm process is ready", kPatienceWithTorch));
    WriteFile(Out("go"), "");
    return job.Wait(kPatienceWithTorch);
  }

  // PyTorch's Gloo may abort while Python ends, under any launcher and in any attempt.
  bool HasAborted() const {
    return absl::c_any_of(FilesBelow(logs_), [this](const std::string& file) {
      return absl::StrContains(ReadFile(absl::StrCat(logs_, "/", file)),
                               "terminate called without an active exception");
    });
  }

  const std::string& logs() const { return logs_; }

  // The file that a rank of an attempt has left, but for what is of the time.
  std::string Left(int attempt, int rank, const std::string& name) const {
    for (const std::string& file : FilesBelow(logs_)) {
      if (!absl::EndsWith(file, absl::StrCat("attempt_", attempt, "/", rank, "/", name))) continue;
      std::string text = ReadFile(absl::StrCat(logs_, "/", file));
      for (const char* of_time :
           {R"((W[0-9]{4} |[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9]{2}:[0-9]{2}:[0-9]{2}[.,][0-9]+)",
            R"('train_(runtime|[a-z]+_per_second)': '?[0-9.]+)", R"("timestamp": "[0-9]+")"}) {
        text = std::regex_replace(text, std::regex(of_time), "");
      }
      return text;
    }
    return "";
  }

 private:
  std::string logs_ = directory() + "/log";  // of the last job
};

TEST_P(WarmFramework, SaysInAForkedProcessWhatItSaysInAFreshOne) {
  const Script& script = GetParam();
  SubprocessResult result = RunJob(script);
  for (int tries = 1; tries < 3 && HasAborted(); ++tries) result = RunJob(script);
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
    ::testing::Values(Script{"with_accelerate.py", "exit", 3, "accelerate, numpy, torch"},
                      Script{"with_trainer.py", "exception", 1, "torch, transformers"},
                      Script{"with_lightning.py", "os_exit", 5,
                             "lightning, numpy, torch, torchmetrics, transformers"},
                      Script{"with_pytorch_lightning.py", "exit", 3,
                             "numpy, pytorch_lightning, torch, torchmetrics, transformers"},
                      Script{"with_peft.py", "exception", 1,
                             "accelerate, numpy, peft, torch, transformers"},
                      Script{"with_loaders.py", "kill", 0, "numpy, torch"}),
    [](const auto& param) {
      const std::string program = param.param.program;
      return program.substr(0, program.find('.'));
    });

}  // namespace
}  // namespace muster::testing
