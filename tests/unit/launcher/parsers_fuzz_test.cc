// Whatever text comes from a scheduler or a file, parsers read it soundly or refuse it.
//
// Sources: launcher/config/accelerate_config.h, launcher/config/instructlab_config.h,
// launcher/hosts/host_file.h, launcher/hosts/remote_start.h, launcher/schedulers/node_list.h,
// launcher/schedulers/scheduler.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/config/accelerate_config.h"
#include "launcher/config/instructlab_config.h"
#include "launcher/hosts/host_file.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/line/flags.h"
#include "launcher/schedulers/node_list.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/base/endpoint.h"
#include "tests/support/mutation.h"

namespace muster::launcher {
namespace {

using ::muster::testing::ForEachMutation;

constexpr char kCorpus[] = "tests/unit/launcher/corpus/";
constexpr int kRounds = 4000;

TEST(NodeLists, AreReadAsNamesOfHostsOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "node_list"), kRounds, [](const std::string& text) {
    const absl::StatusOr<std::vector<std::string>> nodes = ExpandNodeList(text);
    const absl::StatusOr<std::vector<int>> counts = ExpandCounts(text);
    if (counts.ok()) {
      EXPECT_LE(counts->size(), static_cast<size_t>(kMaxListedNodes)) << text;
    }
    if (!nodes.ok()) return;
    ASSERT_FALSE(nodes->empty()) << text;
    ASSERT_LE(nodes->size(), static_cast<size_t>(kMaxListedNodes)) << text;
    EXPECT_TRUE(IsHost(nodes->front()) && IsHost(nodes->back())) << text;
    if (nodes->size() < 100) {
      EXPECT_EQ(ExpandNodeList(absl::StrJoin(*nodes, ",")).value(), *nodes) << text;
    }
  });
}

TEST(HostLists, AreReadAsNamesOfHostsOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "host_list"), kRounds, [](const std::string& text) {
    for (const auto& hosts : {ReadHostPerSlot(text), ReadHostsWithCounts(text)}) {
      if (!hosts.ok()) continue;
      for (const HostSlots& host : *hosts) {
        EXPECT_TRUE(IsHost(host.host)) << text;
        EXPECT_GT(host.slots, 0) << text;
      }
    }
  });
}

TEST(HostFiles, AreReadAsHostsWithSlotsOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "host_file"), kRounds, [](const std::string& text) {
    const absl::StatusOr<std::vector<HostEntry>> hosts = ParseHostFile(text);
    if (!hosts.ok()) return;
    for (const HostEntry& host : *hosts) {
      EXPECT_FALSE(host.slots.empty()) << text;
      EXPECT_NE(host.host.front(), '-') << text;
    }
  });
}

TEST(ChoicesOfHosts, LeaveListedHostsOrAreRefused) {
  const std::vector<HostEntry> listed =
      ParseHostFile("a slots=2\nb slots=1\nworker-0 slots=4\nworker-1 slots=4\n").value();
  ForEachMutation(absl::StrCat(kCorpus, "host_filter"), kRounds, [&](const std::string& text) {
    for (const HostChoice& choice : {HostChoice{.include = text}, HostChoice{.exclude = text}}) {
      const absl::StatusOr<std::vector<HostEntry>> hosts = ChooseHosts(listed, choice);
      if (!hosts.ok()) continue;
      EXPECT_THAT(hosts->size(), ::testing::AllOf(::testing::Ge(1u), ::testing::Le(4u))) << text;
    }
  });
}

TEST(RemoteStarts, AreReadOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "remote_start"), kRounds, [](const std::string& text) {
    const absl::StatusOr<RemoteStart> start = DecodeRemoteStart(text);
    if (!start.ok()) return;
    EXPECT_TRUE(DecodeRemoteStart(EncodeRemoteStart(*start)).value() == *start) << text;
  });
}

TEST(AccelerateConfigs, AreReadOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "accelerate"), kRounds, [](const std::string& text) {
    const auto file = ReadAccelerateFile(text, "f");
    const auto launch = file.ok() ? LaunchOfAccelerate(*file, AccelerateSurroundings{})
                                  : absl::StatusOr<LaunchConfig>(file.status());
    if (!launch.ok()) {
      EXPECT_EQ(launch.status().code(), absl::StatusCode::kInvalidArgument) << text;
      return;
    }
    EXPECT_TRUE(launch->environment.contains("ACCELERATE_MIXED_PRECISION")) << text;
  });
}

TEST(InstructLabConfigs, AreReadOrRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "instructlab"), kRounds, [](const std::string& text) {
    const absl::StatusOr<LaunchConfig> config = LaunchOfInstructLab(text, "f");
    if (!config.ok()) {
      EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
      return;
    }
    for (const TakenOption& taken : config->options) {
      EXPECT_EQ(taken.source.find("f: line "), 0u) << text;
    }
  });
}

TEST(SchedulersVariables, GiveAJobThatIsSoundOrAreRefused) {
  ForEachMutation(absl::StrCat(kCorpus, "environment"), kRounds, [](const std::string& text) {
    EnvironmentMap environment;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      const std::pair<std::string, std::string> entry =
          absl::StrSplit(line, absl::MaxSplits('=', 1));
      environment.insert(entry);
    }
    const auto found = FindScheduler({.environment = environment,
                                      .host_name = "h2",
                                      .read_file = [&](const std::string&) { return text; }});
    const auto flags = ParseFlags({"train.py"}, environment, "fresh", found);
    if (!flags.ok()) {
      EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument) << text;
      return;
    }
    const RunFlags& run = std::get<RunFlags>(*flags);
    EXPECT_TRUE(run.spec.Validate().ok()) << text;
    EXPECT_LT(run.placement.tasks.local, run.placement.tasks.num_local) << text;
  });
}

}  // namespace
}  // namespace muster::launcher
