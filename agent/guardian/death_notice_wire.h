// What the guardian of an agent that was killed hands on, so that the rendezvous need not wait for
// the end of the node's lease: where to say it, and the proof. The guardian keeps the encoded form,
// and does not look into it; launcher/commands/death_notice_command.cc says it.
//
// Pure values.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::agent {

struct DeathNotice {
  std::string host;  // of the rendezvous, as of the agent's link
  int port = 0;
  std::string secret;
  bool tls = true;
  std::string run_id;
  std::string node_name;
  std::string life_key;  // the bytes of a Key: DrawLifeKey
  friend bool operator==(const DeathNotice&, const DeathNotice&) = default;
};

std::string Encode(const DeathNotice& notice);
// Errors: kInvalidArgument: no notice.
absl::StatusOr<DeathNotice> DecodeDeathNotice(absl::string_view text);

}  // namespace muster::agent
