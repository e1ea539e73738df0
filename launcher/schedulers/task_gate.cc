#include "launcher/schedulers/task_gate.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/exit_codes.h"
#include "proto/io/descriptors.h"
#include "proto/io/log.h"

namespace muster::launcher {
namespace {

constexpr absl::Duration kShortestOpening = absl::Seconds(2);
constexpr absl::Duration kStartPatience = absl::Minutes(1);  // for the agent's task to start
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
constexpr int kBacklog = 4096;  // nobody is accepted: waiting in the queue is all they do

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Address AddressOf(const std::string& job) {
  const std::string text = absl::StrCat("muster-tasks-", geteuid(), "-", job);
  Address address;
  address.name.sun_family = AF_UNIX;
  const size_t size = std::min(text.size(), sizeof(address.name.sun_path) - 1);
  std::memcpy(address.name.sun_path + 1, text.data(), size);  // behind the 0 of abstract names
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

UniqueFd NewSocket() { return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

volatile std::sig_atomic_t stop_signal = 0;

void NoteSignal(int signal) { stop_signal = signal; }

void HandleStopSignals() {
  struct sigaction action {};
  action.sa_handler = NoteSignal;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaction(signal, &action, nullptr);
  for (const int signal : {SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
}

}  // namespace

absl::StatusOr<TaskGate> TaskGate::Open(const std::string& job) {
  UniqueFd fd = NewSocket();
  const Address address = AddressOf(job);
  if (!fd || bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(
          absl::StrCat("another agent of this job (", job, ") runs on this node already"));
    }
    return absl::InternalError(
        absl::StrCat("cannot meet the other tasks of this node: ", std::strerror(errno)));
  }
  if (listen(fd.get(), kBacklog) != 0) return absl::InternalError(std::strerror(errno));
  return TaskGate(std::move(fd));
}

TaskGate::~TaskGate() {
  if (!socket_) return;
  const absl::Duration rest = opened_ + kShortestOpening - MonoNow();
  if (rest > absl::ZeroDuration()) absl::SleepFor(rest);
}

int LieIdle(const std::string& job) {
  HandleStopSignals();
  const Address address = AddressOf(job);
  const UniqueFd fd = NewSocket();
  const MonoTime give_up = MonoNow() + kStartPatience;
  while (connect(fd.get(), address.get(), address.length) != 0) {
    if (stop_signal != 0) return ExitCodeOfSignal(stop_signal);
    if (MonoNow() > give_up) {
      log::Write(
          log::Level::kError, "idle",
          absl::StrCat("the first task of this node, which is its agent, did not start within ",
                       absl::FormatDuration(kStartPatience)));
      return kExitFailure;
    }
    absl::SleepFor(kLookAgain);
  }
  if (!IsOfThisUser(fd.get())) {
    log::Write(log::Level::kError, "idle",
               "another user has the name at which this job's tasks meet");
    return kExitFailure;
  }
  char nothing;
  while (read(fd.get(), &nothing, 1) < 0 && errno == EINTR) continue;
  return 0;
}

}  // namespace muster::launcher
