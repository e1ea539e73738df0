// `muster doctor` on this machine, with the GPUs of a mock of NVML: each fault has a finding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/base/exit_codes.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kHealthy[] = "num_gpus=2 gpu0.links=4 gpu0.links_up=4 gpu1.links=4 gpu1.links_up=4 ";

class Doctor : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    std::filesystem::create_symlink(Built("libfake_nvml.so"), directory() + "/libnvidia-ml.so.1");
  }

  // The mock is found as the driver's library would be.
  Environment With(const std::string& gpus) const {
    return {{"LD_LIBRARY_PATH", directory()}, {"FAKE_NVML", gpus}};
  }
  SubprocessResult Doctors(const Arguments& options, const std::string& gpus) {
    return StartProgram(Arguments{MusterBinary(), "doctor"} + options, With(gpus)).Wait();
  }
  nlohmann::json Findings(const std::string& gpus) {
    const SubprocessResult result = Doctors({"--json"}, gpus);
    nlohmann::json all = nlohmann::json::parse(result.out);
    EXPECT_EQ(all["ok"].get<bool>(), result.exit_code == 0);
    return all["findings"];
  }
};

TEST_F(Doctor, FindsNothingWrongWithHealthyGpus) {
  int num_checks = 0;
  for (const nlohmann::json& finding : Findings(kHealthy)) {
    const std::string check = finding["check"];
    if (check.find("GPU") == std::string::npos && check != "PCIe" && check != "NVLink") continue;
    EXPECT_EQ(finding["severity"], "ok") << finding;
    ++num_checks;
  }
  EXPECT_EQ(num_checks, 7);
}

TEST_F(Doctor, SaysThatThereAreNoGpus) {
  const SubprocessResult result = Doctors({}, "has_driver=0");
  EXPECT_THAT(result.out, HasSubstr("GPUs: "));
}

struct Fault {
  const char* name;
  const char* gpus;  // beyond kHealthy
  const char* check;
  const char* severity;
  const char* text;
};

class DoctorsFinding : public Doctor, public ::testing::WithParamInterface<Fault> {};

TEST_P(DoctorsFinding, NamesTheGpuAndWhatToDo) {
  const Fault& fault = GetParam();
  bool is_found = false;
  for (const nlohmann::json& finding : Findings(absl::StrCat(kHealthy, fault.gpus))) {
    if (finding["check"] != fault.check) continue;
    is_found = true;
    EXPECT_EQ(finding["severity"], fault.severity) << finding;
    EXPECT_THAT(finding["text"].get<std::string>(), HasSubstr(fault.text));
    EXPECT_NE(finding["advice"], "");
  }
  EXPECT_TRUE(is_found);
}

INSTANTIATE_TEST_SUITE_P(
    OfGpus, DoctorsFinding,
    ::testing::Values(
        Fault{"MemoryErrors", "gpu1.uncorrected=3", "GPU memory errors", "fault",
              "GPU 1 (0000:5e:00.0) has had 3 uncorrectable memory errors"},
        Fault{"PendingRows", "gpu0.rows_pending=1", "GPU memory errors", "warning", "bad rows"},
        Fault{"Lanes", "gpu1.pcie_width=4", "PCIe", "warning", "runs on 4 of its 16 PCIe lanes"},
        Fault{"Links", "gpu1.links_up=3", "NVLink", "fault", "has 3 NVLinks up, others 4"},
        Fault{"Heat", "gpu0.slow_reasons=0x40", "GPU state", "warning", "slowed down by heat"},
        Fault{"Reset", "gpu0.recovery_action=1", "GPU state", "fault", "needs a reset"},
        Fault{"InUse", "gpu1.used_mib=40960", "GPU memory", "warning", "has 40 GiB of 80 GiB"},
        Fault{"OtherModel", "gpu1.name=Other", "GPU models", "warning", "Fake GPU"}),
    [](const auto& info) { return std::string(info.param.name); });

// The mock says what NVML would if a program of PyPI, over NVIDIA's own binding, reads the same.
TEST_F(Doctor, SeesWhatNvitopSees) {
  const std::string python = PeerPython();
  const Environment environment =
      With("num_gpus=2 gpu1.used_mib=40960 gpu1.uncorrected=3 gpu1.name=Other");
  const SubprocessResult theirs =
      python.empty()
          ? SubprocessResult{}
          : StartProgram({python, "-c",
                          "from nvitop import Device\n"
                          "for d in Device.all():\n"
                          "    print(d.index, d.name(), d.memory_used() >> 30, "
                          "d.memory_total() >> 30, d.total_volatile_uncorrected_ecc_errors(), "
                          "d.bus_id(), Device.driver_version())\n"},
                         environment)
                .Wait();
  if (python.empty() || theirs.err.find("No module named") != std::string::npos) {
    GTEST_SKIP() << "nvitop is not installed beside the peers";
  }
  EXPECT_EQ(theirs.out,
            "0 Fake GPU 0 80 0 00000000:3B:00.0 580.65.06\n"
            "1 Other 40 80 3 00000000:5E:00.0 580.65.06\n")
      << theirs.err;
  const SubprocessResult ours = StartProgram({MusterBinary(), "doctor"}, environment).Wait();
  EXPECT_THAT(ours.out,
              AllOf(HasSubstr("GPUs: 2, driver 580.65.06"),
                    HasSubstr("GPU 1 (0000:5e:00.0) has 40 GiB of 80 GiB in use"),
                    HasSubstr("GPU 1 (0000:5e:00.0) has had 3 uncorrectable memory errors"),
                    HasSubstr("Other, 80 GiB (GPU 1)")));
}

TEST_F(Doctor, EndsWithOneForAFault) {
  const SubprocessResult result = Doctors({}, absl::StrCat(kHealthy, "gpu1.uncorrected=1"));
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.out, AllOf(HasSubstr(": fault: GPU memory errors: GPU 1"),
                                HasSubstr("; reset it (nvidia-smi --gpu-reset)")));
}

TEST_F(Doctor, RefusesWhatItDoesNotUnderstand) {
  EXPECT_THAT(Doctors({"--jsn"}, kHealthy), ExitsWith(2));
  const SubprocessResult hosts = Doctors({"--include=a"}, kHealthy);
  EXPECT_THAT(hosts, ExitsWith(2));
  EXPECT_THAT(hosts.err, HasSubstr("give --hostfile=FILE"));
}

TEST_F(Doctor, HoldsARoundBackAsItsHook) {
  const std::string hook = directory() + "/muster-doctor";
  std::filesystem::create_symlink(MusterBinary(), hook);
  const Arguments line = {MusterBinary(), "run", "--round_hook=" + hook,
                          ShellScript("train.sh", "touch $OUT/started")};
  const SubprocessResult faulty =
      StartProgram(line, With(absl::StrCat(kHealthy, "gpu0.uncorrected=1"))).Wait();
  EXPECT_NE(faulty.exit_code, 0);
  EXPECT_THAT(faulty.err, HasSubstr("uncorrectable memory errors"));
  EXPECT_FALSE(FileExists(Out("started")));
}

// The fault is the last line, wherever it is among the findings: what stands for the whole check.
TEST_F(Doctor, KeepsANodeOutAsItsCheckAndNamesTheFault) {
  const Arguments line = {MusterBinary(), "run", "--node_check=muster-doctor",
                          ShellScript("train.sh", "touch $OUT/started")};
  const SubprocessResult faulty =
      StartProgram(line, With(absl::StrCat(kHealthy, "gpu0.uncorrected=1"))).Wait();
  EXPECT_THAT(faulty, ExitsWith(kExitNodeUnfit));
  EXPECT_THAT(faulty.err, ContainsRegex("exited with code 1: [^\n]*uncorrectable memory errors"));
  EXPECT_FALSE(FileExists(Out("started")));
  EXPECT_THAT(StartProgram(line, With(kHealthy)).Wait(), ExitsWith(0));
  EXPECT_TRUE(FileExists(Out("started")));
}

}  // namespace
}  // namespace muster::testing
