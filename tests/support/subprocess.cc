#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe MakePipe() {
  int ends[2];
  MUSTER_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  return {ends[0], ends[1]};
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

int MillisUntil(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
  return left < 0 ? 0 : static_cast<int>(left) + 1;
}

// Runs in the child, between fork and exec: system calls only.
void ResetSignals(const std::vector<int>& ignored) {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  for (int signal : ignored) ::signal(signal, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

std::string ToString(const SubprocessResult& result) {
  const std::string end = !result.ended   ? "still running at the deadline"
                          : result.signal ? absl::StrCat("ended by signal ", result.signal)
                                          : absl::StrCat("exit code ", result.exit_code);
  return absl::StrCat(end, "\n--- stdout ---\n", result.out, "\n--- stderr ---\n", result.err,
                      "\n---");
}

void PrintTo(const SubprocessResult& result, std::ostream* out) { *out << ToString(result); }

struct Subprocess::State {
  pid_t pid = -1;
  int pidfd = -1;
  bool reaped = false;
  SubprocessResult result;
  Pipe stop;  // closing its write end ends the reader
  std::thread reader;

  std::mutex mu;  // guards what follows
  std::condition_variable changed;
  std::string out;
  std::string err;
  bool at_end = false;

  void ReadOutput(int out_fd, int err_fd) {
    pollfd fds[3] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}, {stop.read_end, POLLIN, 0}};
    std::string* texts[2] = {&out, &err};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
      if (poll(fds, 3, -1) < 0 && errno != EINTR) break;
      if (fds[2].revents != 0) break;
      for (int i = 0; i < 2; ++i) {
        if (fds[i].fd >= 0 && fds[i].revents != 0 && !ReadSome(fds[i].fd, *texts[i]))
          fds[i].fd = -1;
      }
    }
    close(out_fd);
    close(err_fd);
    const std::lock_guard lock(mu);
    at_end = true;
    changed.notify_all();
  }

  bool ReadSome(int fd, std::string& text) {
    char buffer[65536];
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count <= 0) return count < 0 && errno == EINTR;
    const std::lock_guard lock(mu);
    text.append(buffer, count);
    changed.notify_all();
    return true;
  }

  bool Reap(absl::Time deadline) {
    if (reaped) return true;
    pollfd fd = {pidfd, POLLIN, 0};
    int ready = 0;
    do {
      ready = poll(&fd, 1, MillisUntil(deadline));
    } while (ready < 0 && errno == EINTR);
    if (ready != 1) return false;
    int status = 0;
    MUSTER_CHECK(waitpid(pid, &status, 0) == pid);
    reaped = true;
    result.ended = true;
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    return true;
  }
};

Subprocess::Subprocess(const SubprocessOptions& options) : state_(std::make_unique<State>()) {
  const Pipe in = MakePipe(), out = MakePipe(), err = MakePipe();
  state_->stop = MakePipe();
  MUSTER_CHECK(options.stdin_text.size() <= 65536);
  MUSTER_CHECK(write(in.write_end, options.stdin_text.data(), options.stdin_text.size()) ==
               static_cast<ssize_t>(options.stdin_text.size()));
  std::vector<std::string> argv_strings = options.argv;
  std::vector<std::string> env_strings;
  for (const auto& [name, value] : options.environment) {
    env_strings.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<char*> argv = PointersTo(argv_strings), envp = PointersTo(env_strings);
  const pid_t parent = getpid();

  state_->pid = fork();
  MUSTER_CHECK(state_->pid >= 0);
  if (state_->pid == 0) {
    ResetSignals(options.ignored_signals);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(125);
    dup2(in.read_end, 0);
    dup2(out.write_end, 1);
    dup2(err.write_end, 2);
    if (!options.working_directory.empty() && chdir(options.working_directory.c_str()) != 0)
      _exit(126);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  for (int fd : {in.read_end, in.write_end, out.write_end, err.write_end}) close(fd);
  state_->pidfd = static_cast<int>(syscall(SYS_pidfd_open, state_->pid, 0));
  MUSTER_CHECK(state_->pidfd >= 0);
  state_->reader = std::thread(
      [state = state_.get(), out, err] { state->ReadOutput(out.read_end, err.read_end); });
}

Subprocess::Subprocess(Subprocess&&) noexcept = default;

Subprocess::~Subprocess() {
  if (state_ == nullptr) return;
  if (!state_->reaped) {
    Signal(SIGKILL);
    state_->Reap(absl::Now() + Patience(kPatience));
  }
  close(state_->stop.write_end);
  state_->reader.join();
  close(state_->stop.read_end);
  close(state_->pidfd);
}

pid_t Subprocess::pid() const { return state_->pid; }

void Subprocess::Signal(int signal) const {
  if (!state_->reaped) kill(state_->pid, signal);
}

SubprocessResult Subprocess::Wait(absl::Duration timeout) {
  const bool ended = state_->Reap(absl::Now() + Patience(timeout));
  std::unique_lock lock(state_->mu);
  // What it wrote before it ended is in the pipe already; the end of file may never come if a
  // descendant lives on.
  if (ended) {
    state_->changed.wait_for(lock, std::chrono::seconds(2), [&] { return state_->at_end; });
  }
  state_->result.out = state_->out;
  state_->result.err = state_->err;
  return state_->result;
}

bool Subprocess::WaitForOutput(const std::string& text, absl::Duration timeout) {
  std::unique_lock lock(state_->mu);
  const auto has_text = [&] {
    return state_->out.find(text) != std::string::npos ||
           state_->err.find(text) != std::string::npos;
  };
  state_->changed.wait_for(lock, absl::ToChronoMilliseconds(Patience(timeout)),
                           [&] { return has_text() || state_->at_end; });
  return has_text();
}

void PauseBetweenLooks() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

}  // namespace muster::testing
