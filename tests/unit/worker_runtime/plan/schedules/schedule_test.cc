// A schedule is printed, edited and read again.
#include "worker_runtime/plan/schedules/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_replace.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/schedules/schedule_page.h"
#include "worker_runtime/plan/schedules/schedule_picture.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Schedule Made(absl::string_view name, int ranks, int64_t micro_batches) {
  return *MakeSchedule(name, {ranks, UsualStagesPerRank(name), micro_batches});
}

TEST(FormatSchedule, IsWhatParseScheduleReads) {
  EXPECT_EQ(FormatSchedule(Made("1f1b", 2, 3)),
            "schedule 1f1b\n"
            "micro_batches 3\n"
            "stages_on_ranks 0 1\n"
            "rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2\n"
            "rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2\n");
  for (const std::string& name : ScheduleNames()) {
    const Schedule schedule = Made(name, 3, 6);
    EXPECT_THAT(ParseSchedule(FormatSchedule(schedule)), IsOkAndHolds(schedule)) << name;
  }
}

TEST(ParseSchedule, PassesOverRemarksAndBlanks) {
  EXPECT_THAT(ParseSchedule("# by hand\n\nmicro_batches 1\n  stages_on_ranks  0\nrank 0:  F0.0  "
                            "B0.0 \r\n"),
              IsOk());
}

TEST(ParseSchedule, NamesTheLineThatItCannotRead) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(ParseSchedule(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  const std::string head = "micro_batches 1\nstages_on_ranks 0\n";
  expect(head + "rank 0: F0.0 X0.0\n", "line 3: 'X0.0' is not a pass; F, B, I or W");
  expect(head + "rank 0: F0\n", "line 3: 'F0' is not a pass");
  expect(head + "rank 0: F0.-1\n", "line 3: 'F0.-1' is not a pass");
  expect(head + "rank 1: F0.0\n", "line 3: \"rank 0: ...\" is expected");
  expect(head, "stages_on_ranks names ranks 0 to 0, and there are lines of 0");
  expect("microbatches 1\n", "line 1: 'microbatches' is not known here");
  expect("stages_on_ranks 0\nrank 0:\n", "no line \"micro_batches N\"");
  expect("micro_batches 1\nrank 0:\n", "no line \"stages_on_ranks");
  expect("micro_batches 0\n", "at least 1");
  expect("stages_on_ranks 0 -1\n", "'-1' is not the number of a rank");
  expect("schedule <svg>\n", "letters, digits");
}

TEST(DrawText, ShowsRanksOverTime) {
  const Schedule schedule = Made("1f1b", 2, 2);
  EXPECT_EQ(DrawText(schedule, *ProveSchedule(schedule, {1, 1, 1})),
            "rank 0   F0 F1 .  .  B0=== .  B1===\n"
            "rank 1   .  F0 B0=== F1 B1=== .  .\n");
}

TEST(DrawText, TellsTheStagesOfARankApart) {
  const Schedule schedule = Made("zbv", 1, 2);
  EXPECT_EQ(DrawText(schedule, *ProveSchedule(schedule, {2, 2, 2})),
            "rank 0   F0a F0b I0b W0b F1a I0a W0a F1b I1b W1b I1a W1a\n");
}

TEST(DrawSvg, DrawsEveryPassOnce) {
  const Schedule schedule = Made("zb-h1", 3, 5);
  const std::string svg = DrawSvg(schedule, *ProveSchedule(schedule, {1, 1, 1}));
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  for (const auto& of_rank : schedule.passes) {
    for (const StagePass& pass : of_rank) {
      const std::string title = "<title>" + ToString(pass) + ", ";
      const size_t at = svg.find(title);
      ASSERT_NE(at, std::string::npos) << title;
      EXPECT_EQ(svg.find(title, at + 1), std::string::npos) << title;
    }
  }
}

TEST(CompareSchedules, SaysWhatEachCostsOrWhyNot) {
  EXPECT_THAT(CompareSchedules({.ranks = 4, .micro_batches = 9}),
              IsOkAndHolds(AllOf(HasSubstr("muster-train runs any of them"),
                                 HasSubstr("interleaved   no: interleaved over 4 ranks cannot"),
                                 HasSubstr("1/4 = 25 %"))));
}

TEST(ShowSchedule, CountsStagesOfARankAsPartsOfIt) {
  // Two stages of a rank take half of its time each: 3 (F + B) / 2 of the same unit.
  EXPECT_THAT(ShowSchedule("interleaved", {.ranks = 4, .micro_batches = 8}, ScheduleForm::kPage),
              IsOkAndHolds(AllOf(HasSubstr("a rank waits, at most        9/2"),
                                 HasSubstr("live micro-batches, at most  11/2"))));
  EXPECT_THAT(ShowSchedule("1f1b", {.ranks = 4, .micro_batches = 8}, ScheduleForm::kPage),
              IsOkAndHolds(HasSubstr("a rank waits, at most        9\n")));
}

TEST(ShowScheduleFile, TakesAnEditedFileOrSaysWhyItWouldHang) {
  const std::string file = FormatSchedule(Made("1f1b", 2, 3));
  const ScheduleRequest unsaid = {.ranks = 0, .micro_batches = 0};
  EXPECT_THAT(ShowScheduleFile(file, unsaid, ScheduleForm::kPage),
              IsOkAndHolds(HasSubstr("schedule 1f1b: 2 ranks")));
  EXPECT_THAT(ShowScheduleFile(file, unsaid, ScheduleForm::kFile), IsOkAndHolds(file));
  EXPECT_THAT(ShowScheduleFile(file, {.ranks = 4, .micro_batches = 0}, ScheduleForm::kPage),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the file is for 2 ranks, and 4 are asked for")));
  const std::string edited =
      absl::StrReplaceAll(file, {{"B1.0 F1.1 B1.1 F1.2", "F1.1 F1.2 B1.0 B1.1"}});
  EXPECT_THAT(ShowScheduleFile(edited, unsaid, ScheduleForm::kPage),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("with F0.2 put before B0.0 on rank 0 it would end")));
}

}  // namespace
}  // namespace muster::plan
