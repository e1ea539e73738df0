#include "launcher/commands/hosts_command.h"

#include <poll.h>
#include <pwd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launcher/commands/run_command.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/hosts/ssh_session.h"
#include "launcher/node/endpoint.h"
#include "launcher/node/node_setup.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/job_key.h"
#include "proto/io/log.h"
#include "proto/io/random_bytes.h"
#include "proto/io/unique_fd.h"
#include "proto/io/user_secret.h"

namespace muster::launcher {
namespace {

constexpr int kConnectionFailed = 255;  // ssh's own exit code
constexpr int kLookAgainMs = 100;       // for the end of an ssh whose output has ended
constexpr int kLookForTimeMs = 1000;    // while the others of an ended agent may end by themselves
// A job that ends is over on every host by then, but for workers that take their time to end.
constexpr absl::Duration kOthersMayTake = absl::Seconds(10);

int Refuse(const absl::Status& status) {
  log::Write(log::Level::kError, "refused", status.message());
  return ExitCodeOf(status);
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadBoundedFile(path);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("--hostfile=", path, ": ", text.status().message()));
}

std::string ReadTextOrNone(const std::string& path) { return ReadBoundedFile(path).value_or(""); }

// The one text that a shell of the host sees.
absl::Status CheckIsPlain(const std::string& binary) {
  const bool is_plain = std::all_of(binary.begin(), binary.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-' || c == '+';
  });
  if (is_plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the path of muster, '", binary,
                   "', has characters that a shell changes: install it elsewhere"));
}

absl::StatusOr<std::vector<HostEntry>> FindHosts(const HostJob& job) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadText(job.host_file));
  absl::StatusOr<std::vector<HostEntry>> hosts = ParseHostFile(text);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hostfile=", job.host_file, ": ", hosts.status().message()));
  }
  return ChooseHosts(*std::move(hosts), job.choice);
}

// The sessions of one job, and what ends them.
class HostRun {
 public:
  explicit HostRun(std::vector<SshSession> sessions) : sessions_(std::move(sessions)) {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) sigaddset(&set, signal);
    struct sigaction action {};
    const bool is_under_nohup =
        sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!is_under_nohup) sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    signals_ = UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  }

  int Run() {
    std::vector<bool> concluded(sessions_.size(), false);
    while (std::count(concluded.begin(), concluded.end(), false) > 0) {
      Turn();
      for (size_t i = 0; i < sessions_.size(); ++i) {
        if (concluded[i] || !sessions_[i].HasEnded()) continue;
        concluded[i] = true;
        Conclude(sessions_[i]);
      }
    }
    if (unreachable_) return kExitNodesMissing;
    if (finished_) return worst_;
    return stop_signal_ != 0 ? ExitCodeOfSignal(stop_signal_) : kExitFailure;
  }

 private:
  void Turn() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    bool is_ending = false;
    for (const SshSession& session : sessions_) {
      polled.push_back({session.out(), POLLIN, 0});
      polled.push_back({session.err(), POLLIN, 0});
      polled.push_back({session.in(), POLLOUT, 0});
      is_ending = is_ending || (session.out() < 0 && session.err() < 0 && session.is_running());
    }
    const bool has_deadline = stop_others_at_ < MonoTime::InfiniteFuture();
    const int timeout = is_ending ? kLookAgainMs : has_deadline ? kLookForTimeMs : -1;
    if (poll(polled.data(), polled.size(), timeout) < 0) return;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (polled[1 + 3 * i].revents != 0) sessions_[i].ReadOut();
      if (polled[2 + 3 * i].revents != 0) sessions_[i].ReadErr();
      if (polled[3 + 3 * i].revents != 0) sessions_[i].WriteIn();
    }
    if (MonoNow() >= stop_others_at_) StopOthers();
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      stop_signal_ = static_cast<int>(info.ssi_signo);
      Stop(stop_signal_);
    }
  }

  // The job needs each of its hosts: without one the others would wait until the join time-out.
  void StopOthers() {
    stop_others_at_ = MonoTime::InfiniteFuture();
    const auto runs = [](const SshSession& session) { return session.is_running(); };
    if (stop_signal_ != 0 || !std::any_of(sessions_.begin(), sessions_.end(), runs)) return;
    log::Write(log::Level::kError, "host_left",
               absl::StrCat(first_failure_, ", and the job needs all of its ", sessions_.size(),
                            " hosts; stopping the others"));
    has_stopped_others_ = true;
    Stop(SIGTERM);
  }

  // Who has not been reached has nothing to stop.
  void Stop(int signal) {
    for (SshSession& session : sessions_) {
      session.was_greeted() ? session.SendSignal(signal) : session.Cut();
    }
  }

  void Conclude(const SshSession& session) {
    if (!session.was_greeted()) {
      if (stop_signal_ != 0 || unreachable_) return;  // cut by us
      unreachable_ = true;
      log::Write(log::Level::kError, "unreachable",
                 absl::StrCat("cannot start an agent on ", session.host(), ": ",
                              session.last_words().empty() ? "ssh exited without a message"
                                                           : session.last_words(),
                              sessions_.size() > 1 ? "; stopping the others" : ""));
      Stop(SIGTERM);
      return;
    }
    if (session.exit_code() == kConnectionFailed) {
      log::Write(log::Level::kWarning, "connection_lost",
                 absl::StrCat("lost the connection to ", session.host(),
                              "; its agent keeps running, but its output no longer appears here"));
      return;
    }
    finished_ = true;
    if (has_stopped_others_ || session.exit_code() == 0) return;
    if (worst_ == 0) {
      first_failure_ =
          absl::StrCat("the agent on ", session.host(), " exited with ", session.exit_code());
      stop_others_at_ = MonoNow() + kOthersMayTake;
    }
    worst_ = std::max(worst_, session.exit_code());
  }

  std::vector<SshSession> sessions_;
  UniqueFd signals_;
  int stop_signal_ = 0;
  int worst_ = 0;
  std::string first_failure_;  // host and code of the first agent that ended with another than 0
  MonoTime stop_others_at_ = MonoTime::InfiniteFuture();
  bool has_stopped_others_ = false;
  bool finished_ = false;  // one agent at least has said how the job ended
  bool unreachable_ = false;
};

// Whether `host` is this machine, and its account, if it names one, is ours.
bool IsHere(const std::string& host) {
  const size_t at = host.rfind('@');
  if (at == std::string::npos) return IsThisMachine(host);
  const passwd* account = getpwuid(geteuid());
  return account != nullptr && host.substr(0, at) == account->pw_name &&
         IsThisMachine(host.substr(at + 1));
}

SshOptions SshOf(const HostJob& job, const Invocation& invocation) {
  return {.host = "",
          .config = job.ssh_config,
          .port = job.ssh_port,
          .binary = invocation.binary_directory + "/muster"};
}

absl::StatusOr<std::vector<RemoteStart>> PlanStarts(const HostJob& job,
                                                    const std::vector<HostEntry>& hosts,
                                                    const Invocation& invocation) {
  char directory[PATH_MAX];
  if (getcwd(directory, sizeof(directory)) == nullptr) {
    return absl::InternalError("there is no working directory");
  }
  SshOptions ssh = SshOf(job, invocation);
  ssh.host = hosts.front().host;
  HostSurroundings surroundings{
      .directory = directory,
      .environment = invocation.environment,
      .deepspeed_env = FindDeepSpeedVariables(invocation.environment, ReadTextOrNone),
      .first_address = hosts.size() > 1 ? AddressForSsh(ssh) : "",
      .fresh_run_id = "hosts-" + absl::BytesToHexString(RandomBytes(6))};
  if (job.authentication) {
    MUSTER_ASSIGN_OR_RETURN(const UserSecret secret,
                            LoadUserSecret(SecretSourcesIn(invocation.environment)));
    surroundings.token = secret.secret;
  }
  return PlanHosts(job, hosts, surroundings);
}

absl::StatusOr<std::vector<SshSession>> StartAll(const HostJob& job,
                                                 const std::vector<HostEntry>& hosts,
                                                 const Invocation& invocation) {
  SshOptions ssh = SshOf(job, invocation);
  MUSTER_RETURN_IF_ERROR(CheckIsPlain(ssh.binary));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<RemoteStart> starts,
                          PlanStarts(job, hosts, invocation));
  std::vector<SshSession> sessions;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ssh.host = hosts[i].host;
    MUSTER_ASSIGN_OR_RETURN(SshSession session,
                            SshSession::Start(ssh, EncodeRemoteStart(starts[i])));
    sessions.push_back(std::move(session));
  }
  return sessions;
}

// This process becomes the agent of host `index`. It finds the secret as one behind ssh could not.
int RunHere(HostJob job, const std::vector<HostEntry>& hosts, int index,
            const Invocation& invocation) {
  job.authentication = false;
  const auto starts = PlanStarts(job, hosts, invocation);
  if (!starts.ok()) return Refuse(starts.status());
  const RemoteStart& start = (*starts)[static_cast<size_t>(index)];
  Invocation here = invocation;
  here.args = start.arguments;
  for (const auto& [name, value] : start.environment) here.environment[name] = value;
  return RunCommand(here);
}

}  // namespace

int HostsCommand(const HostJob& job, const Invocation& invocation) {
  const absl::StatusOr<std::vector<HostEntry>> hosts = FindHosts(job);
  if (!hosts.ok()) return Refuse(hosts.status());
  const int num_hosts = static_cast<int>(hosts->size());
  if (job.node_rank && (*job.node_rank < 0 || *job.node_rank >= num_hosts)) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat("--node_rank=", *job.node_rank, ": expected 0 to ", num_hosts - 1,
                     ", this machine's place among the hosts that take part")));
  }
  if (job.node_rank || (num_hosts == 1 && IsHere(hosts->front().host))) {
    return RunHere(job, *hosts, job.node_rank.value_or(0), invocation);
  }
  absl::StatusOr<std::vector<SshSession>> sessions = StartAll(job, *hosts, invocation);
  if (!sessions.ok()) return Refuse(sessions.status());
  return HostRun(*std::move(sessions)).Run();
}

}  // namespace muster::launcher
