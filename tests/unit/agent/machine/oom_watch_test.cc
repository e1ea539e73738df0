#include "agent/machine/oom_watch.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

constexpr char kV2Mount[] =
    "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kV1Mounts[] =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST(ParseOomKills, ReadsMemoryEventsOfV2) {
  EXPECT_EQ(ParseOomKills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
}

TEST(ParseOomKills, ReadsMemoryOomControlOfV1) {
  EXPECT_EQ(ParseOomKills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), 5);
}

TEST(ParseOomKills, KnowsNothingWhereTheKernelDoesNotCount) {
  EXPECT_EQ(ParseOomKills("oom_kill_disable 0\nunder_oom 0\n"), std::nullopt);
  EXPECT_EQ(ParseOomKills(""), std::nullopt);
}

TEST(FindOomKillFile, IsTheGroupsOwnFileUnderV2) {
  EXPECT_EQ(FindOomKillFile("0::/user.slice/job_7\n", kV2Mount),
            "/sys/fs/cgroup/user.slice/job_7/memory.events");
}

TEST(FindOomKillFile, PrefersTheV1ControllerOfAHybridSystem) {
  EXPECT_EQ(FindOomKillFile("8:cpu:/\n4:memory:/slurm/job_7\n0::/\n", kV1Mounts),
            "/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control");
}

TEST(FindOomKillFile, FindsMemoryAmongControllersThatAreMountedTogether) {
  EXPECT_EQ(FindOomKillFile("4:hugetlb,memory:/a\n",
                            "35 31 0:32 / /cg/both rw - cgroup cgroup rw,hugetlb,memory\n"),
            "/cg/both/a/memory.oom_control");
}

TEST(FindOomKillFile, StripsWhatAContainersMountAlreadyShows) {
  EXPECT_EQ(FindOomKillFile(
                "4:memory:/docker/abc/inner\n",
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            "/sys/fs/cgroup/memory/inner/memory.oom_control");
}

TEST(FindOomKillFile, TakesTheMountItselfWhereTheGroupLiesOutsideOfIt) {
  EXPECT_EQ(FindOomKillFile("0::/../other\n", kV2Mount), "/sys/fs/cgroup/memory.events");
  EXPECT_EQ(FindOomKillFile(
                "4:memory:/elsewhere\n",
                "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            "/sys/fs/cgroup/memory/memory.oom_control");
}

TEST(FindOomKillFile, ReadsEscapedMountPoints) {
  EXPECT_EQ(FindOomKillFile("0::/\n", "36 25 0:31 / /my\\040cgroups rw - cgroup2 cgroup2 rw\n"),
            "/my cgroups/memory.events");
}

TEST(FindOomKillFile, IsEmptyWithoutAControlGroup) {
  EXPECT_EQ(FindOomKillFile("", ""), "");
  EXPECT_EQ(FindOomKillFile("0::/\n", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"), "");
}

TEST(OomWatch, CountsTheSameTwiceWhenNothingWasKilled) {
  const OomWatch watch = OomWatch::Open();
  const auto first = watch.Count();
  EXPECT_EQ(watch.Count(), first);
  EXPECT_GE(first.value_or(0), 0);
}

}  // namespace
}  // namespace muster::agent
