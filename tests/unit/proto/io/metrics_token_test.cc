#include "proto/io/metrics_token.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster {
namespace {

constexpr char kSecret[] = "a secret of some length";

TEST(MetricsToken, IsOfTheSecretAndDoesNotHoldIt) {
  const std::string token = DeriveMetricsToken(kSecret);
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(token, DeriveMetricsToken(kSecret));
  EXPECT_NE(token, DeriveMetricsToken("another secret of some length"));
  EXPECT_EQ(token.find(kSecret), std::string::npos);
}

TEST(MetricsToken, IsTakenAsABearerAlone) {
  const std::string token = DeriveMetricsToken(kSecret);
  EXPECT_TRUE(IsBearerOf("Bearer " + token, token));
  EXPECT_TRUE(IsBearerOf("bearer  " + token, token));
  const std::string another = DeriveMetricsToken("something else entirely");
  for (const std::string& said : std::vector<std::string>{
           "", token, "Basic " + token, "Bearer", "Bearer ", "Bearer " + token + "0",
           "Bearer " + token.substr(1), "Bearer " + another}) {
    EXPECT_FALSE(IsBearerOf(said, token)) << said;
  }
}

}  // namespace
}  // namespace muster
