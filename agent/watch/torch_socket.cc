#include "agent/watch/torch_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

constexpr size_t kHeadBytesMax = 8192;

// One question under way.
struct Exchange {
  UniqueFd fd;
  pid_t pid = 0;
  std::string to_send;
  std::string received;
  absl::StatusOr<TorchAnswer> result = absl::DeadlineExceededError("no answer in time");
  bool is_over = false;

  void End(absl::StatusOr<TorchAnswer> how) {
    result = std::move(how);
    is_over = true;
    fd.reset();
  }
};

// A server whose queue of connections is full is one that does not answer.
void Open(const TorchQuestion& question, Exchange& out) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (question.socket.empty() || question.socket.size() >= sizeof(address.sun_path)) {
    return out.End(absl::UnavailableError("nothing listens there"));
  }
  std::memcpy(address.sun_path, question.socket.data(), question.socket.size());
  out.fd.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.fd) return out.End(absl::UnavailableError(std::strerror(errno)));
  if (connect(out.fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EAGAIN) return out.End(absl::DeadlineExceededError("it accepts no connection"));
    return out.End(absl::UnavailableError(std::strerror(errno)));
  }
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(out.fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != geteuid()) {
    return out.End(absl::UnavailableError("the socket belongs to another user"));
  }
  out.pid = peer.pid;
  out.to_send = absl::StrCat("POST /handler/", question.handler,
                             " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n",
                             "Connection: close\r\n\r\n");
}

void Send(Exchange& out) {
  const ssize_t sent =
      send(out.fd.get(), out.to_send.data(), out.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    out.to_send.erase(0, static_cast<size_t>(sent));
  } else if (errno != EAGAIN && errno != EINTR) {
    out.End(absl::UnavailableError(std::strerror(errno)));
  }
}

void Receive(Exchange& out) {
  std::array<char, 65536> buffer;
  const ssize_t got = recv(out.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) out.End(absl::UnavailableError(std::strerror(errno)));
    return;
  }
  out.received.append(buffer.data(), static_cast<size_t>(got));
  absl::StatusOr<std::optional<std::string>> body = ReadHttpAnswer(out.received);
  if (!body.ok()) return out.End(body.status());
  if (*body) return out.End(TorchAnswer{.pid = out.pid, .body = **std::move(body)});
  if (got == 0) out.End(absl::InvalidArgumentError("the answer is truncated"));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadHttpAnswer(absl::string_view bytes) {
  const size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == absl::string_view::npos) {
    if (bytes.size() > kHeadBytesMax)
      return absl::InvalidArgumentError("the HTTP header is too long");
    return std::nullopt;
  }
  const std::vector<absl::string_view> lines =
      absl::StrSplit(bytes.substr(0, head_end), absl::string_view("\r\n"));
  if (!absl::StartsWith(lines[0], "HTTP/1.1 200") && !absl::StartsWith(lines[0], "HTTP/1.0 200")) {
    return absl::InvalidArgumentError("the answer is not an HTTP success");
  }
  std::optional<size_t> length;
  for (const absl::string_view line : lines) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (!absl::EqualsIgnoreCase(field.first, "content-length")) continue;
    size_t value = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(field.second), &value)) {
      return absl::InvalidArgumentError("the Content-Length is not a number");
    }
    length = value;
  }
  if (!length) return absl::InvalidArgumentError("the answer has no Content-Length");
  if (*length > kTorchAnswerBytesMax) return absl::InvalidArgumentError("the answer is too long");
  const absl::string_view body = bytes.substr(head_end + 4);
  if (body.size() < *length) return std::nullopt;
  return std::string(body.substr(0, *length));
}

// The file may be anything, also a pipe that nobody writes to.
std::optional<std::string> ReadAnswerFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_size > static_cast<off_t>(kHeadBytesMax + kTorchAnswerBytesMax)) return std::nullopt;
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = read(fd.get(), bytes.data() + length, bytes.size() - length);
    if (got <= 0) return std::nullopt;
    length += static_cast<size_t>(got);
  }
  absl::StatusOr<std::optional<std::string>> body = ReadHttpAnswer(bytes);
  return body.ok() ? *std::move(body) : std::nullopt;
}

std::vector<absl::StatusOr<TorchAnswer>> AskTorch(const std::vector<TorchQuestion>& questions,
                                                  MonoTime deadline) {
  std::vector<Exchange> exchanges(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) Open(questions[i], exchanges[i]);
  while (true) {
    std::vector<pollfd> waits;
    std::vector<Exchange*> of;
    for (Exchange& each : exchanges) {
      if (each.is_over) continue;
      waits.push_back({.fd = each.fd.get(),
                       .events = static_cast<short>(each.to_send.empty() ? POLLIN : POLLOUT)});
      of.push_back(&each);
    }
    const absl::Duration left = deadline - MonoNow();
    if (waits.empty() || left <= absl::ZeroDuration()) break;
    const auto millis = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    if (poll(waits.data(), waits.size(), millis) < 0 && errno != EINTR) break;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      if (of[i]->to_send.empty()) {
        Receive(*of[i]);
      } else {
        Send(*of[i]);
      }
    }
  }
  std::vector<absl::StatusOr<TorchAnswer>> answers;
  for (Exchange& each : exchanges) answers.push_back(std::move(each.result));
  return answers;
}

}  // namespace muster::agent
