// Command lines that cannot be run: exit code 2, one sentence that names what is wrong, and nothing
// started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;

// {SCRIPT} stands for a script that notes that it was started; without it, `arguments` is the whole
// command line.
constexpr char kScript[] = "{SCRIPT}";

struct BadInput {
  const char* name;  // of the test; says what is wrong
  Arguments arguments;
  std::vector<const char*> said;  // regular expressions, each of which the message has
  Environment changes = {};
};

std::vector<BadInput> WrongValues() {
  return {
      {"NodesAreNoNumber", {"--nnodes=abc", kScript}, {"nnodes", "abc"}},
      {"NodesAreThreeNumbers", {"--nnodes=1:2:3", kScript}, {"nnodes", "1:2:3"}},
      {"FewestNodesAreMoreThanTheMost", {"--nnodes=3:2", kScript}, {"nnodes", "3:2"}},
      {"NodesAreZero", {"--nnodes=0", kScript}, {"nnodes"}},
      {"RestartsAreNegative", {"--max_restarts=-1", kScript}, {"max.restarts", "-1"}},
      {"RestartsAreNoNumber", {"--max_restarts=many", kScript}, {"max.restarts", "many"}},
      {"WorkersAreAnUnknownWord",
       {"--nproc_per_node=banana", kScript},
       {"nproc.per.node", "banana"}},
      {"WorkersAreZero", {"--nproc_per_node=0", kScript}, {"nproc.per.node", "0"}},
      {"WorkersAreNegative", {"--nproc_per_node=-2", kScript}, {"nproc.per.node", "-2"}},
      {"GpuListIsEmpty", {"--nproc_per_node=gpu:", kScript}, {"nproc.per.node"}},
      {"BackEndIsUnknown", {"--rdzv_backend=zeus", kScript}, {"rdzv.backend", "zeus"}},
      {"BackEndIsTheOldEtcd", {"--rdzv_backend=etcd-v2", kScript}, {"rdzv.backend", "etcd-v2"}},
      {"ConfigurationHasNoValue",
       {"--rdzv_conf=join_timeout", kScript},
       {"rdzv.conf", "join_timeout"}},
      {"ConfigurationHasAnUnknownKey",
       {"--rdzv_conf=join_timeouts=3", kScript},
       {"join_timeouts", "join_timeout"}},
      {"ConfigurationIsNoNumber",
       {"--rdzv_conf=join_timeout=soon", kScript},
       {"join_timeout", "soon"}},
      {"GraceIsNegative", {"--shutdown_timeout=-1", kScript}, {"shutdown.timeout", "-1"}},
      {"RedirectsHaveAnUnknownCode", {"-r", "5", kScript}, {"redirects|-r", "5"}},
      {"RedirectsHaveAnUnknownCodeInTheMap", {"-r", "0:9", kScript}, {"redirects|-r", "0:9"}},
      {"TeeIsNoCode", {"--tee=x", kScript}, {"tee", "x"}},
      {"FilterIsNoNumber", {"--local_ranks_filter=a", kScript}, {"local.ranks.filter", "a"}},
      {"NumaBindingIsUnknown", {"--numa_binding=moon", kScript}, {"numa.binding", "moon"}},
      {"ConsoleIsUnknown", {"--console=loud", kScript}, {"console", "loud"}},
      {"SignalIsUnknown", {"--signals_to_handle=SIGFOO", kScript}, {"signals.to.handle", "SIGFOO"}},
      {"MonitorIntervalIsNoNumber",
       {"--monitor_interval=often", kScript},
       {"monitor.interval", "often"}},
      {"StartMethodIsUnknown", {"--start_method=threads", kScript}, {"start.method", "forkserver"}},
      {"EventLogHandlerIsNotTheDefault", {"--event_log_handler=x", kScript}, {"event.log.handler"}},
      {"LogsSpecsAreGiven", {"--logs_specs=mine", kScript}, {"logs.specs"}},
      {"PetVariableIsWrong",
       {kScript},
       {"PET_NPROC_PER_NODE", "banana"},
       {{"PET_NPROC_PER_NODE", "banana"}}},
      {"PetFlagIsNoBoolean",
       {kScript},
       {"PET_STANDALONE", "perhaps"},
       {{"PET_STANDALONE", "perhaps"}}},
  };
}

std::vector<BadInput> WrongCombinations() {
  const Arguments elastic = {"--nnodes=2", "--rdzv_backend=c10d"},
                  fixed = {"--nnodes=2", "--master_port=29511"};
  return {
      {"NoPythonWithModule", {"--no_python", "-m", kScript}, {"no.python", "module|-m"}},
      {"SeveralNodesWithoutEndpoint", elastic + Arguments{kScript}, {"rdzv.endpoint"}},
      {"StaticNodesWithoutAnyAddress", {"--nnodes=2", kScript}, {"master.addr|rdzv.endpoint"}},
      {"NodeRankBeyondTheLast",
       fixed + Arguments{"--master_addr=127.0.0.1", "--node_rank=2", kScript},
       {"node.rank", "2"}},
      {"NodeRankIsNegative",
       fixed + Arguments{"--master_addr=127.0.0.1", "--node_rank=-1", kScript},
       {"node.rank", "-1"}},
      {"EndpointHasABlank",
       elastic + Arguments{"--rdzv_endpoint=ho st:1", kScript},
       {"rdzv.endpoint", "ho st"}},
      {"EndpointPortIsTooLarge",
       elastic + Arguments{"--rdzv_endpoint=h:99999", kScript},
       {"rdzv.endpoint", "99999"}},
      {"EndpointPortIsNoNumber",
       elastic + Arguments{"--rdzv_endpoint=h:http", kScript},
       {"rdzv.endpoint", "http"}},
      {"FewerVisibleDevicesThanWorkers",
       {"--nproc_per_node=2", "--virtual_local_rank", kScript},
       {"CUDA_VISIBLE_DEVICES"},
       {{"CUDA_VISIBLE_DEVICES", "4"}}},
  };
}

std::vector<BadInput> WrongWords() {
  return {
      {"OptionIsMisspelt", {"--nproc_per_nide=2", kScript}, {"nproc_per_nide", "nproc.per.node"}},
      {"OptionIsTheBeginningOfSeveral", {"--rdzv=2", kScript}, {"--rdzv_backend", "in full"}},
      {"OptionIsUnknown", {"--quantum_entanglement", kScript}, {"quantum_entanglement"}},
      {"OptionLacksItsValue", {"--nnodes"}, {"nnodes"}},
      {"ScriptIsNotGiven", {"--nproc_per_node=2"}, {"script|program"}},
      {"ScriptIsMissing", {"no_such_script.py"}, {"no_such_script\\.py"}},
      {"ModuleIsNotGiven", {"-m"}, {"module|script"}},
      {"ProgramIsNotInPath", {"--no_python", "no-such-program"}, {"no-such-program"}},
      {"DirectoryHasNoMain", {"."}, {"__main__"}},
  };
}

class Refused : public JobTest, public ::testing::WithParamInterface<BadInput> {};

TEST_P(Refused, WithExitCodeTwoAndASentenceBeforeAnythingStarts) {
  const BadInput& input = GetParam();
  Arguments arguments = {"run"};
  for (const std::string& argument : input.arguments) {
    arguments.push_back(argument == kScript ? ShellScript("train.sh", "touch $OUT/started")
                                            : argument);
  }
  const SubprocessResult result = Run(arguments, input.changes);
  EXPECT_THAT(result, ExitsWith(2));
  for (const char* expression : input.said) EXPECT_THAT(result.err, ContainsRegex(expression));
  EXPECT_FALSE(FileExists(Out("started")));
}

std::string NameOfCase(const ::testing::TestParamInfo<BadInput>& info) { return info.param.name; }
// GoogleTest prints parameters; the name says it all.
void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

INSTANTIATE_TEST_SUITE_P(Value, Refused, ::testing::ValuesIn(WrongValues()), NameOfCase);
INSTANTIATE_TEST_SUITE_P(Combination, Refused, ::testing::ValuesIn(WrongCombinations()),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Word, Refused, ::testing::ValuesIn(WrongWords()), NameOfCase);

using WithoutGpu = JobTest;

TEST_F(WithoutGpu, AskingForOneWorkerPerGpuIsRefused) {
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "this machine has a GPU";
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=gpu", ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("nproc.per.node.*gpu|GPU"));
}

}  // namespace
}  // namespace muster::testing
