// `muster run --config_file` and `muster accelerate launch` beside `accelerate launch`: the same
// variables for the same files and options. Our tables of options and keys beside the readers of
// Accelerate and DeepSpeed. What those do is recorded (support/peer_record.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

constexpr char kShow[] = R"py(import json, os
prefixes = ("ACCELERATE_", "FSDP_", "OMP_NUM_THREADS", "PYTHONPATH", "KMP_", "CUDA_VISIBLE_DEVICES")
# What accelerate tells a single process by; where torchrun gives them, they are its own matter.
ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
if os.environ.get("RANK", "0") == "0":
    shown = {n: v for n, v in sorted(os.environ.items()) if n.startswith(prefixes)}
    shown["ranks"] = [n for n in ranks if n in os.environ]
    if "LOCAL_RANK" not in os.environ:
        shown["master"] = [os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")]
    # The hang watch puts a folder of its own first (deploy/docs/torchrun.md).
    if "MUSTER_TORCH_SERVER" in os.environ:
        own = os.path.dirname(os.environ["MUSTER_TORCH_SERVER"]) + "/python"
        first, _, rest = shown.pop("PYTHONPATH").partition(":")
        assert first == own, first
        if rest:
            shown["PYTHONPATH"] = rest
    with open(os.environ["SHOW"], "w") as file:
        file.write(json.dumps(shown).replace(os.getcwd(), "(here)"))
)py";

std::string ConfigOf(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/unit/launcher/configs/accelerate_", name, ".yaml");
}

Environment With(const std::string& name, const std::string& value, Environment environment) {
  environment[name] = value;
  return environment;
}

const Arguments kLaunch = {"accelerate", "launch"};

class BesideAccelerate : public JobTest {
 protected:
  // What the first worker finds: of `accelerate launch`, of ours. `more`: variables of both.
  Json Theirs(const Arguments& options, const Environment& more = {}) const {
    const SubprocessResult result =
        StartProgram(Arguments{PeerPython(), "-m", "accelerate.commands.launch"} + options +
                         Arguments{Script()},
                     With("SHOW", Out("theirs"), more))
            .Wait(absl::Minutes(3));
    return HasSucceeded(result) ? Json::parse(ReadOut("theirs")) : Json();
  }
  Json Ours(const Arguments& words, const Arguments& options, const Environment& more = {}) const {
    EXPECT_THAT(Run(words + options + Arguments{Script()}, With("SHOW", Out("ours"), more)),
                ExitsWith(0));
    return Json::parse(ReadOut("ours"), nullptr, false);
  }

  // `ways`: the words of ours in front of `options`. `part`: of the test, where it has several.
  void ExpectTheSame(const Arguments& options, const std::vector<Arguments>& ways,
                     const Environment& more = {}, const std::string& part = "") const {
    const Json theirs = record_.Outcome(part, [&] { return Theirs(options, more); });
    for (const Arguments& words : ways) EXPECT_EQ(Ours(words, options, more), theirs);
  }

 private:
  std::string Script() const { return PythonScript("show.py", kShow); }

  const PeerRecord record_{"accelerate", "accelerate"};
};

class AccelerateTest : public BesideAccelerate,
                       public ::testing::WithParamInterface<const char*> {};

TEST_P(AccelerateTest, WorkersSeeWhatAccelerateLaunchGivesThem) {
  ExpectTheSame({"--config_file", ConfigOf(GetParam())}, {{}});
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
  ExpectTheSame(GetParam().options, {kLaunch});
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

// Accelerate divides a host's cores among its workers where no number of threads is given.
const Environment kThreads = {{"OMP_NUM_THREADS", "3"}};

// What such a worker makes of a model is in frameworks_test.
class OneProcess : public BesideAccelerate, public ::testing::WithParamInterface<Line> {};

TEST_P(OneProcess, IsNoDistributedJob) { ExpectTheSame(GetParam().options, {kLaunch}, kThreads); }

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
  ExpectTheSame({"--config_file", Out("no.yaml")}, {{}, kLaunch}, kThreads);
}

// The share depends on this machine, so it is compared with the living peer alone.
TEST_F(BesideAccelerate, OneProcessOnTheHostHasItsShareOfTheCores) {
  if (PeersComeFrom() == PeerSource::kRecord) GTEST_SKIP() << "MUSTER_TEST_PEERS=live runs it";
  for (const Arguments& options :
       {Arguments{"--cpu"}, {"--num_processes=1"}, {"--cpu", "--num_processes=2"}}) {
    EXPECT_EQ(Ours(kLaunch, options), Theirs(options));
  }
}

// Found without being named.
TEST_F(BesideAccelerate, TheFileAtItsUsualPlaceMeansWhatItMeansToAccelerate) {
  const std::string folder = environment().at("HOME") + "/.cache/huggingface/accelerate";
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/default_config.yaml", ReadFile(ConfigOf("multi_gpu")));
  ExpectTheSame({}, {kLaunch});
}

TEST_F(BesideAccelerate, AFileOfAnOlderVersionMeansWhatItMeansToAccelerate) {
  WriteFile(Out("fsdp.yaml"),
            "distributed_type: FSDP\nnum_processes: 2\nfp16: true\ndynamo_backend: INDUCTOR\n"
            "fsdp_config:\n  fsdp_backward_prefetch_policy: BACKWARD_PRE\n"
            "  sharding_strategy: 1\n");
  WriteFile(Out("deepspeed.yaml"),
            "distributed_type: DEEPSPEED\nnum_processes: 2\nfp16: true\n"
            "deepspeed_config:\n  steps_per_print: 100\n  zero_stage: 2\n");
  for (const char* file : {"fsdp.yaml", "deepspeed.yaml"}) {
    ExpectTheSame({"--config_file", Out(file)}, {{}, kLaunch}, {}, file);
  }
}

// Whether ours have all that the readers of another program know.
class TablesOfPeers : public JobTest {
 protected:
  // The lines that `script` prints where the package is installed.
  std::vector<std::string> Known(const char* package, const char* script) const {
    const Json known = PeerRecord(package, package).Outcome("", [&]() -> Json {
      const SubprocessResult listed =
          StartProgram({PeerPython(), PythonScript("list.py", script)}).Wait(absl::Minutes(3));
      if (!HasSucceeded(listed)) return {};
      const std::vector<std::string> lines = absl::StrSplit(listed.out, '\n', absl::SkipEmpty());
      return lines;
    });
    return known.is_null() ? std::vector<std::string>() : known.get<std::vector<std::string>>();
  }

  // `options`: "--quiet flag", "--config_file value".
  void ExpectKnown(const Arguments& words, const std::vector<std::string>& options) {
    for (const std::string& line : options) {
      const std::pair<std::string, std::string> option = absl::StrSplit(line, ' ');
      const std::string given = option.first + (option.second == "flag" ? "" : "=1");
      const SubprocessResult result = Run(words + Arguments{given});
      EXPECT_THAT(result, ExitsWith(2));
      EXPECT_THAT(result.err, Not(HasSubstr("unknown option")));
    }
  }
};

TEST_F(TablesOfPeers, KnowEveryOptionAndKeyOfAccelerate) {
  const std::vector<std::string> known = Known("accelerate", R"py(import dataclasses, inspect, re
from accelerate.commands.config import cluster, config_args
from accelerate.commands.launch import launch_command_parser
names = []
for action in launch_command_parser()._actions:
    for name in action.option_strings:
        if name.startswith("--") and name != "--help":
            print(name, "flag" if action.nargs == 0 else "value")
            names.append(name[2:])
for field in dataclasses.fields(config_args.ClusterConfig):
    print("key", field.name)
blocks = {(name.split("_")[0] + "_config", name) for name in names
          if name.startswith(("fsdp_", "dynamo_"))}
blocks |= {entry for entry in re.findall(r'(\w+_config)\["(\w+)"\]', inspect.getsource(cluster))
           if entry[0] == "deepspeed_config"}
for block, name in sorted(blocks):
    print(block, name)
)py");
  std::vector<std::string> options;
  std::map<std::string, std::string> lines;  // by block
  for (const std::string& line : known) {
    const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
    if (absl::StartsWith(line, "--")) {
      options.push_back(line);
    } else if (words.first == "key" && !absl::EndsWith(words.second, "_config")) {
      absl::StrAppend(&lines["key"], words.second, ": null\n");
    } else if (words.first != "key") {
      absl::StrAppend(&lines[words.first], "  ", words.second, ": null\n");
    }
  }
  EXPECT_THAT(options.size(), Gt(100u));
  EXPECT_THAT(lines, SizeIs(4));
  ExpectKnown({"accelerate", "launch"}, options);
  for (const char* kind : {"FSDP", "DEEPSPEED"}) {
    std::string file = absl::StrReplaceAll(
        lines["key"], {{"distributed_type: null", absl::StrCat("distributed_type: ", kind)},
                       {"num_processes: null", "num_processes: 2"}});
    for (const char* block : {"fsdp_config", "deepspeed_config", "dynamo_config"}) {
      absl::StrAppend(&file, block, ":\n", lines[block]);
    }
    WriteFile(Out("all.yaml"), file);
    EXPECT_THAT(Run({"accelerate", "launch", "--config_file", Out("all.yaml")}).err,
                HasSubstr("no script was given"));
  }
}

TEST_F(TablesOfPeers, KnowEveryOptionOfDeepSpeed) {
  const std::vector<std::string> options = Known("deepspeed", R"(import argparse, contextlib, sys
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.launcher import runner
def show(self, *args, **kwargs):
    for action in self._actions:
        for name in action.option_strings:
            if name.startswith("--") and name != "--help":
                print(name, "flag" if action.nargs == 0 else "value")
    sys.exit(0)
argparse.ArgumentParser.parse_args = show
runner.parse_args([])
)");
  EXPECT_THAT(options.size(), Gt(20u));
  ExpectKnown({"deepspeed"}, options);
}

// The sections that a plan is made from, which DeepSpeed knows by tables, too.
TEST_F(TablesOfPeers, KnowEveryKeyOfDeepSpeedsSections) {
  const std::vector<std::string> known = Known("deepspeed", R"(import contextlib, json, sys
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero import config, offload_config
def keys(model):
    return {field.alias or name: None for name, field in model.model_fields.items()}
zero = keys(config.DeepSpeedZeroConfig)
zero["offload_param"] = keys(offload_config.DeepSpeedZeroOffloadParamConfig)
zero["offload_optimizer"] = keys(offload_config.DeepSpeedZeroOffloadOptimizerConfig)
print(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero,
                  "fp16": keys(DeepSpeedFP16Config), "bf16": keys(DeepSpeedBF16Config)}))
)");
  ASSERT_THAT(known, SizeIs(1));
  WriteFile(Out("ds.json"), known[0]);
  EXPECT_THAT(Run({"plan", "--model=gpt2-124m", "--deepspeed", Out("ds.json")}).err,
              Not(HasSubstr("unknown")));
}

}  // namespace
}  // namespace muster::testing
