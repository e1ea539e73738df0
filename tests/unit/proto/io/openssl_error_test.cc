#include "proto/io/openssl_error.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(RequireOpenSslDeathTest, EndsTheProcessWithASentenceAboutTheLibrary) {
  RequireOpenSsl(true, "derive a key");
  EXPECT_EXIT(RequireOpenSsl(false, "derive a key"), ::testing::ExitedWithCode(1),
              "OpenSSL .* cannot derive a key .*must have SHA-256, HKDF and Ed25519");
}

}  // namespace
}  // namespace muster
