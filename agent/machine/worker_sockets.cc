#include "agent/machine/worker_sockets.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/machine/descendants.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

// /proc prints addresses as words of 32 bits in the machine's order.
std::optional<std::string> ParseAddress(absl::string_view hex) {
  if (hex.size() != 8 && hex.size() != 32) return std::nullopt;
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < hex.size() / 8; ++i) {
    if (!absl::SimpleHexAtoi(hex.substr(8 * i, 8), &words[i])) return std::nullopt;
  }
  const bool is_mapped =
      hex.size() == 32 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
  const bool is_v4 = hex.size() == 8 || is_mapped;
  char text[INET6_ADDRSTRLEN];
  const void* bytes = is_mapped ? &words[3] : words.data();
  if (::inet_ntop(is_v4 ? AF_INET : AF_INET6, bytes, text, sizeof text) == nullptr)
    return std::nullopt;
  return text;
}

// Those in a state of which `is_wanted` says that they are wanted, by them and their remote port.
std::vector<LocalSocket> FindSockets(
    absl::string_view proc_net_tcp, TcpState wanted,
    absl::FunctionRef<bool(const LocalSocket&, int remote_port)> is_wanted) {
  constexpr size_t kLocal = 1, kRemote = 2, kState = 3, kInode = 9;
  std::vector<LocalSocket> sockets;
  for (absl::string_view line : absl::StrSplit(proc_net_tcp, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (fields.size() <= kInode) continue;
    const std::pair<absl::string_view, absl::string_view> local =
        absl::StrSplit(fields[kLocal], ':');
    const std::pair<absl::string_view, absl::string_view> remote =
        absl::StrSplit(fields[kRemote], ':');
    int state, port;
    LocalSocket socket;
    const std::optional<std::string> address = ParseAddress(local.first);
    if (!address || !absl::SimpleHexAtoi(fields[kState], &state) ||
        state != static_cast<int>(wanted) || !absl::SimpleHexAtoi(remote.second, &port) ||
        !absl::SimpleHexAtoi(local.second, &socket.port) || !is_wanted(socket, port) ||
        !absl::SimpleAtoi(fields[kInode], &socket.inode) || socket.inode == 0) {
      continue;
    }
    socket.address = *address;
    sockets.push_back(std::move(socket));
  }
  return sockets;
}

using SocketsByInode = absl::btree_map<uint64_t, LocalSocket>;

SocketsByInode SocketsTo(int remote_port, TcpState state) {
  SocketsByInode sockets;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (LocalSocket& socket : FindConnectionsTo(TextOf(path), remote_port, state)) {
      const uint64_t inode = socket.inode;
      sockets.emplace(inode, std::move(socket));
    }
  }
  return sockets;
}

// The sockets of `sockets` that `pid` holds are moved to `found`.
void TakeSocketsOf(pid_t pid, size_t worker, SocketsByInode& sockets,
                   std::vector<WorkerSocket>& found) {
  for (const uint64_t inode : SocketsOf(pid)) {
    const auto socket = sockets.find(inode);
    if (socket == sockets.end()) continue;
    found.push_back({worker, socket->second.address, socket->second.port});
    sockets.erase(socket);
  }
}

}  // namespace

std::vector<uint64_t> SocketsOf(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid, "/fd");
  std::vector<uint64_t> inodes;
  for (const std::string& name : NamesIn(directory)) {
    char target[64];
    const ssize_t n = ::readlink(absl::StrCat(directory, "/", name).c_str(), target, sizeof target);
    absl::string_view link(target, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    uint64_t inode;
    if (absl::ConsumePrefix(&link, "socket:[") && absl::ConsumeSuffix(&link, "]") &&
        absl::SimpleAtoi(link, &inode)) {
      inodes.push_back(inode);
    }
  }
  return inodes;
}

std::vector<LocalSocket> FindConnectionsTo(absl::string_view proc_net_tcp, int remote_port,
                                           TcpState wanted) {
  return FindSockets(proc_net_tcp, wanted,
                     [&](const LocalSocket&, int port) { return port == remote_port; });
}

std::vector<LocalSocket> FindListeners(absl::string_view proc_net_tcp, int port) {
  return FindSockets(proc_net_tcp, TcpState::kListening,
                     [&](const LocalSocket& socket, int) { return socket.port == port; });
}

std::vector<WorkerSocket> FindWorkerSockets(absl::Span<const pid_t> workers, int remote_port) {
  SocketsByInode sockets = SocketsTo(remote_port, TcpState::kEstablished);
  std::vector<WorkerSocket> found;
  for (size_t i = 0; i < workers.size() && !sockets.empty(); ++i) {
    TakeSocketsOf(workers[i], i, sockets, found);
    for (const ProcessInfo& process : ListDescendants(workers[i])) {
      TakeSocketsOf(process.pid, i, sockets, found);
    }
  }
  return found;
}

std::vector<Connecting> LookAtConnecting(absl::Span<const pid_t> pids, int remote_port) {
  SocketsByInode connected = SocketsTo(remote_port, TcpState::kEstablished);
  SocketsByInode unanswered = SocketsTo(remote_port, TcpState::kSynSent);
  std::vector<Connecting> out;
  for (const pid_t pid : pids) {
    std::vector<WorkerSocket> of_connected, of_unanswered;
    TakeSocketsOf(pid, 0, connected, of_connected);
    TakeSocketsOf(pid, 0, unanswered, of_unanswered);
    const bool is_gone = ::access(absl::StrCat("/proc/", pid, "/fd").c_str(), F_OK) != 0;
    out.push_back(is_gone                  ? Connecting::kGone
                  : !of_connected.empty()  ? Connecting::kConnected
                  : !of_unanswered.empty() ? Connecting::kUnanswered
                                           : Connecting::kRefused);
  }
  return out;
}

}  // namespace muster::agent
