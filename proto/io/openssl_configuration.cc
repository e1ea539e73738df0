#include "proto/io/openssl_configuration.h"

#include <openssl/crypto.h>

#include "proto/io/openssl_error.h"

namespace muster {

void IgnoreOpenSslConfiguration() {
  RequireOpenSsl(OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1, "start");
}

}  // namespace muster
