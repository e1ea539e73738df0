#include "agent/machine/cpu_quota.h"

#include <gtest/gtest.h>

#include <map>

namespace muster::agent {
namespace {

constexpr char kV2Mount[] = "36 25 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
constexpr char kV1Mounts[] =
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

using Files = std::map<std::string, std::string>;

std::optional<int> QuotaIn(const char* cgroup, const char* mountinfo, const Files& files) {
  return FindCpuQuota(cgroup, mountinfo, [&](const std::string& path) {
    const auto file = files.find(path);
    return file == files.end() ? "" : file->second;
  });
}

TEST(FindCpuQuota, IsThatOfTheGroupRoundedUp) {
  const auto quota_of = [](const char* max) {
    return QuotaIn("0::/pod/c1\n", kV2Mount, {{"/sys/fs/cgroup/pod/c1/cpu.max", max}});
  };
  EXPECT_EQ(quota_of("100000 100000\n"), 1);
  EXPECT_EQ(quota_of("150000 100000\n"), 2);
  EXPECT_EQ(quota_of("1000 100000\n"), 1);
  EXPECT_EQ(quota_of("800000 100000\n"), 8);
}

TEST(FindCpuQuota, IsTheSmallestOfTheGroupAndThoseAbove) {
  EXPECT_EQ(QuotaIn("0::/pod/c1\n", kV2Mount,
                    {{"/sys/fs/cgroup/pod/c1/cpu.max", "max 100000\n"},
                     {"/sys/fs/cgroup/pod/cpu.max", "300000 100000\n"},
                     {"/sys/fs/cgroup/cpu.max", "400000 100000\n"}}),
            3);
}

TEST(FindCpuQuota, IsFoundWhereAContainerSeesItsGroupAsTheRoot) {
  EXPECT_EQ(QuotaIn("0::/\n", kV2Mount, {{"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}), 2);
}

TEST(FindCpuQuota, IsReadFromTheControllerOfV1WhereThatIsMounted) {
  const auto quota_of = [](const char* quota) {
    return QuotaIn("4:cpu,cpuacct:/slurm/job_7\n0::/\n", kV1Mounts,
                   {{"/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us", quota},
                    {"/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us", "50000\n"}});
  };
  EXPECT_EQ(quota_of("120000\n"), 3);
  EXPECT_EQ(quota_of("-1\n"), std::nullopt);
}

TEST(FindCpuQuota, IsNothingWhereNoneIsSetOrTheFilesAreNone) {
  EXPECT_EQ(QuotaIn("0::/pod\n", kV2Mount, {}), std::nullopt);
  EXPECT_EQ(QuotaIn("", "", {}), std::nullopt);
  for (const char* max : {"max 100000", "", "100000", "x y", "0 100000", "100000 0", "-5 100000"}) {
    EXPECT_EQ(QuotaIn("0::/\n", kV2Mount, {{"/sys/fs/cgroup/cpu.max", max}}), std::nullopt) << max;
  }
}

TEST(CountCpus, IsAtLeastOne) { EXPECT_GE(CountCpus(), 1); }

}  // namespace
}  // namespace muster::agent
