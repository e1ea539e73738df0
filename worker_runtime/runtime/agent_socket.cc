#include "worker_runtime/runtime/agent_socket.h"

#include <errno.h>
#include <google/protobuf/message_lite.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/store_messages.h"

namespace muster {
namespace {

// The values of a reply, and what surrounds them.
constexpr size_t kMaxFrameBytes = kMaxStoreReplyBytes + (size_t{1} << 20);
constexpr absl::Duration kLongestPoll = absl::Hours(24);

absl::Status SocketError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " the agent at ", path, ": ", std::strerror(errno),
                   "; has the job ended, or is the socket of an earlier one "
                   "still in MUSTER_AGENT_SOCKET?"));
}

int PollTimeout(MonoTime deadline) {
  const absl::Duration left = std::clamp(deadline - MonoNow(), absl::ZeroDuration(), kLongestPoll);
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
}

bool ReadFully(int fd, char* data, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= got;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentSocket>> AgentSocket::Connect(const std::string& path) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (path.size() >= sizeof(to.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("MUSTER_AGENT_SOCKET=", path, " is too long for a Unix socket"));
  }
  std::memcpy(to.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return SocketError("open a socket to", path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    return SocketError("reach", path);
  }
  return std::make_unique<AgentSocket>(std::move(fd), path);
}

absl::Status AgentSocket::Send(const google::protobuf::MessageLite& message, MonoTime deadline) {
  std::string frame(4, '\0');
  message.AppendToString(&frame);
  const size_t body = frame.size() - 4;
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body >> (8 * i));
  base::MutexLock lock(write_mu_);
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t wrote =
        send(fd_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote >= 0) {
      sent += wrote;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return SocketError("write to", path_);
    pollfd writable{.fd = fd_.get(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, PollTimeout(deadline)) == 0) {
      Close();  // part of a frame may be out; nothing can follow it
      return absl::DeadlineExceededError(absl::StrCat("the agent at ", path_, " does not read"));
    }
  }
  return absl::OkStatus();
}

absl::Status AgentSocket::Receive(google::protobuf::MessageLite* reply) {
  std::array<uint8_t, 4> length{};
  if (!ReadFully(fd_.get(), reinterpret_cast<char*>(length.data()), length.size())) {
    return absl::UnavailableError(
        absl::StrCat("the agent at ", path_, " has closed the connection"));
  }
  size_t size = 0;
  for (int i = 3; i >= 0; --i) size = size << 8 | length[i];
  std::string body;
  if (size <= kMaxFrameBytes) body.resize(size);
  if (size > kMaxFrameBytes || !ReadFully(fd_.get(), body.data(), size) ||
      !reply->ParseFromString(body)) {
    return absl::UnavailableError(
        absl::StrCat("the agent at ", path_, " sent something that is not a reply"));
  }
  return absl::OkStatus();
}

void AgentSocket::Close() { shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace muster
