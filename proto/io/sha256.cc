#include "proto/io/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "proto/base/status_macros.h"

namespace muster {

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  MUSTER_CHECK(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

Sha256& Sha256::Add(const void* bytes, size_t count) {
  MUSTER_CHECK(EVP_DigestUpdate(context_->digest, bytes, count) == 1);
  return *this;
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  MUSTER_CHECK(EVP_DigestFinal_ex(context_->digest, digest, &size) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace muster
