// `muster run --config_file` and `muster accelerate launch` beside `accelerate launch`: the same
// variables for the same files and options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
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
# What accelerate tells a single process by; where torchrun gives them, they are its own matter.
ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
if os.environ.get("RANK", "0") == "0":
    shown = {n: v for n, v in sorted(os.environ.items()) if n.startswith(prefixes)}
    shown["ranks"] = [n for n in ranks if n in os.environ]
    if "LOCAL_RANK" not in os.environ:
        shown["master"] = [os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")]
    if "PREPARE" in os.environ:
        import accelerate, torch
        state = accelerate.Accelerator()
        model = state.prepare(torch.nn.Linear(2, 2))
        shown["prepared"] = [str(state.distributed_type), type(model).__name__, *model.state_dict()]
    # The hang watch puts a folder of its own first (deploy/docs/torchrun.md).
    if "MUSTER_TORCH_SERVER" in os.environ:
        own = os.path.dirname(os.environ["MUSTER_TORCH_SERVER"]) + "/python"
        first, _, rest = shown.pop("PYTHONPATH").partition(":")
        assert first == own, first
        if rest:
            shown["PYTHONPATH"] = rest
    with open(os.environ["SHOW"], "w") as file:
        json.dump(shown, file, indent=1, sort_keys=True)
)";

std::string ConfigOf(const std::string& name) {
  return absl::StrCat(MUSTER_SOURCE_DIRECTORY "/tests/unit/launcher/configs/accelerate_", name,
                      ".yaml");
}

Environment With(const std::string& name, const std::string& value, Environment environment) {
  environment[name] = value;
  return environment;
}

class BesideAccelerate : public JobTest {
 protected:
  // `ours`: the words in front of `options`; `more`: variables for both.
  void ExpectTheSame(const Arguments& options, const Arguments& ours,
                     const Environment& more = {}) {
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
    const std::string script = PythonScript("show.py", kShow);
    // It chooses a port before it listens there; a test beside this one may have taken it.
    const SubprocessResult theirs = PeersOutcome([&] {
      return StartProgram(Arguments{PeerPython(), "-m", "accelerate.commands.launch"} + options +
                              Arguments{script},
                          With("SHOW", Out("theirs"), more))
          .Wait(absl::Minutes(3));
    });
    if (theirs.err.find("No module named") != std::string::npos) {
      GTEST_SKIP() << "accelerate, or what it needs for this file, is not installed";
    }
    ASSERT_THAT(theirs, ExitsWith(0));
    const SubprocessResult by_us =
        Run(ours + options + Arguments{script},
            With("SHOW", Out("ours"), With("PYTHON_EXEC", PeerPython(), more)));
    ASSERT_THAT(by_us, ExitsWith(0));
    EXPECT_EQ(ReadOut("ours"), ReadOut("theirs"));
  }
};

class AccelerateTest : public BesideAccelerate,
                       public ::testing::WithParamInterface<const char*> {};

TEST_P(AccelerateTest, WorkersSeeWhatAccelerateLaunchGivesThem) {
  ExpectTheSame({"--config_file", ConfigOf(GetParam())}, {});
}

INSTANTIATE_TEST_SUITE_P(Files, AccelerateTest,
                         ::testing::Values("multi_gpu", "fsdp", "full", "deepspeed"),
                         [](const auto& param) { return param.param; });

struct Line {
  const char* name;
  Arguments options;
};

class AccelerateLine : public BesideAccelerate, public ::testing::WithParamInterface<Line> {};

TEST_P(AccelerateLine, MeansWhatItMeansToAccelerate) {
  ExpectTheSame(GetParam().options, {"accelerate", "launch"});
}

INSTANTIATE_TEST_SUITE_P(
    OfAccelerate, AccelerateLine,
    ::testing::Values(
        Line{"multi_gpu", {"--multi_gpu", "--num_processes", "2", "--mixed_precision", "bf16"}},
        Line{"fsdp",
             {"--use_fsdp", "--num-processes=2", "--fsdp_version", "2", "--fsdp_auto_wrap_policy",
              "TRANSFORMER_BASED_WRAP", "--num_cpu_threads_per_process=3"}},
        Line{"deepspeed",
             {"--use_deepspeed", "--num_processes=2", "--zero_stage", "2",
              "--gradient_accumulation_steps", "4", "--offload_optimizer_device", "cpu"}},
        Line{"over_a_file",
             {"--config_file", ConfigOf("fsdp"), "--num_processes=2", "--mixed_precision=no",
              "--fsdp_offload_params", "true", "--dynamo_backend", "inductor"}},
        Line{"over_deepspeeds_file", {"--config_file", ConfigOf("deepspeed"), "--zero_stage=1"}}),
    [](const auto& param) { return std::string(param.param.name); });

class OneProcess : public BesideAccelerate, public ::testing::WithParamInterface<Line> {};

TEST_P(OneProcess, IsNoDistributedJob) {
  ExpectTheSame(GetParam().options, {"accelerate", "launch"}, {{"PREPARE", "1"}});
}

INSTANTIATE_TEST_SUITE_P(
    OfAccelerate, OneProcess,
    ::testing::Values(Line{"cpu", {"--cpu"}}, Line{"counted", {"--num_processes=1"}},
                      Line{"of_two", {"--cpu", "--num_processes=2", "--main_process_port=7"}},
                      Line{"of_two_machines",
                           {"--num_machines=2", "--num_processes=2", "--machine_rank=1",
                            "--main_process_ip=127.0.0.1", "--main_process_port=7"}},
                      Line{"cpu_over_a_file", {"--config_file", ConfigOf("fsdp"), "--cpu"}}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(BesideAccelerate, AFileOfOneProcessIsNoDistributedJob) {
  WriteFile(Out("no.yaml"), "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n");
  for (const Arguments& words : {Arguments{}, Arguments{"accelerate", "launch"}}) {
    ExpectTheSame({"--config_file", Out("no.yaml")}, words, {{"PREPARE", "1"}});
  }
}

// Found without being named.
TEST_F(BesideAccelerate, TheFileAtItsUsualPlaceMeansWhatItMeansToAccelerate) {
  const std::string folder = environment().at("HOME") + "/.cache/huggingface/accelerate";
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/default_config.yaml", ReadFile(ConfigOf("multi_gpu")));
  ExpectTheSame({}, {"accelerate", "launch"});
}

}  // namespace
}  // namespace muster::testing
