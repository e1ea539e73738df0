#include "launcher/node/node_signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::launcher {
namespace {

bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// SIGHUP that we were started ignoring, under nohup, stays ignored. What a shell without job
// control lets its background processes ignore (SIGINT, SIGQUIT) is obeyed: somebody sends it to us
// and means us.
//
// Source: torchrun, which sets its own handlers whatever it was started with.
sigset_t SignalsToTake(const JobSpec& spec, bool under_slurm) {
  std::vector<int> signals = HandledSignals(spec);
  if (under_slurm) signals.insert(signals.end(), {SIGUSR1, SIGUSR2, SIGCONT});
  if (isatty(STDIN_FILENO) == 1) signals.push_back(SIGTSTP);
  signals.push_back(SIGWINCH);
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals) {
    if (signal != SIGHUP || !IsIgnored(signal)) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

absl::Status NodeSignals::Hold(const JobSpec& spec, bool under_slurm) {
  const sigset_t set = SignalsToTake(spec, under_slurm);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGTTIN, SIG_IGN);  // see TerminalInput
  const int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot handle signals: ", std::strerror(errno),
                     "; raise the limit on open files (ulimit -n)"));
  }
  signals_.assign(fd);
  return absl::OkStatus();
}

std::optional<int> NodeSignals::Await(absl::Duration timeout) {
  pollfd signal{.fd = signals_.native_handle(), .events = POLLIN, .revents = 0};
  if (::poll(&signal, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) {
    return std::nullopt;
  }
  return Read();
}

void NodeSignals::Deliver(std::function<void(int signal)> on_signal) {
  on_signal_ = std::move(on_signal);
  WaitForNext();
}

std::optional<int> NodeSignals::Read() {
  signalfd_siginfo info{};
  if (read(signals_.native_handle(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void NodeSignals::WaitForNext() {
  signals_.async_wait(asio::posix::stream_descriptor::wait_read,
                      [this](const asio::error_code& error) {
                        if (error) return;
                        while (const std::optional<int> signal = Read()) on_signal_(*signal);
                        WaitForNext();
                      });
}

}  // namespace muster::launcher
