// What the doctor makes of what it has seen; of real GPUs, tests/integration/doctor_test.cc.
#include "launcher/doctor/node_health.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

NodeHealth Healthy() {
  return {
      .memory = {.memory_bytes = 512 * kGiB, .shm_bytes = 256 * kGiB, .shm_free_bytes = 200 * kGiB},
      .limits = {.open_files = 1 << 20, .locked_bytes = 64 * kGiB, .processes = 1 << 20},
      .networks = {.host_name = "node1",
                   .host_addresses = {"10.0.0.1"},
                   .interfaces = {{.name = "eth0", .address = "10.0.0.1", .mtu = 9000}}},
      .clock_is_synchronised = true,
      .secret = "MUSTER_TOKEN"};
}

// The findings of one check.
std::vector<Finding> Of(const std::string& check, const NodeHealth& node,
                        const GpusHealth& gpus = {}) {
  std::vector<Finding> found;
  for (Finding& finding : Diagnose(node, gpus)) {
    if (finding.check == check) found.push_back(std::move(finding));
  }
  EXPECT_FALSE(found.empty()) << check;
  if (found.empty()) found.emplace_back();
  return found;
}

TEST(Diagnose, FindsNothingWrongWithAHealthyNode) {
  for (const Finding& finding : Diagnose(Healthy(), {})) {
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.check << ": " << finding.text;
    EXPECT_EQ(finding.advice, "");
  }
  EXPECT_EQ(ExitCodeOfFindings(Diagnose(Healthy(), {})), 0);
}

TEST(Diagnose, NamesAHostNameThatLeadsToLoopback) {
  NodeHealth node = Healthy();
  node.networks.host_addresses = {"127.0.1.1"};
  EXPECT_THAT(Of("host name", node)[0].text,
              HasSubstr("node1 leads to loopback alone (127.0.1.1)"));
  node.networks.host_addresses = {};
  EXPECT_THAT(Of("host name", node)[0].text, HasSubstr("node1 leads to no address"));
}

TEST(Diagnose, NamesTheSharedMemoryOfAContainer) {
  NodeHealth node = Healthy();
  node.memory.shm_bytes = node.memory.shm_free_bytes = kGiB / 16;
  const Finding finding = Of("/dev/shm", node)[0];
  EXPECT_EQ(finding.severity, Severity::kFault);
  EXPECT_THAT(finding.advice, HasSubstr("--shm-size"));
}

TEST(Diagnose, NamesLowLimits) {
  NodeHealth node = Healthy();
  node.limits.open_files = 1024;
  EXPECT_THAT(Of("limits", node)[0].text, HasSubstr("open files (ulimit -Hn): 1024"));
  node = Healthy();
  node.limits.locked_bytes = 65536;
  EXPECT_EQ(Of("limits", node)[0].severity, Severity::kOk);
  node.networks.has_rdma = true;
  EXPECT_EQ(Of("limits", node)[0].severity, Severity::kWarning);
}

TEST(Diagnose, NamesAClockASecretAndAPort) {
  NodeHealth node = Healthy();
  node.clock_is_synchronised = false;
  node.secret = absl::PermissionDeniedError("others may read it");
  node.networks.ports = absl::UnavailableError("no answer within 3s");
  EXPECT_EQ(Of("clock", node)[0].severity, Severity::kWarning);
  EXPECT_EQ(Of("secret", node)[0].severity, Severity::kFault);
  EXPECT_EQ(Of("ports", node)[0].severity, Severity::kFault);
  EXPECT_EQ(ExitCodeOfFindings(Diagnose(node, {})), 1);
}

TEST(Diagnose, NamesGpusThatTheDriverDoesNotShow) {
  EXPECT_THAT(Of("GPUs", Healthy(), {.num_gpu_files = 8})[0].text,
              HasSubstr("device files for 8 GPUs"));
  const GpusHealth seven{.driver = "580", .num_gpu_files = 8, .gpus = std::vector<GpuHealth>(7)};
  EXPECT_THAT(Of("GPUs", Healthy(), seven)[0].text, HasSubstr("shows 7 of 8"));
}

TEST(FormatAsJson, IsOneLineForANode) {
  const std::string text = FormatAsJson("node1", {{.check = "limits", .text = "a \"b\""}});
  EXPECT_EQ(text,
            "{\"findings\":[{\"advice\":\"\",\"check\":\"limits\",\"severity\":\"ok\","
            "\"text\":\"a \\\"b\\\"\"}],\"node\":\"node1\",\"ok\":true}\n");
}

}  // namespace
}  // namespace muster::launcher
