// `muster run --hostfile`: starts an agent on each host over ssh, and waits for all of them.
#include "launcher/commands/commands.h"

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
#include "launcher/hosts/host_ends.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/hosts/ssh_session.h"
#include "launcher/node/endpoint.h"
#include "launcher/node/node_setup.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "proto/io/job_key.h"
#include "proto/io/log.h"
#include "proto/io/random_bytes.h"
#include "proto/io/unique_fd.h"
#include "proto/io/user_secret.h"

namespace muster::launcher {
namespace {

constexpr int kLookAgainMs = 100;   // for the end of an ssh whose output has ended
constexpr int kReachedAtOnce = 64;  // each is a process here, and a login there

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

// The ssh of one host, and what its agent is told.
struct HostStart {
  SshOptions ssh;
  std::string line;
};

// The sessions of one job, and what ends them.
class HostRun {
 public:
  explicit HostRun(std::vector<HostStart> starts)
      : starts_(std::move(starts)), ends_(starts_.size()) {
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

  JobOutcome Run() {
    while (true) {
      StartMore();
      if (ends_.HaveAllEnded()) return {.exit_code = ends_.ExitCode(), .reason = ends_.Reason()};
      Turn();
      for (size_t i = 0; i < sessions_.size(); ++i) {
        if (has_ended_[i] || !sessions_[i].HasEnded()) continue;
        has_ended_[i] = true;
        Obey(ends_.OnEnd({.host = sessions_[i].host(),
                          .was_greeted = sessions_[i].was_greeted(),
                          .exit_code = sessions_[i].exit_code(),
                          .last_words = sessions_[i].last_words()},
                         MonoNow()));
      }
    }
  }

 private:
  // Starts as many hosts as may be on the way to their greeting; once the others are stopped, no
  // more.
  void StartMore() {
    auto reaching = std::count_if(
        sessions_.begin(), sessions_.end(),
        [](const SshSession& session) { return session.is_running() && !session.was_greeted(); });
    while (sessions_.size() + num_left_out_ < starts_.size() &&
           (is_stopping_ || reaching < kReachedAtOnce)) {
      const HostStart& start = starts_[sessions_.size() + num_left_out_];
      HostEnds::End left_out{.host = start.ssh.host};
      if (!is_stopping_) {
        absl::StatusOr<SshSession> session = SshSession::Start(start.ssh, start.line);
        if (session.ok()) {
          sessions_.push_back(*std::move(session));
          has_ended_.push_back(false);
          ++reaching;
          continue;
        }
        left_out.last_words =
            absl::StrCat("ssh cannot be started here: ", session.status().message());
      }
      ++num_left_out_;
      Obey(ends_.OnEnd(left_out, MonoNow()));
    }
  }

  void Turn() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    bool is_ending = false;
    for (const SshSession& session : sessions_) {
      polled.push_back({session.out(), POLLIN, 0});
      polled.push_back({session.err(), POLLIN, 0});
      polled.push_back({session.in(), POLLOUT, 0});
      is_ending = is_ending || (session.out() < 0 && session.err() < 0 && session.is_running());
    }
    if (poll(polled.data(), polled.size(), is_ending ? kLookAgainMs : UntilDeadlineMs()) < 0)
      return;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (polled[1 + 3 * i].revents != 0) sessions_[i].ReadOut();
      if (polled[2 + 3 * i].revents != 0) sessions_[i].ReadErr();
      if (polled[3 + 3 * i].revents != 0) sessions_[i].WriteIn();
    }
    Obey(ends_.OnTime(MonoNow()));
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      ends_.OnSignal(signal);
      Stop(signal);
    }
  }

  // The time-out of poll; -1: there is none.
  int UntilDeadlineMs() const {
    const MonoTime deadline = ends_.NextDeadline();
    if (deadline.is_infinite()) return -1;
    const absl::Duration left = std::max(deadline - MonoNow(), absl::ZeroDuration());
    return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  }

  void Obey(const HostEnds::Orders& orders) {
    if (orders.say) {
      const log::Level level = orders.say->is_warning ? log::Level::kWarning : log::Level::kError;
      log::Write(level, orders.say->event, orders.say->text);
    }
    if (orders.stops_others) Stop(SIGTERM);
  }

  // A host that has not been reached has nothing to stop.
  void Stop(int signal) {
    is_stopping_ = true;
    for (SshSession& session : sessions_) {
      session.was_greeted() ? session.SendSignal(signal) : session.Cut();
    }
  }

  const std::vector<HostStart> starts_;
  std::vector<SshSession> sessions_;  // of the first of them
  std::vector<bool> has_ended_;       // by session
  size_t num_left_out_ = 0;           // of the rest, which will never be started
  bool is_stopping_ = false;
  UniqueFd signals_;
  HostEnds ends_;
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

absl::StatusOr<std::vector<HostStart>> PlanSessions(const HostJob& job,
                                                    const std::vector<HostEntry>& hosts,
                                                    const Invocation& invocation) {
  SshOptions ssh = SshOf(job, invocation);
  MUSTER_RETURN_IF_ERROR(CheckIsPlain(ssh.binary));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<RemoteStart> starts,
                          PlanStarts(job, hosts, invocation));
  std::vector<HostStart> sessions;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ssh.host = hosts[i].host;
    sessions.push_back({.ssh = ssh, .line = EncodeRemoteStart(starts[i])});
  }
  return sessions;
}

// This process becomes the agent of host `index`. It finds the secret as one behind ssh could not.
int RunHere(HostJob job, const std::vector<HostEntry>& hosts, int index,
            const Invocation& invocation) {
  job.authentication = false;
  const auto starts = PlanStarts(job, hosts, invocation);
  if (!starts.ok()) return RefuseRun(starts.status(), invocation);
  const RemoteStart& start = (*starts)[static_cast<size_t>(index)];
  Invocation here = invocation;
  here.args = start.arguments;
  for (const auto& [name, value] : start.environment) here.environment[name] = value;
  return RunCommand(here);
}

}  // namespace

int HostsCommand(const HostJob& job, const Invocation& invocation) {
  const absl::StatusOr<std::vector<HostEntry>> hosts = FindHosts(job);
  if (!hosts.ok()) return RefuseRun(hosts.status(), invocation);
  const int num_hosts = static_cast<int>(hosts->size());
  if (job.node_rank && (*job.node_rank < 0 || *job.node_rank >= num_hosts)) {
    return RefuseRun(absl::InvalidArgumentError(absl::StrCat(
                         "--node_rank=", *job.node_rank, ": expected 0 to ", num_hosts - 1,
                         ", this machine's place among the hosts that take part")),
                     invocation);
  }
  if (job.node_rank || (num_hosts == 1 && IsHere(hosts->front().host))) {
    return RunHere(job, *hosts, job.node_rank.value_or(0), invocation);
  }
  absl::StatusOr<std::vector<HostStart>> starts = PlanSessions(job, *hosts, invocation);
  if (!starts.ok()) return RefuseRun(starts.status(), invocation);
  RaiseDescriptorLimit();  // three pipes a host
  return EndRun(HostRun(*std::move(starts)).Run(), invocation);
}

}  // namespace muster::launcher
