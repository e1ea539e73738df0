#include "agent/machine/socket_owner.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cstring>

#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using Address = asio::ip::address;

constexpr timeval kPatience{.tv_sec = 1, .tv_usec = 0};

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

// The kernel keeps an IPv4 connection as such, whatever family its sockets are of.
Address Plain(const Address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  return address;
}

void Put(const Address& address, __be32 (&to)[4]) {
  if (address.is_v4()) {
    const auto bytes = address.to_v4().to_bytes();
    std::memcpy(to, bytes.data(), bytes.size());
  } else {
    const auto bytes = address.to_v6().to_bytes();
    std::memcpy(to, bytes.data(), bytes.size());
  }
}

Question About(const asio::ip::tcp::endpoint& theirs, const asio::ip::tcp::endpoint& here) {
  const Address source = Plain(theirs.address()), destination = Plain(here.address());
  Question question{};
  question.header = {.nlmsg_len = sizeof question,
                     .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                     .nlmsg_flags = NLM_F_REQUEST};
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = source.is_v4() ? AF_INET : AF_INET6;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~__u32{0};
  request.id.idiag_sport = htons(theirs.port());
  request.id.idiag_dport = htons(here.port());
  Put(source, request.id.idiag_src);
  Put(destination, request.id.idiag_dst);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

}  // namespace

std::optional<uid_t> OwnerOfPeer(asio::ip::tcp::endpoint theirs, asio::ip::tcp::endpoint here) {
  const UniqueFd kernel(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!kernel) return std::nullopt;
  ::setsockopt(kernel.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  const Question question = About(theirs, here);
  if (::send(kernel.get(), &question, sizeof question, 0) != sizeof question) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 4096> answer;
  const ssize_t bytes = ::recv(kernel.get(), answer.data(), answer.size(), 0);
  nlmsghdr header;
  inet_diag_msg socket;
  if (bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof socket))) return std::nullopt;
  std::memcpy(&header, answer.data(), sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;  // an error
  std::memcpy(&socket, answer.data() + NLMSG_HDRLEN, sizeof socket);
  // A connection that is being closed belongs to nobody any more, which reads as root.
  if (socket.idiag_inode == 0) return std::nullopt;
  return socket.idiag_uid;
}

}  // namespace muster::agent
