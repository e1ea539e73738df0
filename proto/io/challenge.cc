#include "proto/io/challenge.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/io/openssl_error.h"

namespace muster {
namespace {

// Lengths go before the parts, so that no two transcripts have the same bytes.
void AppendPart(std::string* out, absl::string_view part) {
  absl::StrAppend(out, absl::StrFormat("%d:", part.size()), part);
}

std::string Prove(absl::string_view direction, const Key& key, const ChallengeTranscript& t) {
  std::string text;
  AppendPart(&text, direction);
  AppendPart(&text, absl::StrCat(t.protocol_version));
  AppendPart(&text, t.run_id);
  AppendPart(&text, ToString(t.incarnation));
  AppendPart(&text, absl::StrCat(t.role));
  AppendPart(&text, t.agent_nonce);
  AppendPart(&text, t.server_nonce);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  RequireOpenSsl(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest,
                      &size) != nullptr,
                 "make a proof");
  return std::string(reinterpret_cast<char*>(digest), size);
}

}  // namespace

std::string ProveAsServer(const Key& job_key, const ChallengeTranscript& transcript) {
  return Prove("server to agent", job_key, transcript);
}

std::string ProveAsAgent(const Key& job_key, const ChallengeTranscript& transcript) {
  return Prove("agent to server", job_key, transcript);
}

bool IsSameProof(const std::string& expected, const std::string& given) {
  return expected.size() == given.size() &&
         CRYPTO_memcmp(expected.data(), given.data(), expected.size()) == 0;
}

}  // namespace muster
