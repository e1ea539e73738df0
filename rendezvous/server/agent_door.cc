#include "rendezvous/server/agent_door.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/ip/tcp.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "rendezvous/server/connection_listener.h"

namespace muster::rendezvous {
namespace {

// Fewer would not serve a job of any size.
constexpr int kMinConnections = 32;

absl::StatusOr<asio::ip::tcp::endpoint> Resolve(asio::io_context& loop, const std::string& name,
                                                int port) {
  asio::ip::tcp::resolver resolver(loop);
  asio::error_code error;
  const auto found = resolver.resolve(
      name, absl::StrCat(port),
      asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", name, ": ", error.message()));
  }
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) return entry.endpoint();
  }
  return found.begin()->endpoint();
}

}  // namespace

AgentDoor::AgentDoor(asio::io_context& loop, JobLoop& jobs, SessionOptions options,
                     int reserved_descriptors)
    : loop_(loop),
      mailbox_(loop),
      jobs_(jobs),
      options_(std::move(options)),
      reserved_descriptors_(reserved_descriptors),
      shutdown_timer_(loop) {}

int AgentDoor::MaxDescriptor() const { return RaiseDescriptorLimit() - reserved_descriptors_; }

absl::StatusOr<int> AgentDoor::PrepareToListen() const {
  if (sessions_ != nullptr) return absl::FailedPreconditionError("the server listens already");
  if (options_.owners.empty()) return absl::FailedPreconditionError("the server has no secret");
  MUSTER_RETURN_IF_ERROR(CheckCanStartThreads());
  const int max_descriptor = MaxDescriptor();
  if (max_descriptor >= kMinConnections) return max_descriptor;
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot serve: this process may have ", max_descriptor + reserved_descriptors_,
                   " open files, but needs ", reserved_descriptors_ + kMinConnections,
                   " at least; raise the limit (ulimit -n)"));
}

absl::Status AgentDoor::StartSessions(std::unique_ptr<ConnectionListener> listener) {
  MUSTER_ASSIGN_OR_RETURN(sessions_,
                          AgentSessions::Start(loop_, jobs_, std::move(listener), options_));
  return absl::OkStatus();
}

absl::StatusOr<int> AgentDoor::Listen(const std::string& address, int port) {
  MUSTER_ASSIGN_OR_RETURN(const int max_descriptor, PrepareToListen());
  MUSTER_ASSIGN_OR_RETURN(const asio::ip::tcp::endpoint endpoint, Resolve(loop_, address, port));
  MUSTER_ASSIGN_OR_RETURN(auto listener,
                          ConnectionListener::Listen(loop_, endpoint, max_descriptor));
  MUSTER_RETURN_IF_ERROR(StartSessions(std::move(listener)));
  return sessions_->port();
}

absl::StatusOr<std::vector<Endpoint>> AgentDoor::ListenOn(std::vector<UniqueFd> sockets) {
  MUSTER_CHECK(!sockets.empty());
  MUSTER_ASSIGN_OR_RETURN(const int max_descriptor, PrepareToListen());
  std::vector<Endpoint> addresses;
  for (UniqueFd& socket : sockets) {
    MUSTER_ASSIGN_OR_RETURN(auto listener,
                            ConnectionListener::Adopt(loop_, std::move(socket), max_descriptor));
    const asio::ip::tcp::endpoint address = listener->address();
    addresses.push_back({.host = address.address().to_string(), .port = address.port()});
    if (sessions_ != nullptr) {
      sessions_->ListenAlso(std::move(listener));
    } else {
      MUSTER_RETURN_IF_ERROR(StartSessions(std::move(listener)));
    }
  }
  return addresses;
}

absl::Status AgentDoor::ListenAlso(const std::string& address) {
  if (sessions_ == nullptr) return absl::FailedPreconditionError("the server does not listen");
  MUSTER_ASSIGN_OR_RETURN(const asio::ip::tcp::endpoint endpoint,
                          Resolve(loop_, address, sessions_->port()));
  MUSTER_ASSIGN_OR_RETURN(auto listener,
                          ConnectionListener::Listen(loop_, endpoint, MaxDescriptor()));
  sessions_->ListenAlso(std::move(listener));
  return absl::OkStatus();
}

void AgentDoor::Shutdown(absl::Duration deadline, std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  if (sessions_ == nullptr) {
    mailbox_.Post([this] { FinishShutdownOnLoop(); });
    return;
  }
  shutdown_timer_.expires_after(absl::ToChronoNanoseconds(deadline));
  shutdown_timer_.async_wait([this, mailbox = mailbox_](const asio::error_code& error) {
    if (error) return;
    mailbox.Post([this] { FinishShutdownOnLoop(); });
  });
  sessions_->Drain([this] { FinishShutdownOnLoop(); });
}

void AgentDoor::FinishShutdownOnLoop() {
  shutdown_timer_.cancel();
  sessions_.reset();
  // Moved out, since the callee may destroy this.
  const auto on_closed = std::exchange(on_closed_, nullptr);
  if (on_closed) on_closed();
}

}  // namespace muster::rendezvous
