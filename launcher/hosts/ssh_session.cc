#include "launcher/hosts/ssh_session.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "launcher/hosts/remote_start.h"
#include "proto/base/endpoint.h"
#include "proto/base/environment.h"
#include "proto/io/descriptors.h"

namespace muster::launcher {
namespace {

constexpr size_t kMaxLine = size_t{1} << 20;  // longer ones are passed on in pieces

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(std::strerror(errno));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<std::string> SshArguments(const SshOptions& options) {
  std::vector<std::string> argv = {"ssh"};
  if (!options.config.empty()) argv.insert(argv.end(), {"-F", options.config});
  if (options.port != 0) argv.insert(argv.end(), {"-p", absl::StrCat(options.port)});
  return argv;
}

// Calls only what may be called between fork and exec.
[[noreturn]] void BecomeSsh(char* const* argv, int in, int out, int err) {
  setsid();
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp("ssh", argv);
  static constexpr char kMissing[] = "ssh cannot be executed; is OpenSSH's client installed?\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMissing, sizeof(kMissing) - 1);
  _exit(255);
}

// Appends what is there to `rest`; false at the end.
bool ReadInto(const UniqueFd& fd, std::string& rest) {
  char buffer[65536];
  const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
  if (n > 0) rest.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

// Takes one line out of `rest`, with its end; empty if there is none yet.
std::string TakeLine(std::string& rest, bool at_end) {
  size_t end = rest.find('\n');
  if (end == std::string::npos && !at_end && rest.size() < kMaxLine) return "";
  end = end == std::string::npos ? rest.size() : end + 1;
  std::string line = rest.substr(0, end);
  rest.erase(0, end);
  return line;
}

void Show(FILE* stream, const std::string& line) {
  const std::string text = TextFor(fileno(stream), line);
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

absl::StatusOr<SshSession> SshSession::Start(const SshOptions& options,
                                             const std::string& start_line) {
  absl::StatusOr<Pipe> in = MakePipe(), out = MakePipe(), err = MakePipe();
  for (const auto* made : {&in, &out, &err}) {
    if (!made->ok()) return made->status();
  }
  std::vector<std::string> texts = SshArguments(options);
  texts.insert(texts.end(),
               {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o",
                "ServerAliveInterval=15", "--", options.host, options.binary, "agent"});
  const std::vector<char*> argv = ExecPointers(texts);
  SshSession session;
  session.pid_ = fork();
  if (session.pid_ == 0) {
    BecomeSsh(argv.data(), in->read.get(), out->write.get(), err->write.get());
  }
  if (session.pid_ < 0) return absl::InternalError(std::strerror(errno));
  session.host_ = options.host;
  session.in_ = std::move(in->write);
  session.out_ = std::move(out->read);
  session.err_ = std::move(err->read);
  session.unsent_ = start_line;
  fcntl(session.in_.get(), F_SETFL, O_NONBLOCK);
  return session;
}

SshSession::SshSession(SshSession&& other) noexcept
    : host_(std::move(other.host_)),
      pid_(std::exchange(other.pid_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)),
      unsent_(std::move(other.unsent_)),
      out_rest_(std::move(other.out_rest_)),
      err_rest_(std::move(other.err_rest_)),
      last_words_(std::move(other.last_words_)),
      was_greeted_(other.was_greeted_),
      exit_code_(other.exit_code_) {}

SshSession::~SshSession() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

void SshSession::TakeOutLine(const std::string& line) {
  if (was_greeted_) return Show(stdout, line);
  // What a login shell says before is nobody's.
  was_greeted_ = absl::StripTrailingAsciiWhitespace(line) == kRemoteGreeting;
}

void SshSession::ReadOut() {
  const bool goes_on = ReadInto(out_, out_rest_);
  for (std::string line; !(line = TakeLine(out_rest_, !goes_on)).empty();) TakeOutLine(line);
  if (!goes_on) out_.reset();
}

void SshSession::ReadErr() {
  const bool goes_on = ReadInto(err_, err_rest_);
  for (std::string line; !(line = TakeLine(err_rest_, !goes_on)).empty();) {
    if (was_greeted_) {
      Show(stderr, line);
    } else {
      last_words_ = std::string(absl::StripAsciiWhitespace(line));
    }
  }
  if (!goes_on) err_.reset();
}

void SshSession::WriteIn() {
  const ssize_t n = write(in_.get(), unsent_.data(), unsent_.size());
  if (n > 0) unsent_.erase(0, static_cast<size_t>(n));
  if (n < 0 && errno != EINTR && errno != EAGAIN) unsent_.clear();  // ssh has gone, and says why
}

void SshSession::SendSignal(int signal) {
  absl::StrAppend(&unsent_, "signal ", signal, "\n");
  WriteIn();
}

void SshSession::Cut() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

bool SshSession::HasEnded() {
  if (pid_ < 0) return true;
  if (out_ || err_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  pid_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  return true;
}

std::string AddressForSsh(const SshOptions& options) {
  absl::StatusOr<Pipe> out = MakePipe();
  if (!out.ok()) return options.host;
  std::vector<std::string> texts = SshArguments(options);
  texts.insert(texts.end(), {"-G", "--", options.host});
  const std::vector<char*> argv = ExecPointers(texts);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  const UniqueFd owned(nothing);
  const pid_t pid = fork();
  if (pid == 0) BecomeSsh(argv.data(), nothing, out->write.get(), nothing);
  out->write.reset();
  std::string text;
  while (pid > 0 && ReadInto(out->read, text)) continue;
  while (pid > 0 && waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "hostname ") && IsHost(std::string(line))) {
      return std::string(line);
    }
  }
  return options.host.substr(options.host.rfind('@') + 1);
}

}  // namespace muster::launcher
