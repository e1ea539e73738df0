// What people and observers ask of a server by a link, until it has been sent or answered.
//
// Pure values.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "proto/base/stop_request.h"
#include "proto/io/job_key.h"

namespace muster::proto {
class FromAgent;
}  // namespace muster::proto

namespace muster::rendezvous {

// The agent of this life key has ended, and all of its workers with it.
struct AgentEnding {
  Key life_key{};
};

// The only request of a person, or of the guardian of an agent that was killed.
struct PersonsAsk {
  std::optional<std::variant<StopRequest, AgentEnding>> request;
  bool is_unsent = false;
  std::function<void(StopAnswer)> on_answer;
};

// Inquiries, and replies to the server's.
struct UnsentInquiries {
  bool are_known = false;  // to the server
  std::deque<std::unique_ptr<proto::FromAgent>> unsent;
};

}  // namespace muster::rendezvous
