// `muster agent`: reads what to start from standard input, runs it, and passes signals on.
#include "launcher/commands/commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/hosts/remote_start.h"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/io/log.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr size_t kMaxStartBytes = size_t{16} << 20;
constexpr int kMaxSignal = 64;

// A byte at a time: what follows the line belongs to later reads.
absl::StatusOr<std::string> ReadLine() {
  std::string line;
  char c = 0;
  while (line.size() < kMaxStartBytes) {
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the connection ended before anything was started");
    if (c == '\n') return line;
    line.push_back(c);
  }
  return absl::InvalidArgumentError("standard input has no line");
}

// Calls only what may be called between fork and exec.
[[noreturn]] void Become(const std::string& binary, const std::string& directory,
                         std::vector<char*>& argv, std::vector<char*>& environment) {
  setsid();
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  if (chdir(directory.c_str()) != 0) _exit(kExitUsage);
  execve(binary.c_str(), argv.data(), environment.data());
  _exit(127);
}

pid_t Launch(const RemoteStart& start, const Invocation& invocation) {
  const std::string binary = invocation.binary_directory + "/muster";
  std::vector<std::string> arguments = {binary, "run"};
  arguments.insert(arguments.end(), start.arguments.begin(), start.arguments.end());
  EnvironmentMap merged = invocation.environment;
  for (const auto& [name, value] : start.environment) merged[name] = value;
  std::vector<std::string> variables;
  for (const auto& [name, value] : merged) variables.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv = ExecPointers(arguments);
  std::vector<char*> environment = ExecPointers(variables);
  const pid_t child = fork();
  if (child == 0) Become(binary, start.directory, argv, environment);
  return child;
}

// The whole lines of `text`, which keeps what is behind the last.
void PassSignalsOn(std::string& text, pid_t child) {
  size_t end;
  while ((end = text.find('\n')) != std::string::npos) {
    absl::string_view line = absl::string_view(text).substr(0, end);
    int signal = 0;
    if (absl::ConsumePrefix(&line, "signal ") && absl::SimpleAtoi(line, &signal) && signal > 0 &&
        signal <= kMaxSignal) {
      kill(child, signal);
    }
    text.erase(0, end + 1);
  }
}

int AwaitEnd(pid_t child) {
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  pollfd polled[] = {{ended.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  std::string text;
  while (true) {
    if (poll(polled, 2, -1) < 0 && errno != EINTR) break;
    if (polled[1].revents != 0) {
      char buffer[256];
      const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
      if (n > 0) text.append(buffer, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR)) polled[1].fd = -1;  // the connection has ended
      PassSignalsOn(text, child);
    }
    if (polled[0].revents != 0) break;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFSIGNALED(status) ? ExitCodeOfSignal(WTERMSIG(status)) : WEXITSTATUS(status);
}

}  // namespace

int AgentCommand(const Invocation& invocation) {
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT}) std::signal(signal, SIG_IGN);
  std::printf("%s\n", kRemoteGreeting);
  std::fflush(stdout);
  absl::StatusOr<std::string> line = ReadLine();
  absl::StatusOr<RemoteStart> start =
      line.ok() ? DecodeRemoteStart(*line) : absl::StatusOr<RemoteStart>(line.status());
  if (start.ok() && access(start->directory.c_str(), X_OK) != 0) {
    start = absl::InvalidArgumentError(
        absl::StrCat("cannot start in ", start->directory, ": ", std::strerror(errno)));
  }
  if (!start.ok()) {
    log::Write(log::Level::kError, "refused", start.status().message());
    return ExitCodeOf(start.status());
  }
  // The job has the usual signals; only this process must outlive its connection.
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT}) std::signal(signal, SIG_DFL);
  const pid_t child = Launch(*start, invocation);
  for (const int signal : {SIGHUP, SIGPIPE, SIGINT}) std::signal(signal, SIG_IGN);
  if (child < 0) return kExitFailure;
  return AwaitEnd(child);
}

}  // namespace muster::launcher
