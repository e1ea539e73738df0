#include "agent/guardian/death_notice_wire.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

TEST(DeathNotice, IsReadAsItIsWritten) {
  const DeathNotice notice{.host = "node1",
                           .port = 29400,
                           .secret = "a secret",
                           .tls = false,
                           .run_id = "\xff not utf-8",
                           .node_name = "node2",
                           .life_key = std::string(32, '\0')};
  const auto read = DecodeDeathNotice(Encode(notice));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, notice);
}

TEST(DeathNotice, ThatIsNoneIsRefused) {
  EXPECT_EQ(DecodeDeathNotice("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeDeathNotice("\xff").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::agent
