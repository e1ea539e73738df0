#include "proto/io/metrics_token.h"

#include <openssl/crypto.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "proto/io/job_key.h"

namespace muster {

std::string DeriveMetricsToken(absl::string_view secret) {
  const Key key = DeriveSubkey(DeriveChannelKey(secret), "metrics");
  return absl::BytesToHexString({reinterpret_cast<const char*>(key.data()), key.size()});
}

bool IsBearerOf(absl::string_view authorization, absl::string_view token) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return false;
  const absl::string_view said = absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
  return said.size() == token.size() && CRYPTO_memcmp(said.data(), token.data(), token.size()) == 0;
}

}  // namespace muster
