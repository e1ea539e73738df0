// The agent's Unix socket (MUSTER_AGENT_SOCKET) as one of its workers has it. Messages are
// WorkerMessage and WorkerReply of proto/agent.proto, framed by their length in four bytes, little
// endian.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "proto/io/unique_fd.h"

namespace google::protobuf {
class MessageLite;
}

namespace muster {

// Threads: safe; one alone receives.
class AgentSocket {
 public:
  // Errors: kInvalidArgument: `path` is too long; kUnavailable: there is no agent.
  static absl::StatusOr<std::unique_ptr<AgentSocket>> Connect(const std::string& path);
  // `fd` is connected to what listens at `path`.
  AgentSocket(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // Errors: kUnavailable: the agent is gone; kDeadlineExceeded: it does not read, and the
  //         connection is closed.
  absl::Status Send(const google::protobuf::MessageLite& message, MonoTime deadline);
  // Waits for the next reply, until Close.
  //
  // Errors: kUnavailable: the connection is closed, or this is no reply.
  absl::Status Receive(google::protobuf::MessageLite* reply);
  // What is read or written now and later ends with kUnavailable.
  void Close();

 private:
  // Constant after construction.
  const UniqueFd fd_;
  const std::string path_;

  base::Mutex write_mu_;  // held while one frame is written
};

}  // namespace muster
