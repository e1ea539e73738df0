#include "rendezvous/server/new_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NewConnectionsTest : public ::testing::Test {
 protected:
  asio::io_context loop_;
  std::vector<std::string> wasted_;
  std::optional<NewConnections> connections_{
      std::in_place, loop_, absl::Milliseconds(1),
      [this](const std::string& peer) { wasted_.push_back(peer); }};
};

TEST_F(NewConnectionsTest, AreWastedOnceUnlessAStreamIsOpenedInTime) {
  connections_->Add("10.0.0.1:4000");
  connections_->Add("10.0.0.2:4000");
  connections_->Add("10.0.0.3:4000");
  connections_->Remove("10.0.0.2:4000");
  EXPECT_THAT(wasted_, IsEmpty());
  loop_.run();  // ends, since nothing is looked for any more
  EXPECT_THAT(wasted_, ElementsAre("10.0.0.1:4000", "10.0.0.3:4000"));
}

TEST_F(NewConnectionsTest, AreNotWastedAfterTheEnd) {
  connections_->Add("10.0.0.1:4000");
  connections_.reset();
  loop_.run();
  EXPECT_THAT(wasted_, IsEmpty());
}

}  // namespace
}  // namespace muster::rendezvous
