// Keys of a user and of a job, all derived from the user's secret (user_secret.h) by HKDF-SHA256.
// OpenSSL only.
//
// The channel key makes the TLS identity (identity.h): of the user alone, since one musterd serves
// many jobs. The job key proves membership of one job on each stream (challenge.h).
//
// Threads: pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/ids.h"

namespace muster {

using Key = std::array<uint8_t, 32>;

// A user whose agents may attend, and that user's secret. An embedded server has one, whose name is
// empty.
struct OwnerKey {
  std::string owner;
  std::string secret;
};

Key DeriveJobKey(absl::string_view secret, absl::string_view run_id);
Key DeriveChannelKey(absl::string_view secret);

// A key for another purpose, named by `label`, out of `key`.
Key DeriveSubkey(const Key& key, absl::string_view label);

// The public name of a channel key: "<16 hex digits>.muster". It is the DNS name in the
// certificates, what SNI asks for, and what an agent says in its hello; it reveals nothing of the
// secret.
std::string ChannelName(const Key& channel_key);
// Whether it is such a name, of whatever secret.
bool IsChannelName(absl::string_view name);

// An agent draws a key for its life; its incarnation follows from it. Only the agent and its
// guardian know the key, so that nobody else can say that this incarnation has ended.
Key DrawLifeKey();
Incarnation IncarnationOf(const Key& life_key);

}  // namespace muster
