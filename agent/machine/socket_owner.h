// Whose the other end of a connection within this machine is. TCP has no SO_PEERCRED; the kernel
// tells of each socket of the machine who made it.
#pragma once

#include <sys/types.h>

#include <optional>

#include "asio/ip/tcp.hpp"

namespace muster::agent {

// The user who made the socket at `theirs`, which is connected to ours at `here`. Nothing if there
// is no such socket in this machine's network namespace, or the kernel does not say (no sock_diag).
//
// Threads: thread-safe. Takes some twenty microseconds, however many sockets there are.
// Source:  sock_diag(7)
std::optional<uid_t> OwnerOfPeer(asio::ip::tcp::endpoint theirs, asio::ip::tcp::endpoint here);

}  // namespace muster::agent
