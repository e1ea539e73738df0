// Several nodes that must not, or cannot, come together: each is told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Refusal : public SeveralNodes {
 protected:
  std::string script() const { return ShellScript("train.sh", "touch $OUT/started"); }
  void TearDown() override {
    EXPECT_FALSE(FileExists(Out("started"))) << "no worker may start";
    SeveralNodes::TearDown();
  }
};

TEST_F(Refusal, MeetsANodeRankThatIsTakenAndTheJobWaitsOn) {
  Subprocess first = StartStatic(0, 2, {script()});
  ASSERT_TRUE(SaysThatItWaits(first));
  const SubprocessResult result = StartStatic(0, 2, {script()}).Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("node.rank"));
  EXPECT_FALSE(first.Wait(absl::ZeroDuration()).ended);
  first.Signal(SIGTERM);
  EXPECT_THAT(first.Wait(), ExitsWith(143));
}

TEST_F(Refusal, NamesTheNodesThatAreMissingAtTheTimeOut) {
  std::vector<Subprocess> agents;
  for (int node : {0, 1})
    agents.push_back(StartStatic(node, 3, {"--rdzv_conf=join_timeout=2", script()}));
  for (const SubprocessResult& result : WaitForAll(agents)) {
    EXPECT_THAT(result, ExitsWith(4));
    EXPECT_THAT(result.err, ContainsRegex("node.rank[s]?[ =:]*2"));
  }
}

TEST_F(Refusal, TellsAnElasticJobHowManyNodesAreMissing) {
  const SubprocessResult result =
      StartElastic(1, "2:4", {"--rdzv_conf=join_timeout=2", script()}).Wait();
  EXPECT_THAT(result, ExitsWith(4));
  EXPECT_THAT(result.err, ContainsRegex("1 (more )?of|1 of (at least )?2")) << ToString(result);
}

// What the store of PyTorch, where torchrun's agents meet, is greeted with.
TEST_F(Refusal, TellsThatANodeWasStartedByTorchrun) {
  Subprocess host = StartElastic(1, "2", {script()});
  ASSERT_TRUE(SaysThatItWaits(host));
  const std::string greet =
      "import socket, sys\n"
      "s = socket.create_connection((sys.argv[1].split(':')[0], int(sys.argv[1].split(':')[1])))\n"
      "s.sendall(b'\\x00\\xce\\xf7\\x85\\x3c')\n"
      "try:\n"
      "    print(s.recv(1))\n"
      "except ConnectionResetError:\n"
      "    print(b'')\n";
  const SubprocessResult agent =
      StartProgram({"/usr/bin/env", "python3", PythonScript("greet.py", greet), endpoint()}).Wait();
  EXPECT_THAT(agent.out, HasSubstr("b''")) << "the connection is closed";
  EXPECT_TRUE(host.WaitForOutput("a torchrun agent wants to join there"));
  host.Signal(SIGTERM);
  EXPECT_THAT(host.Wait(), ExitsWith(143));
}

TEST_F(Refusal, TellsThatARealTorchrunWantsToJoin) {
  const std::string python = PeerPython();
  if (python.empty()) GTEST_SKIP() << kNoPeerPython;
  Subprocess host = StartElastic(1, "2", {script()});
  ASSERT_TRUE(SaysThatItWaits(host));
  Subprocess torchrun =
      StartProgram({python, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv_backend=c10d",
                    "--rdzv_id=elastic", absl::StrCat("--rdzv_endpoint=", endpoint()),
                    "--rdzv_conf=is_host=0,read_timeout=5", script()});
  EXPECT_TRUE(host.WaitForOutput("a torchrun agent wants to join there", absl::Seconds(90)));
  torchrun.Signal(SIGKILL);
  host.Signal(SIGTERM);
  EXPECT_THAT(host.Wait(), ExitsWith(143));
}

TEST_F(Refusal, MeetsAStrangerWithAnotherSecretAndTellsThePersonWhatToDo) {
  Subprocess first = StartElastic(1, "2", {script()}, {{"MUSTER_TOKEN", std::string(64, 'a')}});
  ASSERT_TRUE(SaysThatItWaits(first));
  const SubprocessResult stranger =
      StartElastic(2, "2", {script()}, {{"MUSTER_TOKEN", std::string(64, 'b')}}).Wait();
  EXPECT_THAT(stranger, ExitsWith(3));
  EXPECT_THAT(stranger.err, ContainsRegex("MUSTER_TOKEN|muster/token"));
  EXPECT_TRUE(first.WaitForOutput("set MUSTER_TOKEN there")) << "the host says so, too";
  first.Signal(SIGTERM);
  EXPECT_THAT(first.Wait(), ExitsWith(143));
}

TEST_F(Refusal, MeetsANodeWithAnotherHomeAndThusAnotherSecret) {
  const TemporaryDirectory other_home;
  Subprocess first = StartElastic(1, "2", {script()});
  ASSERT_TRUE(SaysThatItWaits(first));
  EXPECT_THAT(StartElastic(2, "2", {script()}, {{"HOME", other_home.path()}}).Wait(), ExitsWith(3));
  EXPECT_TRUE(first.WaitForOutput("run here: scp -p ")) << "the command that mends it";
  first.Signal(SIGTERM);
  EXPECT_THAT(first.Wait(), ExitsWith(143));
}

TEST_F(Refusal, MeetsANodeWithoutAuthenticationWhereTheHostHasIt) {
  Subprocess first = StartElastic(1, "2", {script()});
  ASSERT_TRUE(SaysThatItWaits(first));
  const SubprocessResult open =
      StartElastic(2, "2", {"--auth=none", "--rdzv_conf=join_timeout=4", script()}).Wait();
  EXPECT_TRUE(open.ended && open.exit_code > 0) << ToString(open);
  EXPECT_THAT(open.err, HasSubstr("--auth"));
  first.Signal(SIGTERM);
  EXPECT_THAT(first.Wait(), ExitsWith(143));
}

TEST_F(Refusal, MeetsANodeThatDisagreesOnTheRestarts) {
  Subprocess first = StartElastic(1, "2", {"--max_restarts=1", script()});
  ASSERT_TRUE(SaysThatItWaits(first));
  const SubprocessResult result = StartElastic(2, "2", {"--max_restarts=2", script()}).Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("max.restarts"));
  first.Signal(SIGTERM);
  EXPECT_THAT(first.Wait(), ExitsWith(143));
}

// A web server and one of gRPC. Their certificates are not ours, which is no matter of our secret.
TEST_F(Refusal, MeetsATlsServerOfAnotherProgram) {
  const std::string key = Out("key.pem"), certificate = Out("certificate.pem");
  const SubprocessResult made =
      StartProgram({"/usr/bin/env", "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
                    "-subj", "/CN=web", "-keyout", key, "-out", certificate})
          .Wait();
  if (made.exit_code != 0) GTEST_SKIP() << "needs the program openssl";
  const std::string serve = PythonScript("serve.py", R"(
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
context.set_alpn_protocols(sys.argv[4:])
host, port = sys.argv[3].split(":")
server = socket.create_server((host, int(port)))
print("ready", flush=True)
while True:
    try:
        context.wrap_socket(server.accept()[0], server_side=True)
    except OSError:
        pass
)");
  for (const Arguments& protocol : {Arguments{}, Arguments{"h2"}}) {
    Subprocess server = StartProgram(
        Arguments{"/usr/bin/env", "python3", serve, certificate, key, endpoint()} + protocol);
    ASSERT_TRUE(server.WaitForOutput("ready"));
    const SubprocessResult result = StartElastic(2, "2", {script()}).Wait();
    EXPECT_THAT(result, ExitsWith(2));
    EXPECT_THAT(result.err, HasSubstr("another program has the port"));
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("secret")));
    server.Signal(SIGKILL);
    server.Wait();
  }
}

TEST_F(Refusal, NamesTheHolderOfAPortThatSomethingElseUses) {
  const LoopbackPort taken(PortUse::kListening);
  const SubprocessResult result = Run(
      {"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=taken", "--rdzv_conf=join_timeout=3",
       absl::StrCat("--rdzv_endpoint=127.0.0.1:", taken.number()), script()});
  EXPECT_TRUE(result.ended && result.exit_code > 0) << ToString(result);
  EXPECT_THAT(result.err, HasSubstr(std::to_string(getpid()))) << "the pid of the holder";
}

// The refusal comes at once where all processes are to be seen; in a container once the name has
// not been found.
TEST_F(Refusal, WaitsForNoNodesOfASlurmStepThatIsOver) {
  const SubprocessResult result =
      Run({"run", script()}, {{"SLURM_JOB_ID", "77"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_NUM_NODES", "2"},
                              {"SLURM_STEP_NODELIST", "muster-gone[01-02]"},
                              {"SLURM_STEP_NUM_TASKS", "2"},
                              {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                              {"SLURM_NODEID", "0"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURMD_NODENAME", "muster-gone01"}});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("--scheduler=none ignores"));
}

TEST_F(Refusal, MeetsAnEndpointThatDoesNotResolve) {
  const SubprocessResult result =
      Run({"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=nowhere",
           "--rdzv_endpoint=no-such-host.invalid:29400", script()});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace muster::testing
