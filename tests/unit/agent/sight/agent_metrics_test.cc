#include "agent/sight/agent_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/prometheus_text.h"

namespace muster::agent {
namespace {

using status::Spent;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Samples;
using testing::WhatIsWrongWith;

AgentFigures RunningNode() {
  AgentFigures figures{.version = "0.1.0",
                       .run_id = "train",
                       .node = "node1",
                       .spent = Spent::kRunning,
                       .counts = {.rounds = 2, .failures = 1},
                       .restarts_used = 1,
                       .restarts_max = 3,
                       .steps_per_second = 1.5};
  figures.spent_seconds[static_cast<size_t>(Spent::kForming)] = 20;
  figures.spent_seconds[static_cast<size_t>(Spent::kRunning)] = 60;
  figures.of_node.ranks = {
      {.rank = 4, .pid = 10, .phase = "reduce", .step = 17, .cpu_percent = 150, .memory_mib = 3},
      {.rank = 5, .pid = 0, .step = 15, .silent_seconds = 8}};
  figures.of_node.gpus = {{.index = 0,
                           .pci_address = "0000:3b:00.0",
                           .name = "NVIDIA H100",
                           .busy_percent = 97,
                           .memory_used_mib = 400,
                           .memory_mib = 1000,
                           .power_watts = 650.5,
                           .fault = "Xid 79"},
                          {.index = 1, .pci_address = "0000:5e:00.0"}};
  return figures;
}

TEST(AgentMetrics, AreWellFormedAndTellOfRanks) {
  const std::string text = AgentMetrics(RunningNode());
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(text, &samples), "");
  const std::string of4 = "{run_id=\"train\",rank=\"4\"}", of5 = "{run_id=\"train\",rank=\"5\"}";
  EXPECT_EQ(samples["muster_rank_step" + of4], 17);
  EXPECT_EQ(samples["muster_rank_lag_steps" + of5], 2);
  EXPECT_EQ(samples["muster_rank_up" + of4], 1);
  EXPECT_EQ(samples.at("muster_rank_up" + of5), 0);
  EXPECT_EQ(samples["muster_rank_cpu_ratio" + of4], 1.5);
  EXPECT_FALSE(samples.contains("muster_rank_cpu_ratio" + of5)) << "it is not known";
  EXPECT_EQ(samples["muster_rank_memory_bytes" + of4], 3 << 20);
  EXPECT_EQ(samples["muster_rank_silent_seconds" + of5], 8);
  EXPECT_EQ(samples["muster_rank_phase{run_id=\"train\",rank=\"4\",phase=\"reduce\"}"], 1);
}

TEST(AgentMetrics, TellWhatTimeWasSpentOn) {
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(AgentMetrics(RunningNode()), &samples), "");
  const std::string who = "run_id=\"train\",node=\"node1\"";
  EXPECT_EQ(samples["muster_agent_time_seconds_total{" + who + ",state=\"running\"}"], 60);
  EXPECT_EQ(samples["muster_agent_time_seconds_total{" + who + ",state=\"forming\"}"], 20);
  EXPECT_EQ(samples["muster_agent_goodput_ratio{" + who + "}"], 0.75);
  EXPECT_EQ(samples["muster_agent_state{" + who + ",state=\"running\"}"], 1);
  EXPECT_EQ(samples["muster_agent_rounds_total{" + who + "}"], 2);
  EXPECT_EQ(samples["muster_agent_restarts_total{" + who + "}"], 1);
}

TEST(AgentMetrics, NameGpuFiguresAsTheDcgmExporterDoes) {
  const std::string text = AgentMetrics(RunningNode());
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(text, &samples), "");
  const std::string gpu =
      "{gpu=\"0\",device=\"nvidia0\",pci_bus_id=\"0000:3b:00.0\",modelName=\"NVIDIA H100\","
      "Hostname=\"node1\"}";
  EXPECT_EQ(samples["DCGM_FI_DEV_GPU_UTIL" + gpu], 97);
  EXPECT_EQ(samples["DCGM_FI_DEV_FB_USED" + gpu], 400);
  EXPECT_EQ(samples["DCGM_FI_DEV_FB_FREE" + gpu], 600);
  EXPECT_EQ(samples["DCGM_FI_DEV_POWER_USAGE" + gpu], 650.5);
  EXPECT_EQ(samples["DCGM_FI_DEV_XID_ERRORS" + gpu], 79);
  EXPECT_THAT(text, Not(HasSubstr("DCGM_FI_DEV_GPU_TEMP"))) << "no driver tells it";
}

TEST(AgentMetrics, OfANodeWithoutRanksAndGpusHaveNone) {
  const std::string text = AgentMetrics({.version = "0.1.0", .run_id = "a\"b", .node = "n"});
  EXPECT_EQ(WhatIsWrongWith(text), "");
  EXPECT_THAT(text, Not(HasSubstr("muster_rank_")));
  EXPECT_THAT(text, Not(HasSubstr("DCGM_")));
}

// Labels as well: a misspelt one would leave a panel empty.
TEST(AgentMetrics, AreAllThatTheDashboardAsksFor) {
  AgentFigures figures = RunningNode();
  figures.of_node.gpus[0].celsius = 60;
  const std::string told = AgentMetrics(figures);
  const auto dashboard = nlohmann::json::parse(
      testing::ReadFile(absl::StrCat(testing::kSourceDirectory, "/deploy/grafana/muster.json")),
      nullptr, false);
  ASSERT_TRUE(dashboard.is_object());
  int num_queries = 0;
  const auto is_part = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  for (const auto& panel : dashboard["panels"]) {
    for (const auto& target : panel["targets"]) {
      ++num_queries;
      const std::string query = target["expr"], legend = target["legendFormat"];
      size_t begin = query.find("muster_");
      if (begin == std::string::npos) begin = query.find("DCGM_");
      ASSERT_NE(begin, std::string::npos) << query;
      const size_t end =
          std::find_if_not(query.begin() + begin, query.end(), is_part) - query.begin();
      const std::string name = query.substr(begin, end - begin);
      EXPECT_THAT(told, HasSubstr("# TYPE " + name + " "));
      EXPECT_TRUE(absl::StrContains(query, "run_id=~") || absl::StartsWith(name, "DCGM_")) << query;
      for (absl::string_view label : {"rank", "node", "state", "gpu", "Hostname"}) {
        if (!absl::StrContains(legend, absl::StrCat("{{", label, "}}"))) continue;
        const size_t sample = told.find("\n" + name + "{");
        ASSERT_NE(sample, std::string::npos) << name;
        EXPECT_THAT(told.substr(sample, told.find('\n', sample + 1) - sample),
                    HasSubstr(absl::StrCat(label, "=")));
      }
    }
  }
  EXPECT_GT(num_queries, 10);
}

}  // namespace
}  // namespace muster::agent
