#include "agent/guardian/framed_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

union ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int) * kFrameDescriptorsMax)];
  cmsghdr alignment;
};

uint32_t DecodeLength(const std::array<char, 4>& header) {
  uint32_t length = 0;
  for (int i = 3; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(header[i]);
  return length;
}

std::string EncodeLength(uint32_t length) {
  std::string header;
  for (int i = 0; i < 4; ++i) header.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  return header;
}

void TakeDescriptors(msghdr& message, Frame& frame) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      frame.descriptors.emplace_back(fd);
    }
  }
  if (message.msg_flags & MSG_CTRUNC) frame.descriptors_lost = true;
}

void AttachDescriptors(const std::vector<UniqueFd>& descriptors, ControlBuffer& control,
                       msghdr& message) {
  if (descriptors.empty()) return;
  const size_t bytes = sizeof(int) * descriptors.size();
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(bytes);
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const int fd = descriptors[i].get();
    std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
  }
}

// ETOOMANYREFS: too many descriptors are on their way; the peer takes them soon.
bool IsTemporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ETOOMANYREFS || error == ENOBUFS ||
         error == ENOMEM;
}

}  // namespace

absl::StatusOr<bool> FrameReader::Fill(char* data, size_t size) {
  while (received_ < size) {
    iovec part{data + received_, size - received_};
    ControlBuffer control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    const ssize_t n = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && IsTemporary(errno)) return false;
    if (n < 0) return absl::UnavailableError(absl::StrCat("recvmsg: ", std::strerror(errno)));
    if (n == 0) return absl::UnavailableError("the peer has closed the socket");
    TakeDescriptors(message, frame_);
    received_ += n;
  }
  return true;
}

absl::StatusOr<std::optional<Frame>> FrameReader::Read() {
  if (!in_body_) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_header, Fill(header_.data(), header_.size()));
    if (!has_header) return std::nullopt;
    const uint32_t length = DecodeLength(header_);
    if (length > kFrameBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame of ", length, " bytes is over the limit"));
    }
    frame_.body.resize(length);
    in_body_ = true;
    received_ = 0;
  }
  MUSTER_ASSIGN_OR_RETURN(const bool has_body, Fill(frame_.body.data(), frame_.body.size()));
  if (!has_body) return std::nullopt;
  in_body_ = false;
  received_ = 0;
  return std::exchange(frame_, Frame());
}

void FrameWriter::Push(std::string body, std::vector<UniqueFd> descriptors) {
  MUSTER_CHECK(body.size() <= kFrameBytesMax && descriptors.size() <= kFrameDescriptorsMax);
  Outgoing outgoing{EncodeLength(static_cast<uint32_t>(body.size())) + body,
                    std::move(descriptors)};
  queued_bytes_ += outgoing.bytes.size();
  queue_.push_back(std::move(outgoing));
}

absl::Status FrameWriter::Flush() {
  while (!queue_.empty()) {
    Outgoing& first = queue_.front();
    iovec part{first.bytes.data() + sent_of_first_, first.bytes.size() - sent_of_first_};
    ControlBuffer control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    AttachDescriptors(first.descriptors, control, message);
    const ssize_t n = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && IsTemporary(errno)) return absl::OkStatus();
    if (n < 0) return absl::UnavailableError(absl::StrCat("sendmsg: ", std::strerror(errno)));
    first.descriptors.clear();
    sent_of_first_ += n;
    queued_bytes_ -= n;
    if (sent_of_first_ < first.bytes.size()) continue;
    queue_.pop_front();
    sent_of_first_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace muster::agent
