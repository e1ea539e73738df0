// How agents of other processes come in: the addresses that are listened on, the descriptors that
// they may have, and the end. From the first address on there are sessions (agent_sessions.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/endpoint.h"
#include "proto/io/loop_mailbox.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/server/agent_sessions.h"

namespace muster::rendezvous {

// Loop thread only. Until Listen there is no gRPC, no port and no thread.
class AgentDoor {
 public:
  // `loop` and `jobs` must outlive this. Connections leave `reserved_descriptors` to the rest of
  // the process.
  AgentDoor(asio::io_context& loop, JobLoop& jobs, SessionOptions options,
            int reserved_descriptors);
  // Breaks off what is open.
  ~AgentDoor() { mailbox_.Close(); }
  AgentDoor(const AgentDoor&) = delete;
  AgentDoor& operator=(const AgentDoor&) = delete;

  // Raises the process's limit on open files, and listens on exactly `address`, a numeric address
  // or a name that is resolved here (its first IPv4 address, else its first), and returns the port;
  // 0 takes a free one. All addresses only if asked for: "0.0.0.0" or "::". Once.
  //
  // Errors: kAlreadyExists: another process listens there.
  //         kInvalidArgument: the name cannot be resolved, or is no address of this machine.
  //         kPermissionDenied: a port below 1024.
  //         kFailedPrecondition: it listens already, or has no owner.
  //         kResourceExhausted: not enough threads (ulimit -u) or descriptors (ulimit -n).
  //         kUnavailable: anything else.
  absl::StatusOr<int> Listen(const std::string& address, int port);

  // Called in place of Listen. Takes what comes on sockets that listen already, one at least, and
  // returns their numeric addresses.
  //
  // Errors: kFailedPrecondition, kResourceExhausted and kUnavailable as of Listen.
  absl::StatusOr<std::vector<Endpoint>> ListenOn(std::vector<UniqueFd> sockets);

  // Listens on a further numeric address, after Listen and on its port.
  //
  // Errors: as of Listen.
  absl::Status ListenAlso(const std::string& address);

  // Takes no new streams and ends those that are open: after the last directive has been written,
  // and where that was EndJob by the agent's own closing. `on_closed` follows when all have gone,
  // or at `deadline`, and is the moment to destroy this.
  void Shutdown(absl::Duration deadline, std::function<void()> on_closed);

  size_t num_streams() const { return sessions_ == nullptr ? 0 : sessions_->num_streams(); }

 private:
  // Connections have descriptors below this number.
  int MaxDescriptor() const;
  // Returns MaxDescriptor. Errors: kFailedPrecondition and kResourceExhausted as of Listen.
  absl::StatusOr<int> PrepareToListen() const;
  absl::Status StartSessions(std::unique_ptr<ConnectionListener> listener);
  void FinishShutdownOnLoop();

  // Constant after construction.
  asio::io_context& loop_;
  const LoopMailbox mailbox_;
  JobLoop& jobs_;
  const SessionOptions options_;
  const int reserved_descriptors_;

  std::unique_ptr<AgentSessions> sessions_;
  asio::steady_timer shutdown_timer_;
  std::function<void()> on_closed_;
};

}  // namespace muster::rendezvous
