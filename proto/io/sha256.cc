#include "proto/io/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "proto/io/openssl_error.h"

namespace muster {
namespace {

// The digest comes from a library context of its own: by the site's configuration, that of a
// program which links this may have only providers that lack it.
const EVP_MD* Digest() {
  static const EVP_MD* const digest = EVP_MD_fetch(OSSL_LIB_CTX_new(), "SHA256", nullptr);
  return digest;
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  RequireOpenSsl(EVP_DigestInit_ex(context_->digest, Digest(), nullptr) == 1, "compute a SHA-256");
}
Sha256::~Sha256() = default;

Sha256& Sha256::Add(const void* bytes, size_t count) {
  RequireOpenSsl(EVP_DigestUpdate(context_->digest, bytes, count) == 1, "compute a SHA-256");
  return *this;
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  RequireOpenSsl(EVP_DigestFinal_ex(context_->digest, digest, &size) == 1, "compute a SHA-256");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace muster
