#include "proto/base/nearest_name.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(NearestName, PrefersTheSmallestEditDistance) {
  EXPECT_EQ(NearestName("--nod_rank", {"--nnodes", "--node_rank"}), "--node_rank");
}

TEST(NearestName, CompletesWhatSomebodyAbbreviated) {
  EXPECT_EQ(NearestName("--nproc", {"--nnodes", "--nproc_per_node"}), "--nproc_per_node");
}

TEST(NearestName, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(NearestName("--learning_rate", {"--nnodes", "--node_rank"}), "");
  EXPECT_EQ(NearestName("", {"a"}), "");
}

}  // namespace
}  // namespace muster
