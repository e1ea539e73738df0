// The challenge at the start of each stream: both sides prove that they hold the job key, with TLS
// and without.
//
// HMAC-SHA256 over both nonces and over what was claimed. The two directions are labelled, so that
// a proof cannot be sent back; a fresh nonce on each side makes a recorded one worthless, without
// any clock.
//
// Threads: pure.
#pragma once

#include <string>

#include "proto/base/ids.h"
#include "proto/io/job_key.h"

namespace muster {

inline constexpr size_t kNonceBytes = 32;

// What is proven. Both sides fill it from what they said and heard.
struct ChallengeTranscript {
  int protocol_version = 0;
  std::string run_id;
  Incarnation incarnation;
  int role = 0;
  std::string agent_nonce;
  std::string server_nonce;
};

std::string ProveAsServer(const Key& job_key, const ChallengeTranscript& transcript);
std::string ProveAsAgent(const Key& job_key, const ChallengeTranscript& transcript);

// Whether the proofs are equal, in constant time.
bool IsSameProof(const std::string& expected, const std::string& given);

}  // namespace muster
