// The whole environment of a worker against a golden table. Source: torch 2.15,
// torch/distributed/elastic/agent/server/local_elastic_agent.py; proto/spec/worker_env.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::MatchesRegex;

constexpr char kPort[] = "[1-9][0-9]*";

// Expected values as regular expressions, for the second of two workers of a job "golden" with two
// restarts.
const Environment kGolden = {
    {"RANK", "1"},
    {"LOCAL_RANK", "1"},
    {"WORLD_SIZE", "2"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"GROUP_RANK", "0"},
    {"GROUP_WORLD_SIZE", "1"},
    {"ROLE_NAME", "trainer"},
    {"ROLE_RANK", "1"},
    {"ROLE_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "[^ ]+"},
    {"MASTER_PORT", kPort},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_MAX_RESTARTS", "2"},
    {"TORCHELASTIC_RUN_ID", "golden"},
    {"TORCHELASTIC_ERROR_FILE", "/.*/attempt_0/1/error\\.json"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"OMP_NUM_THREADS", "1"},
    {"TF_CONFIG", "\\{.*\\}"},
    {"MUSTER_AGENT_SOCKET", "/.*"},
    {"MUSTER_BOARD", "/proc/[0-9]+/fd/[0-9]+"},
    {"MUSTER_INSTANCE", "[0-9a-f]+"},
    {"MUSTER_LOCAL_RANK", "1"},
    {"MUSTER_ROUND", "0"},
    {"MUSTER_TORCH_GROUP", "\\{.*\\}"},
    {"MUSTER_TORCH_SERVER", "/.*/0\\.1"},
    {"PYTHONPATH", "/.*/python"},
    {"TORCH_FR_BUFFER_SIZE", "512"},
    {"TRACEPARENT", "00-[0-9a-f]{32}-[0-9a-f]{16}-01"},
};

Environment Parse(const std::string& zero_separated) {
  Environment environment;
  for (absl::string_view variable : absl::StrSplit(zero_separated, '\0', absl::SkipEmpty())) {
    environment.insert(absl::StrSplit(variable, absl::MaxSplits('=', 1)));
  }
  return environment;
}

class WorkerEnvironment : public JobTest {
 protected:
  // Runs two workers, and returns what rank 1 had.
  Environment OfRankOne(const Environment& changes = {}) {
    // Python adds no variable of its own, unlike a shell.
    const std::string script =
        PythonScript("train.py",
                     "import os\n"
                     "text = open('/proc/self/environ').read()\n"
                     "open(os.environ['OUT'] + '/' + os.environ['RANK'], 'w').write(text)\n");
    const SubprocessResult result = Run({"run", "--nproc_per_node=2", "--rdzv_id=golden",
                                         "--role=trainer", "--max_restarts=2", script},
                                        changes);
    EXPECT_THAT(result, ExitsWith(0));
    return Parse(ReadOut("1"));
  }
};

TEST_F(WorkerEnvironment, HasEveryVariableOfTheContractWithItsValue) {
  const Environment actual = OfRankOne();
  for (const auto& [name, value] : kGolden) {
    ASSERT_TRUE(actual.contains(name)) << name << " is not set";
    EXPECT_THAT(actual.at(name), MatchesRegex(value)) << name;
  }
}

TEST_F(WorkerEnvironment, IsInheritedAndHasNothingBeyondTheContract) {
  const Environment actual = OfRankOne();
  for (const auto& [name, value] : environment()) EXPECT_EQ(actual.at(name), value) << name;
  for (const auto& [name, value] : actual) {
    EXPECT_TRUE(kGolden.contains(name) || environment().contains(name) ||
                absl::StartsWith(name, "MUSTER_"))
        << name << "=" << value;
  }
}

TEST_F(WorkerEnvironment, KeepsInheritedThreadAndErrorHandlingSettings) {
  const Environment actual =
      OfRankOne({{"OMP_NUM_THREADS", "6"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}});
  EXPECT_EQ(actual.at("OMP_NUM_THREADS"), "6");
  EXPECT_EQ(actual.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

TEST_F(WorkerEnvironment, OverridesWhatAnOuterJobSaidOfItsOwnWorkers) {
  const Environment actual =
      OfRankOne({{"RANK", "77"}, {"WORLD_SIZE", "99"}, {"MUSTER_BOARD", "/outer"}});
  EXPECT_EQ(actual.at("RANK"), "1");
  EXPECT_EQ(actual.at("WORLD_SIZE"), "2");
  EXPECT_THAT(actual.at("MUSTER_BOARD"), MatchesRegex("/proc/[0-9]+/fd/[0-9]+"));
}

TEST_F(WorkerEnvironment, DescribesTheClusterInTfConfig) {
  const auto config = nlohmann::json::parse(OfRankOne().at("TF_CONFIG"), nullptr, false);
  ASSERT_FALSE(config.is_discarded());
  EXPECT_EQ(config["task"]["type"], "worker");
  EXPECT_EQ(config["task"]["index"], 1);
  const auto& workers = config["cluster"]["worker"];
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_NE(workers[0], workers[1]) << "each worker has a port of its own";
  EXPECT_THAT(workers[0].get<std::string>(), MatchesRegex(".+:[1-9][0-9]*"));
}

// Each worker listens where TF_CONFIG says that it is, and connects to all others.
constexpr char kTfWorker[] = R"(
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
workers, own = config["cluster"]["worker"], config["task"]["index"]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(workers[own].rsplit(":", 1)[1])))
server.listen()
def call(address):
    host, port = address.rsplit(":", 1)
    while True:
        try:
            return socket.create_connection((host, int(port)), 60)
        except ConnectionRefusedError:
            pass
for worker in workers:
    call(worker).sendall(b"%d" % own)
print("heard", sorted(int(server.accept()[0].recv(9)) for _ in workers))
)";

TEST_F(WorkerEnvironment, LetsWorkersMeetAtTheAddressesOfTfConfig) {
  const std::string script = WriteScript(directory() + "/tf.py", kTfWorker);
  const SubprocessResult result = Run({"run", "--nproc_per_node=3", script});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "heard [0, 1, 2]\nheard [0, 1, 2]\nheard [0, 1, 2]\n");
}

TEST_F(WorkerEnvironment, LeavesThreadsAloneForASingleWorker) {
  const std::string script = ShellScript("train.sh", "echo ${OMP_NUM_THREADS:-unset}");
  EXPECT_EQ(Run({"run", "--nproc_per_node=1", script}).out, "unset\n");
}

}  // namespace
}  // namespace muster::testing
