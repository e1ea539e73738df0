// The bytes and the bounds of every message between agents, servers, workers and persons are those
// of wire_form.txt. `wire_form_test --rewrite` writes what is found.
#include <gtest/gtest.h>

#include "proto/agent.pb.h"
#include "proto/inquiry.pb.h"
#include "proto/io/stop_wire.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"
#include "proto/watch.pb.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/wire.h"
#include "tests/unit/rendezvous/link/filled_values.h"
#include "tests/unit/rendezvous/link/message_form.h"

namespace muster::rendezvous {
namespace {

template <typename Message, typename Value>
Message Encoded(const Value& value) {
  Message message;
  Encode(value, &message);
  return message;
}

template <typename Message, typename Value>
std::string Form(const std::string& name, const Value& value) {
  const auto decode = [](const google::protobuf::Message& in) -> absl::StatusOr<std::string> {
    const auto decoded = Decode(static_cast<const Message&>(in));
    if (!decoded.ok()) return decoded.status();
    return Encoded<Message>(*decoded).SerializeAsString();
  };
  return FormOf(name, Encoded<Message>(value), decode);
}

template <typename Message, typename Value>
std::string Print(const std::string& name, const Value& value) {
  return Fingerprint(name, Encoded<Message>(value).SerializeAsString());
}

Directive FilledDirective(DirectiveBody body) {
  return {ServerTerm(3), Instance(4), 5, 6, std::move(body)};
}

JobOutcome FilledOutcome() { return {7, "why", FilledFailure(), {FilledFailure()}}; }

std::string Directives() {
  const auto form = [](const std::string& name, DirectiveBody body) {
    return Form<proto::Directive>(name, FilledDirective(std::move(body)));
  };
  return absl::StrCat(
      form("wait", Wait{"waiting"}), form("run_round", RunRound{FilledAssignment()}),
      form("stop_round", StopRound{Round(2), StopCause::kJobFailed, "why", true, 7}),
      form("stop_at", StopAt{Round(2), 41, "maintenance"}),
      form("end_job", EndJob{FilledOutcome()}),
      form("refuse", Refuse{absl::InvalidArgumentError("min_nodes differs")}));
}

Inquiry FilledInquiry() { return {7, InquiryKind::kLogs, "j7", 3, 4096, "{}"}; }

InquiryAnswer FilledAnswer() {
  return {7,
          absl::NotFoundError("no such job"),
          "page",
          {{"node\xff", 4, 2, absl::UnavailableError("gone"), "body"}}};
}

std::string Inquiries() {
  return absl::StrCat(
      Form<proto::Ask>("ask", StopRequest{"node2", "maintenance", true}),
      Form<proto::Answer>("answer", StopAnswer{.text = "the job stops"}),
      Form<proto::Answer>("answer with an error",
                          StopAnswer{.status = absl::NotFoundError("no such job")}),
      Form<proto::Inquiry>("inquiry", FilledInquiry()),
      Form<proto::InquiryReply>("inquiry_reply", InquiryReply{9, FilledAnswer().parts[0]}),
      Form<proto::InquiryAnswer>("inquiry_answer", FilledAnswer()));
}

std::string StoreMessages() {
  const auto form = [](const std::string& name, StoreOperation operation) {
    return Form<proto::StoreRequest>(name, StoreRequest{.request_id = 9,
                                                        .round = Round(3),
                                                        .operation = std::move(operation),
                                                        .instance = Instance(4)});
  };
  return absl::StrCat(
      form("set", StoreSet{"key", "value"}), form("get", StoreGet{"key"}),
      form("wait for keys", StoreWait{{"a", "b"}, absl::Seconds(3)}),
      form("add", StoreAdd{"key", -5}),
      form("compare_and_set", StoreCompareAndSet{"key", "old", "new"}),
      form("delete", StoreDelete{"key"}),
      form("exchange_unique_id", UniqueIdExchange{"group", 2, 1, 4, "id", absl::Seconds(3)}),
      form("commit_checkpoint", CommitCheckpoint{ServerTerm(8), 900}),
      Form<proto::StoreReply>("store_reply",
                              StoreReply{8, absl::NotFoundError("no \xff"), {"a", "\xff"}}),
      Form<proto::StopState>("stop_state", StopState{true, 41, "maintenance"}));
}

hangs::NodeSummary FilledSummary() {
  hangs::NodeSummary summary{
      .round = Round(3),
      .hang_timeout = absl::Seconds(600),
      .ends_workers = true,
      .may_replace = true,
      .silent = {{8, 4, hangs::WatchPhase::kCheckpoint, absl::Milliseconds(5500)}},
      .paces = {.window = 9, .own = {absl::Milliseconds(140), absl::ZeroDuration()}},
      .silence_at_start = absl::Seconds(7),
      .arrival_window = 12,
      .progress = {100, 97, 5, 1.5},
      .standing = {true, hangs::StandingKind::kVerdict, "rank 3", absl::Seconds(8)}};
  summary.learned.counts = {{hangs::WatchPhase::kStep, 11, 12345}};
  summary.learned.longest[2] = absl::Seconds(7);
  return summary;
}

hangs::Operation FilledOperation() {
  return {.kind = OperationKind::kRecv,
          .state = OperationState::kFailed,
          .sequence = 17,
          .bytes = 4096,
          .peer = 3,
          .dtype = "f32",
          .name = "nccl:recv",
          .chain = 0x1234567890,
          .awaited = true};
}

hangs::RankEvidence FilledRank(int rank) {
  return {.rank = rank,
          .round = Round(3),
          .pid = 12,
          .life = hangs::Life::kUnreachable,
          .phase = Phase::kEnd,
          .step = 9,
          .silent_for = absl::Seconds(5),
          .is_mute = true,
          .tells_waits = true,
          .is_busy = true,
          .loops = true,
          .fault = "its link is down",
          .doing = "stopped",
          .groups = {{.group = 1, .num_issued = 18, .operations = {FilledOperation()}}}};
}

hangs::NodeDetails FilledDetails() {
  return {.question = 5,
          .summary = FilledSummary(),
          .evidence = {.round = Round(3),
                       .groups = {{.name = "pair",
                                   .members = {hangs::kUnknownRank, 5},
                                   .id = 77,
                                   .is_on_device = true},
                                  {.name = "world", .members = {0, 1, 2}, .id = 78}},
                       .ranks = {FilledRank(4)}},
          .gatherings = {{"init_process_group", true, {0, 1, 2, 7}, {3, 5}, absl::Seconds(12)}},
          .is_held = true};
}

hangs::RankReport FilledRankReport(int rank) {
  return {.rank = rank,
          .node = "node2",
          .pid = 12,
          .phase = "is in phase reduce",
          .step = 7,
          .silent_for = absl::Seconds(12),
          .told_by = hangs::ToldBy::kTorchStore,
          .doing = "asleep",
          .hold = hangs::Hold::kMemory,
          .frames = {"f", "main"},
          .no_frames = "\xff",
          .python = {"step at train.py:41", "\xff"}};
}

hangs::SayVerdict FilledVerdict() {
  return {.question = 7,
          .round = Round(2),
          .diagnosis = {.finding = hangs::Finding::kOutOfSight,
                        .culprits = {3},
                        .waiting = {0, 1, 2, 5, 7},
                        .words = "rank 3 has gone on",
                        .group = "world",
                        .operation = FilledOperation(),
                        .is_direct = false,
                        .path = {"one", "two"},
                        .spoke_for_it = {"this"},
                        .confidence = 0.8,
                        .can_heal = true,
                        .cause = hangs::Cause::kDisk},
          .reason = "it is late",
          .action = "it is ended",
          .since_detected = absl::Seconds(9),
          .since_decided = absl::Milliseconds(1500),
          .ranks = {FilledRankReport(3)},
          .to_end = {3},
          .replaces = true};
}

hangs::NodeLastCalls FilledLastCalls() {
  return {.round = Round(2),
          .aborted = {4, 5, 7},
          .ranks = {{6, absl::Seconds(1), {{"0", "default_pg", FilledOperation()}}}}};
}

hangs::NodeArrivals FilledArrivals() {
  const hangs::ArrivalRow row{
      12, 5, 4, absl::Milliseconds(10), absl::Milliseconds(210), absl::Microseconds(213004)};
  return {.question = 7, .round = Round(2), .groups = {{"0", "default_pg", true, {row}}}};
}

hangs::SayAborts FilledAborts() {
  const hangs::Call call{.label = "default_pg",
                         .operation = FilledOperation(),
                         .ranks = {0, 1, 7},
                         .age = absl::Seconds(1)};
  return {.round = Round(4), .report = {{3}, {call}, {call}, {4, 5}}};
}

std::string WatchWords() {
  const auto form = [](const std::string& name, hangs::NodeWord word) {
    return Form<proto::WatchWord>(name, word);
  };
  return absl::StrCat(form("summary", FilledSummary()),
                      form("summary at rest", hangs::NodeSummary{Round(0)}),
                      form("details", FilledDetails()),
                      form("stacks", hangs::NodeStacks{6, Round(2), {FilledRankReport(3)}, true}),
                      form("aborted", hangs::RankAborted{Round(2), 5}),
                      form("last_calls", FilledLastCalls()), form("arrivals", FilledArrivals()));
}

std::string WatchOrders() {
  const auto form = [](const std::string& name, hangs::WatchOrder order) {
    return Form<proto::WatchOrder>(name, order);
  };
  return absl::StrCat(
      form("ask_details", hangs::AskDetails{3, Round(4)}),
      form("ask_stacks", hangs::AskStacks{3, Round(4), {5, 6}}),
      form("ask_arrivals", hangs::AskArrivals{3, Round(4)}),
      form("ask_last_calls", hangs::AskLastCalls{Round(4)}),
      form("notice", hangs::SayNotice{Round(4), hangs::Finding::kOutOfSight, "words", {5, 6}}),
      form("recovery", hangs::SayRecovery{Round(4), "words"}),
      form("slow", hangs::SaySlow{Round(4), true, "words"}), form("verdict", FilledVerdict()),
      form("aborts", FilledAborts()));
}

// --- What is more than is sent

FencedReport OverfullReport() {
  FencedReport report = FilledReport();
  WorkerFailure failure = FilledFailure();
  failure.message = std::string(1 << 17, 'm');
  failure.ended_by = std::string(1 << 17, 'e');
  failure.last_output = std::string(1 << 17, 'o') + "the end";
  failure.age = -absl::Seconds(1);
  report.report.failures.assign(kFailuresSent + 1, failure);
  report.report.unkillable_pids.assign(kMaxPortsPerNode + 1, 7);
  report.report.failed_pairs.assign(kMaxFailedPairs + 1, FailedPair{1, 2, PairFault::kMtu});
  return report;
}

hangs::NodeSummary OverfullSummary() {
  hangs::NodeSummary summary = FilledSummary();
  summary.silent.assign(hangs::kSilentRanksMax + 1, summary.silent[0]);
  summary.paces.own.assign(hangs::kPacesMax + 1, absl::Hours(9));
  summary.standing.text = std::string(hangs::kStandingBytesMax + 1, 's');
  summary.silence_at_start = -absl::Seconds(1);
  summary.progress.step = -1;
  return summary;
}

hangs::NodeDetails OverfullDetails() {
  hangs::NodeDetails details = FilledDetails();
  details.evidence.groups[0].name = std::string(kWatchedTextBytesMax + 1, 'g');
  for (int rank = 0; rank < 200; ++rank) {
    hangs::RankEvidence& added = details.evidence.ranks.emplace_back(FilledRank(rank));
    added.groups[0].operations.assign(rank == 20 ? 4000 : 300, FilledOperation());
  }
  details.evidence.ranks.push_back(FilledRank(500));
  hangs::Gathering scattered{.name = "barrier", .waiting = {0}};
  for (int rank = 1; rank < 2 * kRunsMax + 2; rank += 2) scattered.missing.push_back(rank);
  details.gatherings.assign(20, details.gatherings[0]);
  details.gatherings[1] = scattered;
  return details;
}

// Small ones behind the first that does not fit.
std::vector<hangs::RankReport> OverfullReports() {
  std::vector<hangs::RankReport> reports(3, FilledRankReport(1));
  hangs::RankReport large = FilledRankReport(2);
  large.frames.assign(60, std::string(kWatchedTextBytesMax + 1, 'f'));
  large.python.assign(60, std::string(kWatchedTextBytesMax + 1, 'p'));
  reports.insert(reports.end(), 30, large);
  reports.push_back(FilledRankReport(3));
  return reports;
}

hangs::SayVerdict OverfullVerdict() {
  hangs::SayVerdict verdict = FilledVerdict();
  verdict.ranks = OverfullReports();
  verdict.diagnosis.path.assign(100, std::string(kWatchedTextBytesMax + 1, 'p'));
  verdict.diagnosis.words = std::string(kWatchedTextBytesMax + 1, 'w');
  verdict.diagnosis.operation.reset();
  for (int rank = 0; rank < 4 * kRunsMax; rank += 2) verdict.to_end.push_back(rank);
  return verdict;
}

hangs::NodeLastCalls OverfullLastCalls() {
  hangs::NodeLastCalls calls = FilledLastCalls();
  for (int rank = 7; rank < 1000; ++rank) {
    calls.ranks.push_back({rank, absl::Seconds(1), {}});
    calls.ranks.back().calls.assign(hangs::kLastCallsMax, calls.ranks[0].calls[0]);
    calls.ranks.back().calls[0].group = std::string(rank % 10 == 0 ? 5000 : 2000, 'g');
  }
  return calls;
}

std::string Overfull() {
  hangs::NodeArrivals arrivals = FilledArrivals();
  arrivals.groups[0].rows.assign(100, arrivals.groups[0].rows[0]);
  arrivals.groups.assign(10, hangs::GroupArrivals(arrivals.groups[0]));
  hangs::SayAborts aborts = FilledAborts();
  aborts.report.last.assign(hangs::kSameCallsMax + 1, aborts.report.last[0]);
  EndJob end{FilledOutcome()};
  end.outcome.failures = std::vector<WorkerFailure>(kFailuresSent + 1, FilledFailure());
  InquiryAnswer answer = FilledAnswer();
  answer.status = absl::NotFoundError(std::string(kMaxTextBytes + 1, 'n'));
  answer.parts.assign(kInquiryPartsMax + 1, answer.parts[0]);
  const auto word = [](const std::string& name, hangs::NodeWord value) {
    return Print<proto::WatchWord>(name, value);
  };
  return absl::StrCat(
      Print<proto::Report>("overfull report", OverfullReport()),
      Print<proto::Directive>("overfull end_job", FilledDirective(end)),
      Print<proto::InquiryAnswer>("overfull inquiry_answer", answer),
      word("overfull summary", OverfullSummary()), word("overfull details", OverfullDetails()),
      word("overfull stacks", hangs::NodeStacks{6, Round(2), OverfullReports(), true}),
      word("overfull last_calls", OverfullLastCalls()), word("overfull arrivals", arrivals),
      Print<proto::WatchOrder>("overfull verdict", hangs::WatchOrder(OverfullVerdict())),
      Print<proto::WatchOrder>("overfull aborts", hangs::WatchOrder(aborts)));
}

constexpr char kFile[] = "link/wire_form.txt";

std::string AllForms() {
  return absl::StrCat(Form<proto::Report>("report", FilledReport()), Directives(), Inquiries(),
                      StoreMessages(), WatchWords(), WatchOrders(), Overfull());
}

TEST(MessagesOnTheWire, HaveTheFormThatIsWrittenDown) {
  EXPECT_EQ(AllForms(), testing::ReadFile(FormFile(kFile)))
      << "if this is meant, run wire_form_test --rewrite";
}

// An encoder is given values that are not its own.
TEST(MessagesOnTheWire, AreMadeOfValuesThatStayAsTheyAre) {
  const FencedReport report = FilledReport();
  Encoded<proto::Report>(report);
  EXPECT_EQ(report, FilledReport());
  const hangs::NodeSummary summary = FilledSummary();
  Encoded<proto::WatchWord>(hangs::NodeWord(summary));
  EXPECT_EQ(summary, FilledSummary());
  const Directive directive = FilledDirective(EndJob{FilledOutcome()});
  Encoded<proto::Directive>(directive);
  EXPECT_EQ(directive, FilledDirective(EndJob{FilledOutcome()}));
  const InquiryAnswer answer = FilledAnswer();
  Encoded<proto::InquiryAnswer>(answer);
  EXPECT_EQ(answer, FilledAnswer());
}

}  // namespace
}  // namespace muster::rendezvous

int main(int argc, char** argv) {
  using namespace muster::rendezvous;
  return RunFormTest(argc, argv, kFile, AllForms);
}
