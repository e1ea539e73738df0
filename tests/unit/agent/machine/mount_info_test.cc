#include "agent/machine/mount_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::agent {
namespace {

using ::testing::SizeIs;

constexpr char kMounts[] =
    "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "22 21 0:5 / /proc rw - proc proc rw\n"
    "40 21 0:50 / /data rw master:3 - nfs4 store:/export rw,hard\n"
    "41 40 0:51 / /data/my\\040sets rw - fuse.sshfs me@far: rw,user_id=0\n"
    "42 21 0:52 /old /twice rw - ext4 /dev/sdb1 rw\n"
    "43 21 0:53 /new /twice rw - xfs /dev/sdc1 rw\n"
    "no mount at all\n";

std::string TypeAt(absl::string_view path) {
  const std::optional<Mount> mount = MountOf(kMounts, path);
  return mount ? mount->type : "";
}

TEST(MountOf, IsTheInnermostAndOfSeveralTheLast) {
  EXPECT_EQ(TypeAt("/home/me"), "ext4");
  EXPECT_EQ(TypeAt("/data"), "nfs4");
  EXPECT_EQ(TypeAt("/data/train.bin"), "nfs4");
  EXPECT_EQ(TypeAt("/database"), "ext4") << "a name that only begins alike";
  EXPECT_EQ(TypeAt("/data/my sets/a"), "fuse.sshfs");
  EXPECT_EQ(TypeAt("/twice/a"), "xfs");
  EXPECT_FALSE(MountOf("", "/home").has_value());
}

TEST(ParseMounts, TellsRootsAndOptionsAndLeavesOutWhatIsNoMount) {
  const std::vector<Mount> mounts = ParseMounts(kMounts);
  ASSERT_THAT(mounts, SizeIs(6));
  EXPECT_EQ(mounts[3].point, "/data/my sets");
  EXPECT_EQ(mounts[4].root, "/old");
  EXPECT_EQ(mounts[2].options, "rw,hard");
}

}  // namespace
}  // namespace muster::agent
