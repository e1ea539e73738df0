#include "rendezvous/client/link_attempt.h"

#include <utility>

#include "proto/base/endpoint.h"
#include "proto/io/job_key.h"
#include "proto/io/random_bytes.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

proto::Role RoleOnTheWire(LinkRole role) {
  return role == LinkRole::kPerson     ? proto::ROLE_PERSON
         : role == LinkRole::kObserver ? proto::ROLE_OBSERVER
                                       : proto::ROLE_AGENT;
}

ConnectFailure AsFailure(const absl::Status& status) {
  ConnectFailure failure{FailureKind::kRetry, std::string(status.message()), absl::OkStatus()};
  if (absl::IsPermissionDenied(status)) failure.kind = FailureKind::kSecret;
  if (absl::IsInvalidArgument(status)) failure.kind = FailureKind::kNotMuster;
  if (failure.kind != FailureKind::kRetry) failure.fatal = status;
  return failure;
}

}  // namespace

LinkAttempt::LinkAttempt(const GrpcLinkOptions& options, const asio::ip::tcp::endpoint& address,
                         TlsMode tls)
    : job_key_(DeriveJobKey(options.secret.secret, options.run_id)),
      about_{.endpoint = ToString(Endpoint{options.host, options.port}),
             .address = ToString(Endpoint{address.address().to_string(), address.port()}),
             .node_name = options.node_name,
             .secret_origin = options.secret.origin,
             .tls = tls},
      transcript_{.protocol_version = kProtocolVersion,
                  .run_id = options.run_id,
                  .incarnation = options.incarnation,
                  .role = RoleOnTheWire(options.role),
                  .agent_nonce = RandomBytes(kNonceBytes)} {}

void LinkAttempt::SayHello(const GrpcLinkOptions& options, proto::FromAgent& out) const {
  proto::Hello* const hello = out.mutable_hello();
  hello->set_protocol_version(transcript_.protocol_version);
  hello->set_run_id(transcript_.run_id);
  hello->set_incarnation(transcript_.incarnation.value());
  hello->set_nonce(transcript_.agent_nonce);
  hello->set_role(RoleOnTheWire(options.role));
  hello->set_key_name(ChannelName(DeriveChannelKey(options.secret.secret)));
  hello->set_node_name(options.node_name);
  hello->set_answers_inquiries(options.role == LinkRole::kAgent);
}

absl::Status LinkAttempt::TakeChallenge(const proto::Challenge& challenge) {
  transcript_.server_nonce = challenge.nonce();
  if (transcript_.server_nonce.size() != kNonceBytes ||
      !IsSameProof(ProveAsServer(job_key_, transcript_), challenge.proof())) {
    return DifferentSecret(about_);
  }
  has_proof_ = true;
  return absl::OkStatus();
}

bool LinkAttempt::NextProof(proto::FromAgent& out) {
  if (!std::exchange(has_proof_, false)) return false;
  out.mutable_proof()->set_proof(ProveAsAgent(job_key_, transcript_));
  return true;
}

void LinkAttempt::BreakOff(absl::Status reason) {
  if (!broken_off_.has_value()) broken_off_ = std::move(reason);
}

ConnectFailure LinkAttempt::WhyItEnded(int code, const std::string& message) const {
  return broken_off_.has_value() ? AsFailure(*broken_off_) : ExplainFailure(about_, code, message);
}

}  // namespace muster::rendezvous
