#include "proto/io/openssl_configuration.h"

#include <openssl/crypto.h>

#include "proto/base/status_macros.h"

namespace muster {

void IgnoreOpenSslConfiguration() {
  MUSTER_CHECK(OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1);
}

}  // namespace muster
