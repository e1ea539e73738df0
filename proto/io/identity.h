// TLS identities out of a channel key: an Ed25519 authority and a leaf signed by it, in X.509.
// OpenSSL only.
//
// Deterministic: each process of a user makes the same bytes, so nothing has to be distributed but
// the secret. Valid from 1970 to 9999, so that no clock can miss it; what ends an identity is a new
// secret.
//
// Threads: pure.
#pragma once

#include <string>

#include "proto/io/job_key.h"

namespace muster {

// Kept apart by the extended key usage, which TLS checks: an agent's certificate cannot pass for a
// server's. Guards against mistakes, not against other holders of the secret.
enum class TlsRole { kAgent, kServer };

struct Identity {
  std::string name;  // ChannelName: the DNS name of the leaf
  std::string authority_pem;
  std::string certificate_pem;
  std::string private_key_pem;
};

Identity MakeIdentity(const Key& channel_key, TlsRole role);

}  // namespace muster
