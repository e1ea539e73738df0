#include "tests/support/slurm_cluster.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"

namespace muster::testing {
namespace {

constexpr int kNumNodes = 4;
constexpr int kFirstNumber = 8;  // n8, n9, n10, n11
constexpr absl::Duration kPatienceWithNodes = absl::Seconds(150);

std::string NameOf(int node) {
  return node == 0 ? "login" : absl::StrCat("n", kFirstNumber + node - 1);
}

// No file of the machine's is used. A requeued job waits for cred_expire, 5 s at least.
constexpr char kConfiguration[] = R"(ClusterName=test
SlurmctldHost=login(LOGIN_ADDRESS)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=DIR/munge/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=DIR/state
SlurmdSpoolDir=DIR/spool.%n
SlurmctldPidFile=DIR/slurmctld.pid
SlurmdPidFile=DIR/slurmd.%n.pid
SlurmctldLogFile=DIR/slurmctld.log
SlurmdLogFile=DIR/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=10
MinJobAge=300
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=10000
JobCompType=jobcomp/filetxt
JobCompLoc=DIR/completions
GresTypes=gpu
NodeName=n[8-11] CPUs=16 RealMemory=2000 Port=16818 Gres=gpu:2
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
)";

}  // namespace

std::string SlurmCluster::WhyNot() {
  for (const char* program : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged",
                              "/usr/bin/srun", "/usr/bin/nsenter", "/usr/bin/unshare"}) {
    if (access(program, X_OK) != 0) {
      return absl::StrCat(program, " is not installed (Debian: slurm-wlm, munge, util-linux)");
    }
  }
  if (!NodeNetwork::IsPossible()) return "network namespaces cannot be made here (not root?)";
  return "";
}

SlurmCluster::SlurmCluster() : network_(kNumNodes) {
  WriteConfiguration();
  StartMunge();
  StartDaemon(OnNode(0, NameOf(0), {"/usr/sbin/slurmctld", "-D"}));
  for (int node = 1; node <= kNumNodes; ++node) {
    // A PID namespace ends with its first process, and takes along what Slurm has started.
    StartDaemon(OnNode(node, NameOf(node),
                       {"/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                        "/usr/sbin/slurmd", "-D", "-N", NameOf(node)}));
  }
  AwaitIdleNodes();
}

SlurmCluster::~SlurmCluster() {
  for (const std::unique_ptr<Subprocess>& daemon : daemons_) daemon->Signal(SIGKILL);
}

void SlurmCluster::AwaitIdleNodes() {
  if (!trouble_.empty()) return;
  Ask({"/usr/bin/scancel", "--partition=p"});
  std::string states;
  const bool are_idle = WaitUntil(
      [&] {
        states = Ask({"/usr/bin/sinfo", "-h", "-o", "%D %T"});
        // Slurm drains a node on which a step did not end in a minute.
        if (absl::StrContains(states, "drained")) {
          Ask({"/usr/bin/scontrol", "update", "NodeName=n[8-11]", "State=RESUME"});
        }
        return states == "4 idle\n";
      },
      kPatienceWithNodes);
  if (are_idle) return;
  trouble_ = absl::StrCat("the nodes of Slurm are not idle: ", states, "\n",
                          ReadFile(directory_.File("slurmctld.log")), "\n",
                          ReadFile(directory_.File("slurmd.n8.log")));
}

std::vector<std::string> SlurmCluster::OnLoginNode(const std::vector<std::string>& argv) const {
  return OnNode(0, NameOf(0), argv);
}

std::string SlurmCluster::Ask(const std::vector<std::string>& argv) const {
  Subprocess command({.argv = OnLoginNode(argv),
                      .environment = {{"PATH", "/usr/bin:/bin"}, {"SLURM_CONF", conf()}}});
  return command.Wait().out;
}

// The network as on its node, a host name, and a file of hosts that knows all of them.
std::vector<std::string> SlurmCluster::OnNode(int node, const std::string& name,
                                              const std::vector<std::string>& argv) const {
  std::vector<std::string> all = {
      "/usr/bin/nsenter",
      absl::StrCat("--net=", network_.NamespaceOf(node)),
      "/usr/bin/unshare",
      "--uts",
      "--mount",
      "/bin/sh",
      "-c",
      R"(hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@")",
      "sh",
      name,
      directory_.File("hosts")};
  all.insert(all.end(), argv.begin(), argv.end());
  return all;
}

void SlurmCluster::WriteConfiguration() const {
  const std::string& directory = directory_.path();
  chmod(directory.c_str(), 0755);  // munge is another user
  std::filesystem::create_directory(directory_.File("state"));
  WriteFile(conf(),
            absl::StrReplaceAll(kConfiguration,
                                {{"DIR", directory}, {"LOGIN_ADDRESS", network_.AddressOf(0)}}));
  WriteFile(directory_.File("gres.conf"), "NodeName=n[8-11] Name=gpu File=/dev/null,/dev/zero\n");
  std::string hosts = "127.0.0.1 localhost\n";
  for (int node = 0; node <= kNumNodes; ++node) {
    absl::StrAppend(&hosts, network_.AddressOf(node), " ", NameOf(node), "\n");
  }
  WriteFile(directory_.File("hosts"), hosts);
}

void SlurmCluster::StartMunge() {
  const std::string home = directory_.File("munge");
  StartDaemon({"/bin/sh", "-c",
               absl::StrCat("install -d -o munge -m 755 ", home, " && head -c 128 /dev/urandom > ",
                            home, "/key && chown munge ", home, "/key && chmod 400 ", home,
                            "/key && exec setpriv --reuid=munge --regid=munge --clear-groups "
                            "/usr/sbin/munged --foreground --force --socket=",
                            home, "/socket --key-file=", home, "/key --pid-file=", home,
                            "/pid --log-file=", home, "/log --seed-file=", home, "/seed")});
  if (!WaitUntil([&] { return FileExists(home + "/socket"); })) {
    trouble_ = "munged did not start: " + ReadFile(home + "/log");
  }
}

void SlurmCluster::StartDaemon(std::vector<std::string> argv) {
  daemons_.push_back(std::make_unique<Subprocess>(SubprocessOptions{
      .argv = std::move(argv),
      .environment = {{"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"}, {"SLURM_CONF", conf()}}}));
}

}  // namespace muster::testing
