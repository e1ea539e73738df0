#include "proto/io/job_key.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/io/openssl_error.h"
#include "proto/io/random_bytes.h"

namespace muster {
namespace {

constexpr absl::string_view kSalt = "muster 1";
constexpr absl::string_view kChannelNameEnd = ".muster";

Key Hkdf(absl::string_view secret, std::string info) {
  using Kdf = std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)>;
  using Context = std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)>;
  Kdf kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  RequireOpenSsl(kdf != nullptr, "derive a key");
  Context context(EVP_KDF_CTX_new(kdf.get()), &EVP_KDF_CTX_free);
  RequireOpenSsl(context != nullptr, "derive a key");
  std::string digest = "SHA256", salt(kSalt), input(secret);
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  Key key;
  RequireOpenSsl(EVP_KDF_derive(context.get(), key.data(), key.size(), params) == 1,
                 "derive a key");
  return key;
}

absl::string_view AsText(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace

Key DeriveJobKey(absl::string_view secret, absl::string_view run_id) {
  // The run id enters by its digest: OpenSSL bounds the length of HKDF's info.
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  RequireOpenSsl(
      EVP_Digest(run_id.data(), run_id.size(), digest, &size, EVP_sha256(), nullptr) == 1,
      "hash a run id");
  return Hkdf(secret,
              absl::StrCat("job key:", absl::string_view(reinterpret_cast<char*>(digest), size)));
}

Key DeriveChannelKey(absl::string_view secret) { return Hkdf(secret, "channel key"); }

Key DeriveSubkey(const Key& key, absl::string_view label) {
  return Hkdf(AsText(key), absl::StrCat("subkey:", label));
}

std::string ChannelName(const Key& channel_key) {
  const Key name = DeriveSubkey(channel_key, "name");
  return absl::StrCat(absl::BytesToHexString(AsText(name).substr(0, 8)), kChannelNameEnd);
}

bool IsChannelName(absl::string_view name) { return absl::EndsWith(name, kChannelNameEnd); }

Key DrawLifeKey() {
  Key key;
  const std::string bytes = RandomBytes(key.size());
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

Incarnation IncarnationOf(const Key& life_key) {
  const Key digest = DeriveSubkey(life_key, "incarnation");
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i) value = value << 8 | digest[i];
  return Incarnation(value == 0 ? 1 : value);
}

}  // namespace muster
