// Command lines and variables of torchrun beside ours: what comes of each must be the same, or
// stand in deploy/docs/torchrun.md. What comes of them under PyTorch 2.15's torchrun is recorded
// (support/peer_record.h). It runs where that is asked for, from the environment that
// `deploy/dev deps --peers` makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A table of lines on a small machine that does other things too.
constexpr absl::Duration kPatienceWithTorch = absl::Minutes(9);
constexpr absl::Duration kPatienceWithJob = absl::Minutes(2);
// After that, who waits for a node that never comes may be said to wait for ever.
constexpr absl::Duration kLongEnoughToWait = absl::Seconds(20);

std::string Program(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/integration/programs/", name);
}
const std::string kWorker = Program("show_worker.py");

struct Line {
  std::string name;
  Arguments args;
  Environment environment = {};
  // The first words of its row in deploy/docs/torchrun.md if ours is another outcome.
  std::string difference = {};
};

// Several agents on this machine that are one job. In arguments, {port} is a free port, {log} a
// folder of each node's own.
struct Job {
  std::string name;
  std::vector<Arguments> nodes;
  std::string difference = {};
  // Waiting as long as nobody ends it, theirs does not end by itself.
  bool waits_under_torchrun = false;
};

// What a user sees of a launch; of several nodes, whatever order they have.
struct Outcome {
  // "succeeded", "refused" (no worker came to run), "failed with N" or "waits"; of each node.
  std::string how;
  std::vector<Json> workers;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  out << outcome.how << "\n";
  for (const Json& worker : outcome.workers) out << "    " << worker.dump() << "\n";
  return out;
}

// An empty one, of which nothing is known, is null.
Json ToJson(const Outcome& outcome) {
  if (outcome.how.empty()) return {};
  return {{"how", outcome.how}, {"workers", outcome.workers}};
}
Outcome FromJson(const Json& json) {
  if (json.is_null()) return {};
  return {.how = json.at("how"), .workers = json.at("workers").get<std::vector<Json>>()};
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

// `codes` of the nodes; none: it runs on.
Outcome OutcomeOf(const Line& line, const std::vector<std::optional<int>>& codes,
                  const std::string& directory) {
  Outcome outcome;
  std::vector<std::string> files = FilesBelow(directory);
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    // A worker that is killed may leave its unfinished file (programs/show_worker.py).
    if (!absl::StartsWith(file, "worker-") || !absl::EndsWith(file, ".json")) continue;
    outcome.workers.push_back(
        Comparable(Json::parse(ReadFile(absl::StrCat(directory, "/", file))), line));
  }
  std::vector<std::string> how;
  for (const std::optional<int> code : codes) {
    how.push_back(!code                     ? "waits"
                  : *code == 0              ? "succeeded"
                  : outcome.workers.empty() ? "refused"
                                            : absl::StrCat("failed with ", *code));
  }
  outcome.how = absl::StrJoin(how, ", ");
  return outcome;
}

class TorchrunLines : public JobTest {
 protected:
  void Compare(const std::vector<Line>& lines) {
    const std::vector<Job> jobs = JobsOf(lines);
    ExpectAsStated(jobs, lines, OutcomesOfTheirs(jobs, lines));
  }

  // Compares with the living torchrun, whatever is recorded.
  void CompareLive(const std::vector<Line>& lines) {
    const std::vector<Job> jobs = JobsOf(lines);
    ExpectAsStated(jobs, lines, RunTheirs(jobs, lines));
  }

  void Compare(const std::vector<Job>& jobs) {
    std::vector<Line> lines;  // of their first nodes
    for (const Job& job : jobs) lines.push_back({job.name, job.nodes[0], {}, job.difference});
    ExpectAsStated(jobs, lines, OutcomesOfTheirs(jobs, lines));
  }

  static std::vector<Job> JobsOf(const std::vector<Line>& lines) {
    std::vector<Job> jobs;
    for (const Line& line : lines) jobs.push_back({line.name, {line.args}, line.difference});
    return jobs;
  }

  // `lines` say what is common to the nodes of each job.
  void ExpectAsStated(const std::vector<Job>& jobs, const std::vector<Line>& lines,
                      const std::vector<Outcome>& theirs) {
    if (HasFailure()) return;
    const std::string readme = DifferencesInGuide();
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(lines[i].name, ": ", absl::StrJoin(lines[i].args, " ")));
      const Outcome ours = RunOurs(jobs[i], lines[i]);
      if (lines[i].difference.empty()) {
        EXPECT_EQ(ours, theirs[i]);
      } else {
        EXPECT_FALSE(ours == theirs[i]) << "deploy/docs/torchrun.md says that it differs: " << ours;
        EXPECT_THAT(readme, HasSubstr(absl::StrCat("\n| ", lines[i].difference)));
      }
    }
  }

  std::vector<Outcome> OutcomesOfTheirs(const std::vector<Job>& jobs,
                                        const std::vector<Line>& lines) {
    std::vector<Outcome> together;
    if (source_ != PeerSource::kRecord && !PeerPython().empty()) together = RunTheirs(jobs, lines);
    std::vector<Outcome> outcomes;
    for (size_t i = 0; i < jobs.size(); ++i) {
      // Several agents of torchrun may fail over how their store ends, or meet another job's.
      bool is_again = false;
      outcomes.push_back(FromJson(record_.Outcome(jobs[i].name, [&] {
        const bool is_first = !std::exchange(is_again, true);
        return ToJson(is_first ? together[i] : RunTheirs({jobs[i]}, {lines[i]})[0]);
      })));
    }
    return outcomes;
  }

  std::vector<Outcome> RunTheirs(const std::vector<Job>& jobs, const std::vector<Line>& lines) {
    Json request = Json::array();
    for (size_t i = 0; i < jobs.size(); ++i) {
      const std::string directory = Out("theirs/" + jobs[i].name);
      std::filesystem::remove_all(directory);
      const auto seconds = jobs[i].waits_under_torchrun ? kLongEnoughToWait : kPatienceWithJob;
      Json nodes = Json::array();
      const std::vector<Arguments> arguments = Complete(jobs[i], directory);
      for (size_t node = 0; node < arguments.size(); ++node) {
        nodes.push_back({{"args", arguments[node]},
                         {"environment", EnvironmentOf(lines[i], directory)},
                         {"out", absl::StrCat(directory, "/", node)}});
      }
      request.push_back({{"nodes", nodes}, {"seconds", absl::ToInt64Seconds(seconds)}});
    }
    const std::string file = Out("lines.json");
    WriteFile(file, request.dump());
    Subprocess driver = StartProgram({PeerPython(), Program("torchrun_lines.py"), file});
    const SubprocessResult result = driver.Wait(kPatienceWithTorch);
    std::vector<Outcome> outcomes(jobs.size());
    EXPECT_THAT(result, ExitsWith(0));
    if (result.exit_code != 0) return outcomes;
    const Json codes = Json::parse(result.out);
    for (size_t i = 0; i < jobs.size(); ++i) {
      std::vector<std::optional<int>> of_nodes;
      for (const Json& code : codes[i]) {
        of_nodes.push_back(code.is_null() ? std::nullopt : std::optional(code.get<int>()));
        EXPECT_TRUE(of_nodes.back() || jobs[i].waits_under_torchrun)
            << jobs[i].name << " did not end under torchrun";
      }
      outcomes[i] = OutcomeOf(lines[i], of_nodes, Out("theirs/" + jobs[i].name));
    }
    return outcomes;
  }

  Outcome RunOurs(const Job& job, const Line& line) {
    const std::string directory = Out("ours/" + job.name);
    std::filesystem::create_directories(directory);
    std::vector<Subprocess> nodes;
    for (const Arguments& arguments : Complete(job, directory)) {
      nodes.push_back(Start(Arguments{"run"} + arguments, EnvironmentOf(line, directory)));
    }
    std::vector<std::optional<int>> codes;
    for (Subprocess& node : nodes) {
      const SubprocessResult result = node.Wait(kPatienceWithJob);
      EXPECT_TRUE(result.ended) << ToString(result);
      codes.push_back(result.exit_code);
    }
    return OutcomeOf(line, codes, directory);
  }

  static std::string DifferencesInGuide() {
    return ReadFile(absl::StrCat(kSourceDirectory, "/deploy/docs/torchrun.md"));
  }

  const PeerSource source_ = PeersComeFrom();
  const PeerRecord record_{"torchrun", "torch"};

 private:
  // The arguments with the values that {port} and {log} stand for.
  std::vector<Arguments> Complete(const Job& job, const std::string& directory) {
    const std::string port = absl::StrCat(ports_.emplace_back().number());
    std::vector<Arguments> complete = job.nodes;
    for (size_t node = 0; node < complete.size(); ++node) {
      for (std::string& argument : complete[node]) {
        argument = absl::StrReplaceAll(
            argument, {{"{port}", port}, {"{log}", absl::StrCat(directory, "/log-", node)}});
      }
    }
    return complete;
  }

  Environment EnvironmentOf(const Line& line, const std::string& directory) const {
    Environment complete = environment();
    complete["PYTHONDONTWRITEBYTECODE"] = "1";  // the programs lie in the source
    for (const auto& [name, value] : line.environment) complete[name] = value;
    complete["OUT"] = directory;
    return complete;
  }

  std::deque<LoopbackPort> ports_;  // held until the test has ended
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
  // Ours takes none that is held, so one that the kernel gives to nobody.
  const std::string port = absl::StrCat(20000 + getpid() % 10000);
  Compare({
      {"OneNode", {"--nnodes=1:1", kWorker}},
      {"NoNodes", {"--nnodes=0", kWorker}},
      {"NodesUpsideDown", {"--nnodes=2:1", kWorker}},
      {"ThreeNumbersOfNodes", {"--nnodes=1:2:3", kWorker}},
      {"WorkersByAnotherWord", {"--nproc_per_node=tpu", kWorker}},
      {"NegativeRestarts", {"--max_restarts=-1", kWorker}},
      {"RestartsInWords", {"--max_restarts=some", kWorker}},
      {"Standalone", {"--standalone", "--nproc_per_node=2", kWorker}},
      {"StandaloneWithMore", {"--standalone", "--rdzv_id=x", "--rdzv_backend=static", kWorker}},
      {"IdAlone", {"--rdzv_id=mine", kWorker}, {}, "`--rdzv_id` of a job on one node"},
      {"ItsOwnServer",
       {"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--rdzv_id=mine", kWorker}},
      {"NodeRank", {"--node_rank=1", kWorker}},
      {"UnknownBackEnd", {"--rdzv_backend=foo", kWorker}},
      {"EndpointWithoutPort",
       {"--rdzv_endpoint=localhost", kWorker},
       {},
       "an `--rdzv_endpoint` without a port"},
      {"MasterPort", {"--master_addr=127.0.0.1", "--master_port=" + port, kWorker}},
      {"MasterPortInWords", {"--master_port=any", kWorker}},
      {"Conf",
       {"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
        "--rdzv_conf=join_timeout=60,use_libuv=1,store_type=tcp,keep_alive_interval=3", kWorker}},
      {"ConfWithoutValue", {"--rdzv_conf=timeout", kWorker}},
      {"UnknownConf", {"--rdzv_conf=joint=1", kWorker}, {}, "an unknown key of `--rdzv_conf`"},
  });
}

// What comes of these, the machine says.
TEST_F(TorchrunLines, OfNumbersThatTheMachineHas) {
  if (source_ == PeerSource::kRecord) GTEST_SKIP() << "MUSTER_TEST_PEERS=live runs it";
  CompareLive({
      {"WorkersByWord", {"--nproc_per_node=cpu", kWorker}},
      {"NoGpus", {"--nproc_per_node=gpu", kWorker}},
      {"NoXpus", {"--nproc_per_node=xpu", kWorker}},
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

std::vector<Arguments> Twice(const Arguments& arguments) { return {arguments, arguments}; }
// Node ranks in the order given.
std::vector<Arguments> Ranked(const std::vector<int>& ranks, const Arguments& arguments) {
  std::vector<Arguments> nodes;
  for (const int rank : ranks) {
    nodes.push_back(Arguments{absl::StrCat("--node_rank=", rank)} + arguments);
  }
  return nodes;
}
const Arguments kElastic = {"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:{port}",
                            "--rdzv_id=mine"};
const Arguments kStatic = {"--nnodes=2", "--master_addr=127.0.0.1", "--master_port={port}"};

TEST_F(TorchrunLines, OfSeveralNodes) {
  Compare({
      {"Elastic", Twice(kElastic + Arguments{"--nnodes=2", "--nproc_per_node=2", kWorker})},
      {"ElasticWithNodeRanks", Ranked({1, 0}, kElastic + Arguments{"--nnodes=2", kWorker})},
      {"Static", Ranked({0, 1}, kStatic + Arguments{"--nproc_per_node=2", kWorker})},
      {"StaticEndpoint", Ranked({1, 0}, {"--nnodes=2", "--rdzv_backend=static",
                                         "--rdzv_endpoint=127.0.0.1:{port}", kWorker})},
      {"Failing", Twice(kElastic + Arguments{"--nnodes=2", kWorker, "--fail=7"}),
       "exit code of a failed job"},
      {"NodeThatNeverComes",
       {kElastic + Arguments{"--nnodes=2", "--rdzv_conf=join_timeout=3", kWorker}}},
      {"NodeRankOutOfRange", Ranked({2}, kStatic + Arguments{kWorker}), "`--node_rank`", true},
      {"NoEndpoint",
       {{"--nnodes=2", "--rdzv_backend=c10d", kWorker}},
       "several nodes with c10d and no endpoint",
       true},
  });
}

// One worker of two nodes fails once.
TEST_F(TorchrunLines, OfNodesThatRestartTogether) {
  const Arguments arguments =
      kElastic + Arguments{"--nnodes=2", "--max_restarts=1", "--log_dir={log}", "--redirects=3",
                           kWorker,      "--fail_once"};
  const Job job = {"Restarted", Twice(arguments)};
  const Line line = {job.name, arguments};
  // How it ended, whose restarts were counted, how many attempts' logs were kept.
  const auto told = [&](const Outcome& outcome, const std::string& whose) {
    const std::vector<std::string> files = FilesBelow(Out(whose + "/Restarted"));
    const auto restarted = std::count_if(
        outcome.workers.begin(), outcome.workers.end(),
        [](const Json& worker) { return worker.at("TORCHELASTIC_RESTART_COUNT") == "1"; });
    const auto kept = std::count_if(files.begin(), files.end(), [](const std::string& file) {
      return absl::StartsWith(file, "log-") && absl::EndsWith(file, "/0/stdout.log");
    });
    return Json{{"how", outcome.how}, {"restarted", restarted}, {"kept", kept}};
  };
  const Json theirs =
      record_.Outcome(job.name, [&] { return told(RunTheirs({job}, {line})[0], "theirs"); });
  EXPECT_EQ(theirs, (Json{{"how", "succeeded, succeeded"}, {"restarted", 1}, {"kept", 3}}))
      << "the node that failed counts alone, and keeps three logs of four";
  EXPECT_EQ(told(RunOurs(job, line), "ours"),
            (Json{{"how", "succeeded, succeeded"}, {"restarted", 2}, {"kept", 4}}));
  EXPECT_THAT(DifferencesInGuide(), AllOf(HasSubstr("\n| restarts | counted by each node"),
                                          HasSubstr("\n| log folders of a round")));
}

}  // namespace
}  // namespace muster::testing
