#include "rendezvous/server/handshake.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr size_t kMaxNameBytes = 256;

absl::Status CheckHello(const proto::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it speaks version ", hello.protocol_version(), " of the protocol, the server version ",
        kProtocolVersion, ": install the same Muster on every node"));
  }
  if (hello.run_id().empty() || hello.run_id().size() > kMaxRunIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the run id has ", hello.run_id().size(), " bytes; 1 to ", kMaxRunIdBytes, " are allowed"));
  }
  if (hello.incarnation() == 0 || hello.nonce().size() != kNonceBytes ||
      (hello.role() != proto::ROLE_AGENT && hello.role() != proto::ROLE_PERSON &&
       hello.role() != proto::ROLE_OBSERVER) ||
      hello.node_name().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError("malformed hello");
  }
  return absl::OkStatus();
}

}  // namespace

ServerHandshake::ServerHandshake(const std::vector<OwnerKey>& owners, std::string host_name,
                                 TlsPeer peer)
    : owners_(owners), host_name_(std::move(host_name)), peer_(std::move(peer)) {}

absl::Status ServerHandshake::OnHello(const proto::Hello& hello, const std::string& nonce,
                                      proto::Challenge* challenge) {
  if (has_said_hello_) return absl::FailedPreconditionError("a second hello on one stream");
  has_said_hello_ = true;
  if (absl::Status status = CheckHello(hello); !status.ok()) return status;
  node_name_ = absl::CHexEscape(hello.node_name());
  const auto is_named = [&hello](const OwnerKey& owner) {
    return ChannelName(DeriveChannelKey(owner.secret)) == hello.key_name();
  };
  const auto owner = std::find_if(owners_.begin(), owners_.end(), is_named);
  if (owner == owners_.end()) return WrongSecret();
  if (peer_.tls &&
      std::find(peer_.names.begin(), peer_.names.end(), hello.key_name()) == peer_.names.end()) {
    return WrongSecret();
  }
  role_ = hello.role() == proto::ROLE_PERSON     ? StreamRole::kPerson
          : hello.role() == proto::ROLE_OBSERVER ? StreamRole::kObserver
                                                 : StreamRole::kAgent;
  answers_inquiries_ = role_ == StreamRole::kAgent && hello.answers_inquiries();
  agent_ = {{owner->owner, hello.run_id()}, Incarnation(hello.incarnation())};
  job_key_ = DeriveJobKey(owner->secret, hello.run_id());
  transcript_ = {.protocol_version = hello.protocol_version(),
                 .run_id = hello.run_id(),
                 .incarnation = Incarnation(hello.incarnation()),
                 .role = hello.role(),
                 .agent_nonce = hello.nonce(),
                 .server_nonce = nonce};
  challenge->set_nonce(nonce);
  challenge->set_proof(ProveAsServer(job_key_, transcript_));
  return absl::OkStatus();
}

absl::Status ServerHandshake::OnProof(const proto::Proof& proof) {
  if (transcript_.server_nonce.empty() || is_admitted_) {
    return absl::FailedPreconditionError("a proof that was not asked for");
  }
  if (!IsSameProof(ProveAsAgent(job_key_, transcript_), proof.proof())) return WrongSecret();
  is_admitted_ = true;
  return absl::OkStatus();
}

absl::Status ServerHandshake::WrongSecret() const {
  return absl::UnauthenticatedError(absl::StrCat(
      node_name_, "'s secret differs from the server's: copy ~/.config/muster/token from ",
      host_name_, ", or set MUSTER_TOKEN_FILE to one shared file"));
}

}  // namespace muster::rendezvous
