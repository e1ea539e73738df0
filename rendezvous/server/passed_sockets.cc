#include "rendezvous/server/passed_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::rendezvous {
namespace {

constexpr int kFirst = 3;
constexpr int kMost = 64;

int Option(int socket, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

absl::StatusOr<UniqueFd> Take(int number) {
  UniqueFd socket(number);
  const int family = Option(number, SO_DOMAIN);
  if ((family != AF_INET && family != AF_INET6) || Option(number, SO_TYPE) != SOCK_STREAM ||
      Option(number, SO_ACCEPTCONN) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", number, " of LISTEN_FDS is not a TCP socket that listens; a ",
                     "socket unit needs ListenStream=PORT, and Accept=no"));
  }
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  return socket;
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> TakePassedSockets(const EnvironmentMap& environment) {
  std::vector<UniqueFd> taken;
  const std::string* const pid = FindVariable(environment, "LISTEN_PID");
  const std::string* const number = FindVariable(environment, "LISTEN_FDS");
  if (pid == nullptr || number == nullptr || *pid != absl::StrCat(::getpid())) return taken;
  int count = 0;
  if (!absl::SimpleAtoi(*number, &count) || count < 0 || count > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("LISTEN_FDS=", *number, ": expected a number from 0 to ", kMost));
  }
  for (int i = 0; i < count; ++i) {
    MUSTER_ASSIGN_OR_RETURN(UniqueFd socket, Take(kFirst + i));
    taken.push_back(std::move(socket));
  }
  return taken;
}

}  // namespace muster::rendezvous
