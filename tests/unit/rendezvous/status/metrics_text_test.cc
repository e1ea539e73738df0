#include "rendezvous/status/metrics_text.h"

#include <gtest/gtest.h>

#include "tests/support/prometheus_text.h"

namespace muster::status {
namespace {

using testing::Samples;
using testing::WhatIsWrongWith;

TEST(MetricsText, IsOneFamilyAfterTheOther) {
  MetricsText text;
  text.BeginGauge("muster_rank_step", "Step.");
  text.Add({{"run_id", "a"}, {"rank", "0"}}, 17);
  text.BeginCounter("muster_rounds_total", "Rounds.");
  text.Add({}, 2.5);
  const std::string out = text.Take();
  EXPECT_EQ(out,
            "# HELP muster_rank_step Step.\n# TYPE muster_rank_step gauge\n"
            "muster_rank_step{run_id=\"a\",rank=\"0\"} 17\n"
            "# HELP muster_rounds_total Rounds.\n# TYPE muster_rounds_total counter\n"
            "muster_rounds_total 2.5\n");
  EXPECT_EQ(WhatIsWrongWith(out), "");
}

TEST(MetricsText, LeavesOutWhatIsNotKnownAndFamiliesOfNothingElse) {
  MetricsText text;
  text.BeginGauge("muster_rank_step", "Step.");
  text.AddIfKnown({{"rank", "0"}}, -1);
  text.BeginGauge("muster_jobs", "Jobs.");
  text.Add({}, 0);
  EXPECT_EQ(text.Take(), "# HELP muster_jobs Jobs.\n# TYPE muster_jobs gauge\nmuster_jobs 0\n");
}

TEST(MetricsText, EscapesWhatALabelMayHold) {
  MetricsText text;
  text.BeginGauge("muster_jobs", "Jobs.");
  text.Add({{"run_id", "a\"b\\c\nd"}}, 1);
  const std::string out = text.Take();
  Samples samples;
  EXPECT_EQ(WhatIsWrongWith(out, &samples), "");
  EXPECT_TRUE(samples.contains("muster_jobs{run_id=\"a\\\"b\\\\c\\nd\"}")) << out;
}

// The reader of the tests can say no.
TEST(PrometheusText, IsRefusedByTheTestsReaderWhereItIsNone) {
  const std::string head = "# HELP muster_a A.\n# TYPE muster_a gauge\n";
  for (const std::string& text :
       {std::string("muster_a 1\n"), head + "muster_a 1", head + "muster_a x\n",
        head + "muster_a{b=1} 1\n", head + "muster_a{b=\"1\",b=\"2\"} 1\n", head + head,
        head + "muster_a{b=\"\\x\"} 1\n", head + "muster_a 1\nmuster_a 2\n",
        std::string("# HELP muster_a A.\n# TYPE muster_a counter\nmuster_a 1\n"),
        std::string("# HELP muster_a_ms A.\n# TYPE muster_a_ms gauge\nmuster_a_ms 1\n"),
        std::string("# TYPE muster_a gauge\nmuster_a 1\n")}) {
    EXPECT_NE(WhatIsWrongWith(text), "") << text;
  }
  EXPECT_EQ(WhatIsWrongWith(head + "muster_a{b=\"1\",c=\"\"} 1e-3\n"), "");
}

}  // namespace
}  // namespace muster::status
