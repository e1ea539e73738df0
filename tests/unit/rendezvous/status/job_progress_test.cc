#include "rendezvous/status/job_progress.h"

#include <gtest/gtest.h>

namespace muster::status {
namespace {

using hangs::StandingKind;

MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }

hangs::NodeSummary Standing(StandingKind kind, const std::string& text) {
  hangs::NodeSummary summary;
  summary.standing = {.is_told = true, .kind = kind, .text = text, .age = absl::Seconds(2)};
  return summary;
}

TEST(JobProgress, StandsByWhatTheOnlyNodeSays) {
  JobProgress progress;
  progress.OnSummary(Incarnation(1), Standing(StandingKind::kNotice, "rank 1 is late"), At(10));
  EXPECT_EQ(progress.standing().text, "rank 1 is late");
  EXPECT_EQ(progress.standing().at, At(8));
  progress.OnSummary(Incarnation(1), Standing(StandingKind::kVerdict, "rank 1 hangs"), At(20));
  EXPECT_EQ(progress.standing().kind, StandingKind::kVerdict);
  progress.OnSummary(Incarnation(1), Standing(StandingKind::kNone, ""), At(30));
  EXPECT_EQ(progress.standing().kind, StandingKind::kNone);
  EXPECT_EQ(progress.last()->text, "rank 1 hangs");
}

TEST(JobProgress, KnowsSinceWhenItStandsThoughItIsSaidAgain) {
  JobProgress progress;
  progress.OnSummary(Incarnation(1), Standing(StandingKind::kNotice, "rank 1 is late"), At(10));
  progress.OnSummary(Incarnation(1), Standing(StandingKind::kNotice, "rank 1 is late"), At(11));
  EXPECT_EQ(progress.standing().at, At(8));
}

TEST(JobProgress, OfOneAmongSeveralNodesSaysNothingOfTheJob) {
  JobProgress progress;
  hangs::NodeSummary summary = Standing(StandingKind::kVerdict, "rank 1 hangs");
  summary.standing.is_told = false;
  progress.OnSummary(Incarnation(1), summary, At(10));
  EXPECT_EQ(progress.standing().kind, StandingKind::kNone);
}

TEST(JobProgress, KeepsTheLongestSilenceOfANode) {
  JobProgress progress;
  hangs::NodeSummary summary;
  summary.silent = {{.first_rank = 4, .silent_for = absl::Seconds(3)},
                    {.first_rank = 6, .silent_for = absl::Seconds(9)}};
  progress.OnSummary(Incarnation(1), summary, At(10));
  EXPECT_EQ(progress.nodes().at(Incarnation(1)).silent_rank, 6);
}

}  // namespace
}  // namespace muster::status
