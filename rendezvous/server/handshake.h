// Decides whether the agent, person or observer at the other end of a new stream may attend: hello
// -> challenge -> proof. Which of them it is, is part of what is proven.
//
// Threads: compatible; pure (the nonce is an argument).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/io/challenge.h"
#include "proto/io/job_key.h"
#include "rendezvous/server/job_loop.h"

namespace muster::proto {
class Challenge;
class Hello;
class Proof;
}  // namespace muster::proto

namespace muster::rendezvous {

// What TLS has shown of the peer.
struct TlsPeer {
  bool tls = false;
  std::vector<std::string> names;  // DNS names of its certificate
};

// A person may ask for a stop; an observer may ask what there is to see, and changes nothing.
enum class StreamRole { kAgent, kPerson, kObserver };

class ServerHandshake {
 public:
  // `owners` must outlive this.
  ServerHandshake(const std::vector<OwnerKey>& owners, std::string host_name, TlsPeer peer);

  // Errors: kFailedPrecondition: another version, or out of turn.
  //         kInvalidArgument: malformed.
  //         kUnauthenticated: no owner's secret, or not the one that TLS has shown.
  absl::Status OnHello(const proto::Hello& hello, const std::string& nonce,
                       proto::Challenge* challenge);

  // Errors: kUnauthenticated: it does not hold the job key. kFailedPrecondition: out of turn.
  absl::Status OnProof(const proto::Proof& proof);

  bool is_admitted() const { return is_admitted_; }
  // Valid once admitted.
  const AgentKey& agent() const { return agent_; }
  StreamRole role() const { return role_; }
  bool answers_inquiries() const { return answers_inquiries_; }
  // The name that the node gave itself; printable. Empty before hello.
  const std::string& node_name() const { return node_name_; }

 private:
  absl::Status WrongSecret() const;

  const std::vector<OwnerKey>& owners_;
  const std::string host_name_;
  const TlsPeer peer_;
  bool has_said_hello_ = false;
  bool is_admitted_ = false;
  StreamRole role_ = StreamRole::kAgent;
  bool answers_inquiries_ = false;
  std::string node_name_;
  AgentKey agent_;
  Key job_key_{};
  ChallengeTranscript transcript_;
};

}  // namespace muster::rendezvous
