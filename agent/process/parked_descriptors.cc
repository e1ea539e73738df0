#include "agent/process/parked_descriptors.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace muster::agent {
namespace {

constexpr int kMessagesOfPairMax = 64;

// Room for the descriptors of one message, aligned as the kernel wants it.
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * ParkedDescriptors::kGroupMax)> bytes{};
};

}  // namespace

bool ParkedDescriptors::Send(const std::vector<UniqueFd>& group) {
  if (group.empty() || group.size() > kGroupMax) return false;
  if (pairs_.empty() || pairs_.back().num_sent >= kMessagesOfPairMax) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return false;
    }
    pairs_.push_back({.in = UniqueFd(ends[0]), .out = UniqueFd(ends[1])});
  }
  std::vector<int> numbers;
  for (const UniqueFd& fd : group) numbers.push_back(fd.get());
  Control control;
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * numbers.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * numbers.size());
  std::memcpy(CMSG_DATA(header), numbers.data(), sizeof(int) * numbers.size());
  if (::sendmsg(pairs_.back().in.get(), &message, MSG_NOSIGNAL) != 1) return false;
  ++pairs_.back().num_sent;
  return true;
}

void ParkedDescriptors::Park(std::vector<UniqueFd> group) {
  Group parked{.size = group.size()};
  if (!Send(group)) parked.kept = std::move(group);
  groups_.push_back(std::move(parked));
}

std::vector<UniqueFd> ParkedDescriptors::TakeNext() {
  if (groups_.empty()) return {};
  Group group = std::move(groups_.front());
  groups_.pop_front();
  if (!group.kept.empty() || group.size == 0) return std::move(group.kept);
  Control control;
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(pairs_.front().out.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const bool is_last = --pairs_.front().num_sent == 0 && pairs_.size() > 1;
  if (is_last) pairs_.pop_front();
  std::vector<UniqueFd> taken;
  if (got != 1) return taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      taken.emplace_back(number);
    }
  }
  return taken;
}

void ParkedDescriptors::Clear() {
  groups_.clear();
  pairs_.clear();
}

}  // namespace muster::agent
