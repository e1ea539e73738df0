#include "agent/console/log_routing.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using Way = StreamRoute::Way;

constexpr ConsoleStream kOut = ConsoleStream::kStdout;
const std::vector<PumpedWorker> kOne = {{LocalRank(0), Rank(0)}};
const std::vector<PumpedWorker> kTwo = {{LocalRank(0), Rank(4)}, {LocalRank(1), Rank(5)}};

const StreamRoute kConsole{.to_console = true};
const StreamRoute kPrefixed{.to_console = true, .has_prefix = true};
const StreamRoute kTerminal{.way = Way::kTerminal, .to_console = true};
const StreamRoute kShared{.way = Way::kTerminal, .to_console = true, .has_prefix = true};
const StreamRoute kFile{.way = Way::kFile, .to_file = true};
const StreamRoute kBoth{.to_file = true, .to_console = true, .has_prefix = true};
const StreamRoute kDropped{};

StreamSelection All(StreamSet set) { return {.all = set}; }

constexpr ConsoleFacts kOnTerminal{.is_terminal = true};

TEST(DecideRoutes, ReadsAnOnlyWorkerAsItReadsSeveral) {
  EXPECT_THAT(DecideRoutes({}, kOut, kOne), ElementsAre(kConsole));
}

TEST(DecideRoutes, GivesWorkersATerminalWhereWeHaveOne) {
  EXPECT_THAT(DecideRoutes({}, kOut, kTwo, kOnTerminal), ElementsAre(kShared, kShared));
}

TEST(DecideRoutes, PutsNoPrefixOnATerminalThatOneWorkerHasToItself) {
  EXPECT_THAT(DecideRoutes({}, kOut, kOne, kOnTerminal), ElementsAre(kTerminal));
  EXPECT_THAT(DecideRoutes({.local_ranks_filter = {1}}, kOut, kTwo, kOnTerminal),
              ElementsAre(kDropped, kTerminal));
}

TEST(DecideRoutes, PutsAPrefixWhereItIsAskedFor) {
  for (const LogSpec& logs : {LogSpec{.console = ConsoleMode::kPrefix}, LogSpec{.fold = true},
                              LogSpec{.line_prefix_template = "${rank}: "}}) {
    EXPECT_THAT(DecideRoutes(logs, kOut, kOne), ElementsAre(kPrefixed));
  }
}

TEST(DecideRoutes, PutsNoPrefixAnywhereInRawMode) {
  const LogSpec logs{.tee = All(StreamSet::kBoth), .console = ConsoleMode::kRaw, .fold = true};
  EXPECT_THAT(DecideRoutes(logs, kOut, kOne),
              ElementsAre(StreamRoute{.to_file = true, .to_console = true}));
}

TEST(PrefixTemplate, IsTorchrunsForATeedStreamAndAGivenRole) {
  EXPECT_EQ(PrefixTemplate({}, kOut, kOne[0], {}), kHostPrefix);
  EXPECT_EQ(PrefixTemplate({.tee = All(StreamSet::kStdout)}, kOut, kOne[0], {}), kTorchrunPrefix);
  EXPECT_EQ(PrefixTemplate({.tee = All(StreamSet::kStderr)}, kOut, kOne[0], {}), kHostPrefix);
  EXPECT_EQ(PrefixTemplate({}, kOut, kOne[0], {.has_role = true}), kTorchrunPrefix);
  EXPECT_EQ(PrefixTemplate({.line_prefix_template = "x"}, kOut, kOne[0], {.has_role = true}), "x");
}

TEST(DecideRoutes, PipesTheOutputOfSeveralWorkersToTheConsole) {
  EXPECT_THAT(DecideRoutes({}, kOut, kTwo), ElementsAre(kConsole, kConsole));
}

TEST(DecideRoutes, GivesARedirectedStreamItsFileAlone) {
  EXPECT_THAT(DecideRoutes({.redirects = All(StreamSet::kBoth)}, kOut, kTwo),
              ElementsAre(kFile, kFile));
}

TEST(DecideRoutes, RedirectsOnlyTheStreamThatWasNamed) {
  EXPECT_THAT(DecideRoutes({.redirects = All(StreamSet::kStderr)}, kOut, kTwo),
              ElementsAre(kConsole, kConsole));
  EXPECT_THAT(DecideRoutes({.redirects = All(StreamSet::kStderr)}, ConsoleStream::kStderr, kTwo),
              ElementsAre(kFile, kFile));
}

TEST(DecideRoutes, SendsATeedStreamToFileAndConsole) {
  LogSpec logs;
  logs.tee.by_local_rank = {{1, StreamSet::kBoth}};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo), ElementsAre(kConsole, kBoth));
}

TEST(DecideRoutes, LetsTeeWinOverRedirects) {
  EXPECT_THAT(
      DecideRoutes({.redirects = All(StreamSet::kBoth), .tee = All(StreamSet::kBoth)}, kOut, kOne),
      ElementsAre(kBoth));
}

TEST(DecideRoutes, KeepsUnlistedLocalRanksFromTheConsole) {
  EXPECT_THAT(DecideRoutes({.local_ranks_filter = {1}}, kOut, kTwo),
              ElementsAre(kDropped, kConsole));
}

TEST(DecideRoutes, WritesATeedStreamOfAnUnlistedRankToItsFileOnly) {
  EXPECT_THAT(DecideRoutes({.tee = All(StreamSet::kBoth), .local_ranks_filter = {1}}, kOut, kTwo),
              ElementsAre(kFile, kBoth));
}

TEST(DecideRoutes, MeansTheGlobalRankByConsoleRank0) {
  const LogSpec logs{.console = ConsoleMode::kRank0};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo), ElementsAre(kDropped, kDropped));
  EXPECT_THAT(DecideRoutes(logs, kOut, kOne), ElementsAre(kConsole));
}

TEST(DecideRoutes, DropsTheOutputOfAnOnlyWorkerWithoutAConsole) {
  EXPECT_THAT(DecideRoutes({.console = ConsoleMode::kNone}, kOut, kOne), ElementsAre(kDropped));
}

TEST(DecideRoutes, FiltersTeedStreamsOnlyIfAnyIsTeed) {
  LogSpec logs;
  logs.tee.by_local_rank = {{1, StreamSet::kStdout}};
  logs.duplicate_stdout_filters = {"loss"};
  const StreamRoute filtered{
      .to_file = true, .to_console = true, .to_filtered = true, .has_prefix = true};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo), ElementsAre(kConsole, filtered));
}

TEST(DecideRoutes, FiltersEveryStreamIfNoneIsTeed) {
  LogSpec logs;
  logs.redirects.by_local_rank = {{0, StreamSet::kStdout}};
  logs.duplicate_stdout_filters = {"loss"};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo),
              ElementsAre(StreamRoute{.to_file = true, .to_filtered = true},
                          StreamRoute{.to_console = true, .to_filtered = true}));
}

TEST(DecideRoutes, ReadsTheStreamOfAnOnlyWorkerThatIsFiltered) {
  EXPECT_THAT(DecideRoutes({.duplicate_stdout_filters = {"loss"}}, kOut, kOne),
              ElementsAre(StreamRoute{.to_console = true, .to_filtered = true}));
}

constexpr ConsoleFacts kChanging{.ranks_may_change = true};

TEST(DecideRoutes, ReadsATeedStreamThatMayReachTheConsoleFromAnotherRank) {
  const LogSpec logs{.tee = All(StreamSet::kBoth), .console = ConsoleMode::kRank0};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo), ElementsAre(kFile, kFile));
  const StreamRoute read{.to_file = true};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo, kChanging), ElementsAre(read, read));
}

TEST(DecideRoutes, GivesATerminalToAStreamThatMayReachOursFromAnotherRank) {
  const LogSpec logs{.console = ConsoleMode::kRank0};
  const StreamRoute unseen{.way = Way::kTerminal};
  EXPECT_THAT(DecideRoutes(logs, kOut, kTwo, {.is_terminal = true, .ranks_may_change = true}),
              ElementsAre(unseen, unseen));
}

TEST(DecideRoutes, ReadsAStreamThatMayBeFilteredBesideOthers) {
  LogSpec logs;
  logs.redirects.all = StreamSet::kBoth;
  logs.duplicate_stdout_filters = {"loss"};
  logs.tee.by_local_rank = {{1, StreamSet::kStdout}};
  EXPECT_EQ(DecideRoutes(logs, kOut, kTwo)[0], kFile);
  EXPECT_EQ(DecideRoutes(logs, kOut, kTwo, kChanging)[0], StreamRoute{.to_file = true});
}

TEST(DecideRoutes, LeavesAFileToAStreamThatNoRankBringsElsewhere) {
  EXPECT_THAT(DecideRoutes({.redirects = All(StreamSet::kBoth)}, kOut, kTwo, kChanging),
              ElementsAre(kFile, kFile));
  EXPECT_THAT(DecideRoutes({.tee = All(StreamSet::kBoth), .local_ranks_filter = {1}}, kOut, kTwo,
                           kChanging),
              ElementsAre(kFile, kBoth));
}

TEST(ContinueRoute, LeavesAStreamTheWayInWhichItWasStarted) {
  EXPECT_EQ(ContinueRoute(kShared, kConsole), kTerminal);
  EXPECT_EQ(ContinueRoute(kDropped, kShared), kPrefixed);
}

TEST(ContinueRoute, BringsNothingElsewhereThatAWorkerWritesToItsFileItself) {
  EXPECT_EQ(ContinueRoute(kFile, kBoth), kFile);
}

}  // namespace
}  // namespace muster::agent
