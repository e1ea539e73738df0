// What ends a process whose OpenSSL does not do what any does: a library of the site's own build,
// or one without memory. Its configuration is never read (openssl_configuration.h).
#pragma once

#include <openssl/crypto.h>
#include <openssl/err.h>

#include "absl/strings/str_cat.h"
#include "proto/base/fatal_error.h"

namespace muster {

// `what` it was to do: "derive a key".
inline void RequireOpenSsl(bool has_worked, const char* what) {
  if (has_worked) return;
  char reason[256];
  ERR_error_string_n(ERR_peek_last_error(), reason, sizeof(reason));
  FatalError(absl::StrCat(OpenSSL_version(OPENSSL_VERSION), " cannot ", what, " (", reason,
                          "); its default provider must have SHA-256, HKDF and Ed25519"));
}

}  // namespace muster
