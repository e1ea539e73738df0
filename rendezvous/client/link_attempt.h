// One try at one address of the server: who we say we are, whether the other end holds our secret,
// and why the stream has ended.
//
// Threads: one at a time.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "asio/ip/tcp.hpp"
#include "proto/io/challenge.h"
#include "rendezvous/client/connect_failure.h"
#include "rendezvous/client/link_options.h"

namespace muster::proto {
class Challenge;
class FromAgent;
}  // namespace muster::proto

namespace muster::rendezvous {

class LinkAttempt {
 public:
  LinkAttempt(const GrpcLinkOptions& options, const asio::ip::tcp::endpoint& address, TlsMode tls);

  // The endpoint as the user wrote it, "host:port", and the address that it was resolved to.
  const std::string& endpoint() const { return about_.endpoint; }
  const std::string& address() const { return about_.address; }

  void SayHello(const GrpcLinkOptions& options, proto::FromAgent& out) const;
  // Leaves our proof to be sent (NextProof).
  //
  // Errors: kPermissionDenied: the server does not hold our secret.
  absl::Status TakeChallenge(const proto::Challenge& challenge);
  // Our proof, once. False: there is none to be sent.
  bool NextProof(proto::FromAgent& out);
  void MarkAccepted() { about_.was_accepted = true; }

  // We end the stream ourselves. The first reason counts: what follows from breaking off must not
  // hide it.
  void BreakOff(absl::Status reason);
  // Why the stream has ended; code and message are those of grpc::Status.
  ConnectFailure WhyItEnded(int code, const std::string& message) const;

 private:
  const Key job_key_;
  ConnectAttempt about_;
  ChallengeTranscript transcript_;
  bool has_proof_ = false;
  std::optional<absl::Status> broken_off_;
};

}  // namespace muster::rendezvous
