// What people see of this node: what its agent tells of itself, and of its workers.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/agent.h"
#include "agent/sight/log_reader.h"
#include "proto/base/version.h"
#include "proto/io/metrics_token.h"
#include "rendezvous/status/diary.h"
#include "rendezvous/status/figures.h"
#include "rendezvous/status/log_window.h"
#include "rendezvous/status/metrics_text.h"
#include "rendezvous/status/stacks.h"
#include "rendezvous/status/status_page.h"

namespace muster::agent {
namespace {

using RankReports = std::vector<verdict::RankReport>;
using status::Spent;

// Less than the server gives (TimeFor).
constexpr absl::Duration kLogsPatience = absl::Seconds(3);
constexpr absl::Duration kFiguresPatience = absl::Milliseconds(1500);
// From then on a rank that says nothing is worth a word.
constexpr absl::Duration kSilenceShown = absl::Seconds(3);

}  // namespace

SightSources Agent::MakeSightSources() {
  return {
      .ask_server = [this](const Inquiry& inquiry) { link_->SendInquiry(inquiry); },
      .tell_server = [this](const InquiryReply& reply) { link_->SendInquiryReply(reply); },
      .own_page = [this](const std::string& why) { return status::ToJson(OwnPage(why)); },
      .look = [this](const Inquiry& inquiry, auto then) { LookHere(inquiry, std::move(then)); }};
}

// What this node knows of it.
status::StatusPage Agent::OwnPage(const std::string& why) const {
  status::StatusPage page{.job = options_.spec.run_id,
                          .told_by = absl::StrCat("the agent of ", options_.node.name)};
  page.health = {.state = status::kWaiting, .text = why};
  page.nodes.min = options_.spec.min_nodes;
  page.nodes.max = options_.spec.max_nodes;
  page.restarts.max = options_.spec.max_restarts;
  page.restarts.used = assignment().restarts_used;
  const bool runs = core().phase() == NodePhase::kRunning;
  page.round = {.round = core().round().value(), .phase = runs ? "running" : "forming"};
  if (!runs) return page;
  page.round.num_nodes = assignment().num_nodes;
  page.round.world_size = assignment().world_size;
  page.nodes.running = 1;
  const verdict::NodeProgress progress = hang_watch_.Progress();
  page.progress = {.step = progress.step,
                   .steps_per_second = progress.steps_per_second,
                   .slowest_rank = progress.slowest_rank,
                   .slowest_node = options_.node.name,
                   .lag_steps = progress.step - progress.slowest_step};
  page.members.push_back({.name = options_.node.name,
                          .node_rank = assignment().node_rank.value(),
                          .first_rank = assignment().first_rank.value(),
                          .num_ranks = assignment().local_world_size,
                          .state = "running",
                          .step = progress.slowest_step});
  return page;
}

void Agent::LookHere(const Inquiry& inquiry, TellPart then) {
  InquiryPart part{.node = options_.node.name,
                   .first_rank = assignment().first_rank.value(),
                   .num_ranks = assignment().local_world_size};
  switch (inquiry.kind) {
    case InquiryKind::kStacks:
      return TellStacks(inquiry, std::move(part), std::move(then));
    case InquiryKind::kLogs:
      return TellLogs(inquiry, std::move(part), std::move(then));
    case InquiryKind::kFigures:
      return TellFigures(inquiry, std::move(part), std::move(then));
    default:
      part.status = absl::UnimplementedError("its muster is too old for this question");
      then(std::move(part));
  }
}

void Agent::TellStacks(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  hang_watch_.LookAtRanks(inquiry.rank, [part = std::move(part), bytes_max = inquiry.bytes_max,
                                         then = std::move(then)](const RankReports& ranks) mutable {
    part.body = status::ToJson(status::MakeStacks(ranks, bytes_max));
    then(std::move(part));
  });
}

void Agent::TellLogs(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  absl::StatusOr<status::LogsAsk> ask = status::ParseLogsAsk(inquiry.detail);
  if (!ask.ok()) {
    part.status = ask.status();
    return then(std::move(part));
  }
  const LogFiles files{.run_directory = options_.run_directory,
                       .first_rank = part.first_rank,
                       .num_ranks = part.num_ranks,
                       .attempt = assignment().restart_count};
  std::optional<uint64_t> look;
  if (ask->follows) look = sight_.log_followers.OnLook(MonoNow());
  using Read = absl::StatusOr<status::LogsOfNode>;
  sight_.logs.Run<Read>(
      kLogsPatience,
      [files, ask = *std::move(ask), rank = inquiry.rank, bytes_max = inquiry.bytes_max] {
        return ReadLogs(files, ask, rank, bytes_max);
      },
      [this, part = std::move(part), look,
       then = std::move(then)](std::optional<Read> read) mutable {
        const bool has_more = read && read->ok() && !(*read)->ShowsAll();
        if (!read) {
          part.status =
              absl::DeadlineExceededError("the file system of its log files does not answer");
        } else if (read->ok()) {
          part.body = status::ToJson(**read);
        } else {
          part.status = read->status();
        }
        then(std::move(part));
        if (look) sight_.log_followers.OnShown(*look, !has_more);
      });
}

std::vector<status::RankFigures> Agent::RanksHere(std::optional<int> only) {
  std::vector<status::RankFigures> ranks;
  for (const WatchedRank& watched : hang_watch_.WatchedRanks()) {
    if (only && *only != watched.rank) continue;
    const bool is_marked = watched.board.pid != 0;
    const bool is_silent = watched.silent_for >= kSilenceShown;
    ranks.push_back({.rank = watched.rank,
                     .pid = watched.pid,
                     .phase = is_marked ? std::string(ToString(watched.board.phase)) : "",
                     .step = watched.board.step.value_or(-1),
                     .silent_seconds = is_silent ? absl::ToDoubleSeconds(watched.silent_for) : -1,
                     .waited_seconds = is_marked ? absl::ToDoubleSeconds(watched.board.waited) : -1,
                     .doing = watched.doing});
  }
  return ranks;
}

void Agent::TellFigures(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  const std::vector<status::RankFigures> ranks = RanksHere(inquiry.rank);
  sight_.figures.Run<status::FiguresOfNode>(
      kFiguresPatience,
      [reader = sight_.reader, ranks, lines = exits_.KernelLines()] {
        return reader->Read(ranks, lines, MonoNow());
      },
      [part = std::move(part), ranks, bytes_max = inquiry.bytes_max,
       then = std::move(then)](std::optional<status::FiguresOfNode> figures) mutable {
        if (!figures) figures = status::FiguresOfNode{.ranks = ranks};
        status::FitFigures(bytes_max, *figures);
        part.body = status::ToJson(*figures);
        then(std::move(part));
      });
}

// --- Metrics

absl::StatusOr<int> Agent::ServeMetrics(const Endpoint& at, std::string token) {
  sight_.metrics_token = std::move(token);
  return sight_.metrics.Listen(at.host, at.port);
}

AgentFigures Agent::FiguresHere() const {
  AgentFigures figures{.version = std::string(Version()),
                       .run_id = options_.spec.run_id,
                       .node = options_.node.name,
                       .spent = sight_.diary.spent(),
                       .counts = sight_.diary.counts(),
                       .restarts_used = assignment().restarts_used,
                       .restarts_max = options_.spec.max_restarts,
                       .steps_per_second = hang_watch_.Progress().steps_per_second};
  const MonoTime now = MonoNow();
  for (const Spent spent : status::kAllSpent) {
    figures.spent_seconds[static_cast<size_t>(spent)] =
        absl::ToDoubleSeconds(sight_.diary.SpentOn(spent, now));
  }
  return figures;
}

// What is read of the kernel and the driver, and the text, are made aside.
void Agent::TellMetrics(const HttpRequest& request, HttpDoor::Tell tell) {
  if (request.path != "/metrics") {
    return tell({.status = 404, .body = "metrics are at /metrics\n"});
  }
  if (!sight_.metrics_token.empty() && !IsBearerOf(request.authorization, sight_.metrics_token)) {
    return tell({.status = 401,
                 .challenge = "Bearer",
                 .body = "this needs the token that `muster metrics_token` prints\n"});
  }
  sight_.figures.Run<std::string>(
      kFiguresPatience,
      [reader = sight_.metrics_reader, ranks = RanksHere(std::nullopt), figures = FiguresHere(),
       lines = exits_.KernelLines()]() mutable {
        figures.of_node = reader->Read(ranks, lines, MonoNow());
        return AgentMetrics(figures);
      },
      [this, tell = std::move(tell)](std::optional<std::string> text) mutable {
        // A driver is stuck: what needs none is told.
        if (!text) text = AgentMetrics(FiguresHere());
        tell({.content_type = status::kMetricsContentType, .body = *std::move(text)});
      });
}

// --- The diary

// Where logs are kept: a folder that is removed with the job needs none.
void Agent::BeginDiary() {
  if (!options_.run_directory_is_temporary) sight_.diary_file.Open(options_.run_directory);
  sight_.diary.Begin({.text = absl::StrCat("muster ", Version()),
                      .run_id = options_.spec.run_id,
                      .node = options_.node.name,
                      .shape = {.num_nodes = options_.spec.max_nodes,
                                .num_ranks = options_.node.local_world_size}},
                     NowByBothClocks());
  if (!options_.run_directory_is_temporary) AwaitNextSteps();
}

void Agent::AwaitNextSteps() {
  const absl::Duration pause = sight_.diary.PauseBetweenSteps(MonoNow());
  sight_.next_steps.expires_after(absl::ToChronoMilliseconds(pause));
  sight_.next_steps.async_wait([this](const asio::error_code& error) {
    if (error) return;
    const Spent spent = sight_.diary.spent();
    if (spent == Spent::kRunning || spent == Spent::kHung) NoteSteps();
    AwaitNextSteps();
  });
}

void Agent::KeepDiary() {
  const auto spent = [this] {
    switch (core().phase()) {
      case NodePhase::kIdle:
      case NodePhase::kReserving:
      case NodePhase::kJoining:
        return Spent::kForming;
      case NodePhase::kRunning:
        if (round_.is_starting()) return Spent::kPreparing;
        return hang_watch_.IsSomebodyAwaited() ? Spent::kHung : Spent::kRunning;
      case NodePhase::kWaiting:
        return Spent::kWaiting;
      case NodePhase::kStopping:
        return Spent::kStopping;
      case NodePhase::kReporting:
      case NodePhase::kDone:
        return Spent::kEnding;
    }
    return Spent::kForming;
  }();
  const Spent before = sight_.diary.spent();
  const bool ran = before == Spent::kRunning || before == Spent::kHung;
  if (ran && spent != Spent::kRunning && spent != Spent::kHung) NoteSteps();
  sight_.diary.TurnTo(spent, NowByBothClocks());
}

void Agent::NoteRound() {
  sight_.starts = {};
  sight_.diary.Note({.what = status::kRound,
                     .round = assignment().round.value(),
                     .restart_count = assignment().restart_count,
                     .text = assignment().reason,
                     .shape = {.num_nodes = assignment().num_nodes,
                               .first_rank = assignment().first_rank.value(),
                               .num_ranks = assignment().local_world_size,
                               .world_size = assignment().world_size}},
                    NowByBothClocks());
}

void Agent::NoteStart(int status::WorkerStarts::*how) {
  sight_.starts.*how += 1;
  if (sight_.starts.sum() != assignment().local_world_size) return;
  const bool is_again = assignment().restart_count > 0 && sight_.starts.fresh > 0;
  sight_.diary.Note({.what = status::kStarted,
                     .round = assignment().round.value(),
                     .text = is_again ? round_.before_workers().warm().why_afresh() : "",
                     .starts = sight_.starts},
                    NowByBothClocks());
}

void Agent::NoteFailure(const WorkerFailure& failure) {
  sight_.diary.Note({.what = status::kFailure,
                     .round = assignment().round.value(),
                     .rank = failure.rank.value(),
                     .exit_code = failure.signal == 0 ? failure.exit_code : -1,
                     .signal = failure.signal,
                     .text = failure.ended_by.empty() ? failure.message : failure.ended_by},
                    NowByBothClocks());
}

void Agent::NoteSteps() {
  status::DiaryEntry entry{.what = status::kSteps, .round = assignment().round.value()};
  int rank = assignment().first_rank.value();
  for (const int64_t step : hang_watch_.Steps()) {
    if (step >= 0) entry.steps.push_back({.rank = rank, .step = step});
    ++rank;
  }
  sight_.diary.Note(std::move(entry), NowByBothClocks());
}

void Agent::OnSaidByWatch(WatchEvent event, const std::string& text) {
  const char* const what = event == WatchEvent::kNotice    ? status::kNotice
                           : event == WatchEvent::kVerdict ? status::kVerdict
                           : event == WatchEvent::kGoesOn  ? status::kGoesOn
                           : event == WatchEvent::kSlow    ? status::kSlow
                                                           : status::kAbort;
  sight_.diary.Note({.what = what, .round = assignment().round.value(), .text = text},
                    NowByBothClocks());
  KeepDiary();
}

void Agent::EndDiary(const JobOutcome& outcome) {
  sight_.diary.End({.rank = outcome.root_cause ? outcome.root_cause->rank.value() : -1,
                    .exit_code = outcome.exit_code,
                    .text = outcome.reason},
                   NowByBothClocks());
}

}  // namespace muster::agent
