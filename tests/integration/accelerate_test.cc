// `muster run --config_file` beside `accelerate launch --config_file`: the same variables for the
// same files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

constexpr char kShow[] = R"(import json, os
prefixes = ("ACCELERATE_", "FSDP_", "OMP_NUM_THREADS", "PYTHONPATH", "KMP_", "CUDA_VISIBLE_DEVICES")
if os.environ["RANK"] == "0":
    shown = {n: v for n, v in sorted(os.environ.items()) if n.startswith(prefixes)}
    # The hang watch puts a folder of its own first (deploy/docs/torchrun.md).
    if "MUSTER_TORCH_SERVER" in os.environ:
        own = os.path.dirname(os.environ["MUSTER_TORCH_SERVER"]) + "/python"
        first, _, rest = shown.pop("PYTHONPATH").partition(":")
        assert first == own, first
        if rest:
            shown["PYTHONPATH"] = rest
    with open(os.environ["SHOW"], "w") as file:
        json.dump(shown, file, indent=1)
)";

class AccelerateTest : public JobTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(AccelerateTest, WorkersSeeWhatAccelerateLaunchGivesThem) {
  if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  const std::string config = absl::StrCat(
      MUSTER_SOURCE_DIRECTORY "/tests/unit/launcher/configs/accelerate_", GetParam(), ".yaml");
  const std::string script = PythonScript("show.py", kShow);
  const Arguments options = {"--config_file", config};
  // It chooses a port before it listens there; a test beside this one may have taken it.
  const SubprocessResult theirs = PeersOutcome([&] {
    return StartProgram(Arguments{PeerPython(), "-m", "accelerate.commands.launch"} + options +
                            Arguments{script},
                        {{"SHOW", Out("theirs")}})
        .Wait(absl::Minutes(3));
  });
  if (theirs.err.find("No module named") != std::string::npos) {
    GTEST_SKIP() << "accelerate, or what it needs for this file, is not installed";
  }
  ASSERT_THAT(theirs, ExitsWith(0));
  const SubprocessResult ours =
      Run(options + Arguments{script}, {{"SHOW", Out("ours")}, {"PYTHON_EXEC", PeerPython()}});
  ASSERT_THAT(ours, ExitsWith(0));
  EXPECT_EQ(ReadOut("ours"), ReadOut("theirs"));
}

INSTANTIATE_TEST_SUITE_P(Files, AccelerateTest,
                         ::testing::Values("multi_gpu", "fsdp", "full", "deepspeed"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace muster::testing
