// Which TCP connections belong to which worker, as /proc knows it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster::agent {

// This machine's end of a connection.
struct LocalSocket {
  uint64_t inode = 0;
  std::string address;  // numeric; an IPv4 address that is mapped into IPv6 reads as IPv4
  int port = 0;
  friend bool operator==(const LocalSocket&, const LocalSocket&) = default;
};

// The numbers are the kernel's.
enum class TcpState { kEstablished = 1, kSynSent = 2, kListening = 10 };

// The connections to `remote_port` of any machine, of the text of /proc/net/tcp or tcp6. Lines that
// are none are passed over.
//
// Threads: pure.
// Source:  kernel documentation, networking/proc_net_tcp.rst
std::vector<LocalSocket> FindConnectionsTo(absl::string_view proc_net_tcp, int remote_port,
                                           TcpState state = TcpState::kEstablished);

// The sockets that listen at `port`; as above.
std::vector<LocalSocket> FindListeners(absl::string_view proc_net_tcp, int port);

// The inodes of the sockets that a process has; none where it is not ours to look at.
std::vector<uint64_t> SocketsOf(pid_t pid);

// A connection, held by a worker or by a process below it.
struct WorkerSocket {
  size_t worker = 0;  // index into `workers`
  std::string address;
  int port = 0;
};

// Looks through the descriptors of `workers` (their pids) and of all processes below them. Blocks
// for as long as /proc takes: about a microsecond per descriptor.
std::vector<WorkerSocket> FindWorkerSockets(absl::Span<const pid_t> workers, int remote_port);

// How far a process has come with connecting to a port. A client that is refused closes its socket
// and tries again, so one that has none is refused.
enum class Connecting { kRefused, kUnanswered, kConnected, kGone };

// How far each of `pids` alone has come, in their order. Cost as above.
std::vector<Connecting> LookAtConnecting(absl::Span<const pid_t> pids, int remote_port);

}  // namespace muster::agent
