// Command lines and variables of torchrun beside ours: what comes of each must be the same, or stand
// in README.md under "Differences from torchrun". The real torchrun is PyTorch 2.15's, from the
// environment that `deploy/dev deps --peers` makes; skipped where it is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// A table of lines on a small machine that does other things too.
constexpr absl::Duration kPatienceWithTorch = absl::Minutes(9);

std::string Program(const std::string& name) {
  return absl::StrCat(MUSTER_SOURCE_DIRECTORY, "/tests/integration/programs/", name);
}
const std::string kWorker = Program("show_worker.py");

struct Line {
  std::string name;
  Arguments args;
  Environment environment = {};
  // Where ours is another outcome: the first words of its row in README.md.
  std::string difference = {};
};

// What a user sees of a launch.
struct Outcome {
  std::string how;  // "succeeded", "refused" (no worker came to run) or "failed with N"
  std::vector<Json> workers;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  out << outcome.how << "\n";
  for (const Json& worker : outcome.workers) out << "    " << worker.dump() << "\n";
  return out;
}

// Leaves out what no two launches have in common.
Json Comparable(Json worker, const Line& line) {
  const auto was_given = [&](absl::string_view text) {
    return std::any_of(line.args.begin(), line.args.end(),
                       [&](const std::string& arg) { return absl::StartsWith(arg, text); });
  };
  std::string& id = worker["TORCHELASTIC_RUN_ID"].get_ref<std::string&>();
  const bool is_fresh = id.size() > 16 && !was_given(absl::StrCat("--rdzv_id=", id));
  if (is_fresh) id = "(fresh)";
  if (!was_given("--master_addr")) worker.erase("MASTER_ADDR");  // localhost, or 127.0.0.1
  if (!line.environment.contains("TF_CONFIG")) worker.erase("TF_CONFIG");
  if (worker.contains("TORCHELASTIC_TIMER_FILE")) worker["TORCHELASTIC_TIMER_FILE"] = "(a pipe)";
  return worker;
}

Outcome OutcomeOf(const Line& line, int code, const std::string& directory) {
  Outcome outcome;
  std::vector<std::string> files = FilesBelow(directory);
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    if (!absl::StartsWith(file, "worker-")) continue;
    outcome.workers.push_back(
        Comparable(Json::parse(ReadFile(absl::StrCat(directory, "/", file))), line));
  }
  outcome.how = code == 0                 ? "succeeded"
                : outcome.workers.empty() ? "refused"
                                          : absl::StrCat("failed with ", code);
  return outcome;
}

class TorchrunLines : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    python_ = PeerPython();
    if (python_.empty()) GTEST_SKIP() << kNoPeerPython;
  }

  void Compare(const std::vector<Line>& lines) {
    const std::vector<Outcome> theirs = RunTheirs(lines);
    if (HasFatalFailure()) return;
    const std::string readme = DifferencesInReadme();
    for (size_t i = 0; i < lines.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(lines[i].name, ": ", absl::StrJoin(lines[i].args, " ")));
      const Outcome ours = RunOurs(lines[i]);
      if (lines[i].difference.empty()) {
        EXPECT_EQ(ours, theirs[i]);
      } else {
        EXPECT_FALSE(ours == theirs[i]) << "README.md says that it differs: " << ours;
        EXPECT_THAT(readme, HasSubstr(absl::StrCat("\n| ", lines[i].difference)));
      }
    }
  }

 private:
  Environment EnvironmentOf(const Line& line, const std::string& directory) const {
    Environment complete = environment();
    complete["PYTHONDONTWRITEBYTECODE"] = "1";  // the programs lie in the source
    for (const auto& [name, value] : line.environment) complete[name] = value;
    complete["OUT"] = directory;
    return complete;
  }

  std::vector<Outcome> RunTheirs(const std::vector<Line>& lines) {
    Json request = Json::array();
    for (const Line& line : lines) {
      const std::string directory = Out("theirs/" + line.name);
      request.push_back({{"args", line.args},
                         {"environment", EnvironmentOf(line, directory)},
                         {"out", directory}});
    }
    const std::string file = Out("lines.json");
    WriteFile(file, request.dump());
    Subprocess driver = StartProgram({python_, Program("torchrun_lines.py"), file});
    const SubprocessResult result = driver.Wait(kPatienceWithTorch);
    std::vector<Outcome> outcomes(lines.size());
    EXPECT_THAT(result, ExitsWith(0));
    if (result.exit_code != 0) return outcomes;
    const Json codes = Json::parse(result.out);
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_FALSE(codes[i].is_null()) << lines[i].name << " did not end under torchrun";
      outcomes[i] = OutcomeOf(lines[i], codes[i].is_null() ? -1 : codes[i].get<int>(),
                              Out("theirs/" + lines[i].name));
    }
    return outcomes;
  }

  Outcome RunOurs(const Line& line) {
    const std::string directory = Out("ours/" + line.name);
    std::filesystem::create_directories(directory);
    const SubprocessResult result =
        Run(Arguments{"run"} + line.args, EnvironmentOf(line, directory));
    EXPECT_TRUE(result.ended) << ToString(result);
    return OutcomeOf(line, result.exit_code, directory);
  }

  static std::string DifferencesInReadme() {
    const std::string text = ReadFile(MUSTER_SOURCE_DIRECTORY "/README.md");
    const size_t begin = text.find("## Differences from torchrun");
    if (begin == std::string::npos) return "";
    return text.substr(begin, text.find("\n## ", begin + 1) - begin);
  }

  std::string python_;
};

TEST_F(TorchrunLines, OfOptionsAndTheirSpellings) {
  Compare({
      {"Nothing", {kWorker}},
      {"Underscores", {"--nproc_per_node=2", kWorker}},
      {"Dashes", {"--nproc-per-node", "2", kWorker}},
      {"Repeated", {"--nproc_per_node=3", "--nproc_per_node=2", kWorker}},
      {"Abbreviation", {"--nnode=1", kWorker}},
      {"AbbreviationInOneSpelling", {"--nproc-per-n=2", kWorker}},
      {"AbbreviationOfBothSpellings", {"--nproc=2", kWorker}, {}, "a beginning that fits"},
      {"AbbreviationOfSeveral", {"--rdzv=2", kWorker}},
      {"Unknown", {"--learning_rate=2", kWorker}},
      {"FlagWithValue", {"--standalone=1", kWorker}},
      {"ValueForgotten", {"--rdzv_id", "--", kWorker}},
      {"ShortOptions", {"-r3", "-t=0:1", kWorker}},
      {"Help", {"--help"}},
      {"Role", {"--role=trainer", kWorker}},
      {"EmptyRole", {"--role", "", kWorker}},
      {"UseEnv", {"--use_env", kWorker}, {}, "`--use_env`"},
      {"Version", {"--version"}, {}, "`--version`"},
      {"Completion", {"--print_completion", "bash"}, {}, "`--print_completion`"},
      {"StartMethod", {"--start_method=forkserver", kWorker}},
      {"UnknownStartMethod", {"--start_method=threads", kWorker}},
      {"EventLog", {"--event_log_handler=console", kWorker}},
      {"LogsSpecs", {"--logs_specs=mine", kWorker}},
      {"Monitor", {"--monitor_interval=0.5", kWorker}},
  });
}

TEST_F(TorchrunLines, OfScriptsAndTheirArguments) {
  Compare({
      {"OptionsBehind", {kWorker, "--nnodes=9", "-m", "--standalone"}},
      {"Beginnings", {kWorker, "--log", "x"}, {}, "arguments of the script that look like"},
      {"DoubleDashBehind", {kWorker, "--", "--x"}},
      {"DoubleDashTwice", {kWorker, "--", "--"}},
      {"DoubleDashLater", {kWorker, "a", "--", "b"}},
      {"DoubleDashBefore", {"--standalone", "--", kWorker, "--x"}},
      {"DoubleDashAround", {"--", kWorker, "--", "--x"}},
      {"LocalRank",
       {"--nproc_per_node=2", kWorker, "${local_rank}", "a$local_rank", "$$", "$x", "$"}},
      {"EmptyArgument", {kWorker, "", " ", "a b"}},
      {"Module", {"-m", "show_worker", "x"}, {{"PYTHONPATH", Program("")}}},
      {"ModuleAndFlag", {"-mr3", "show_worker"}, {{"PYTHONPATH", Program("")}}},
      {"NoPython", {"--no_python", "python3", kWorker, "x"}},
      {"NoPythonWithModule", {"--no_python", "-m", kWorker}},
      {"RunPath", {"--run_path", kWorker, "x"}},
      {"NoScript", {"--nproc_per_node=2"}},
      {"MissingScript", {"no_such_script.py"}},
      {"Failing", {kWorker, "--fail=1"}},
      {"FailingWithACode", {kWorker, "--fail=7"}, {}, "exit code of a failed job"},
      {"Restarted", {"--max_restarts=2", kWorker, "--fail=1"}},
  });
}

TEST_F(TorchrunLines, OfNumbersAndMeetingPlaces) {
  const std::string port = absl::StrCat(LoopbackPort().number());
  Compare({
      {"OneNode", {"--nnodes=1:1", kWorker}},
      {"NoNodes", {"--nnodes=0", kWorker}},
      {"NodesUpsideDown", {"--nnodes=2:1", kWorker}},
      {"ThreeNumbersOfNodes", {"--nnodes=1:2:3", kWorker}},
      {"WorkersByWord", {"--nproc_per_node=cpu", kWorker}},
      {"WorkersByAnotherWord", {"--nproc_per_node=tpu", kWorker}},
      {"NoGpus", {"--nproc_per_node=gpu", kWorker}},
      {"NegativeRestarts", {"--max_restarts=-1", kWorker}},
      {"RestartsInWords", {"--max_restarts=some", kWorker}},
      {"Standalone", {"--standalone", "--nproc_per_node=2", kWorker}},
      {"StandaloneWithMore", {"--standalone", "--rdzv_id=x", "--rdzv_backend=static", kWorker}},
      {"IdAlone", {"--rdzv_id=mine", kWorker}, {}, "`--rdzv_id` of a job on one node"},
      {"ItsOwnServer",
       {"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=mine", kWorker}},
      {"NodeRank", {"--node_rank=1", kWorker}},
      {"UnknownBackEnd", {"--rdzv_backend=foo", kWorker}},
      {"EndpointWithoutPort", {"--rdzv_endpoint=localhost", kWorker}},
      {"MasterPort", {"--master_addr=127.0.0.1", "--master_port=" + port, kWorker}},
      {"MasterPortInWords", {"--master_port=any", kWorker}},
      {"Conf",
       {"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
        "--rdzv_conf=join_timeout=60,use_libuv=1,store_type=tcp,keep_alive_interval=3", kWorker}},
      {"ConfWithoutValue", {"--rdzv_conf=timeout", kWorker}},
      {"UnknownConf", {"--rdzv_conf=joint=1", kWorker}, {}, "an unknown key of `--rdzv_conf`"},
  });
}

TEST_F(TorchrunLines, OfVariables) {
  Compare({
      {"Workers", {kWorker}, {{"PET_NPROC_PER_NODE", "2"}}},
      {"CommandLineFirst", {"--nproc_per_node=1", kWorker}, {{"PET_NPROC_PER_NODE", "2"}}},
      {"Flag", {kWorker}, {{"PET_STANDALONE", "1"}}},
      {"FlagInWords", {kWorker}, {{"PET_STANDALONE", "true"}}, "`PET_STANDALONE=true`"},
      {"Empty", {kWorker}, {{"PET_NPROC_PER_NODE", ""}}, "an empty `PET_…` variable"},
      {"Restarts", {kWorker, "--fail=1"}, {{"PET_MAX_RESTARTS", "1"}}},
      {"Threads", {"--nproc_per_node=2", kWorker}, {{"OMP_NUM_THREADS", "3"}}},
      {"TfConfig", {kWorker}, {{"TF_CONFIG", "{}"}}},
      {"AsyncErrors", {kWorker}, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}},
      {"Devices", {"--nproc_per_node=2", kWorker}, {{"CUDA_VISIBLE_DEVICES", "3,4"}}},
      {"OneDeviceEach",
       {"--nproc_per_node=2", "--virtual_local_rank", kWorker},
       {{"CUDA_VISIBLE_DEVICES", "3,4"}}},
      {"OneDeviceEachOfHip",
       {"--nproc_per_node=2", "--virtual_local_rank", kWorker},
       {{"HIP_VISIBLE_DEVICES", "5,6"}}},
      {"OneDeviceEachOfNone", {"--nproc_per_node=2", "--virtual_local_rank", kWorker}},
      {"TooFewDevices",
       {"--nproc_per_node=2", "--virtual_local_rank", kWorker},
       {{"CUDA_VISIBLE_DEVICES", "3"}}},
      {"Timer", {kWorker}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}}},
      {"NoTimer", {kWorker}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", "0"}}},
  });
}

TEST_F(TorchrunLines, OfOutputAndEndings) {
  Compare({
      {"Redirects", {"--nproc_per_node=2", "--redirects=0:1,1:3", kWorker}},
      {"WrongRedirects", {"-r", "5", kWorker}},
      {"TeeOfARankOfTwoDigits", {"-t", "0:1,11:3", kWorker}, {}, "local ranks above 9"},
      {"LogDir", {"--log_dir=logs", "-t", "3", kWorker}},
      {"Filter", {"--nproc_per_node=2", "--local_ranks_filter=0", kWorker}},
      {"FilterInWords", {"--local_ranks_filter=first", kWorker}},
      {"Duplicates", {"--duplicate_stdout_filters=a,b", kWorker}},
      {"Prefix", {"-t", "3", "--log_line_prefix_template=${hostname}:${rank}", kWorker}},
      {"Signals", {"--signals_to_handle=SIGTERM,SIGUSR1", kWorker}},
      {"Grace", {"--shutdown_timeout=5", kWorker}},
      {"NegativeGrace", {"--shutdown_timeout=-1", kWorker}},
  });
}

}  // namespace
}  // namespace muster::testing
