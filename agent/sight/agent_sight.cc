#include "agent/sight/agent_sight.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/sight/log_reader.h"
#include "proto/base/version.h"
#include "rendezvous/status/figures.h"
#include "rendezvous/status/log_window.h"
#include "rendezvous/status/stacks.h"

namespace muster::agent {
namespace {

using RankReports = std::vector<hangs::RankReport>;
using status::Spent;

// Less than the server gives (TimeFor).
constexpr absl::Duration kLogsPatience = absl::Seconds(3);
// A rank that is silent for longer is worth a word.
constexpr absl::Duration kSilenceShown = absl::Seconds(3);

status::WayToJob WayOf(const JobSpec& spec) {
  return {.job = spec.run_id,
          .endpoint = spec.endpoint.port == 0 ? "" : ToString(spec.endpoint),
          .tls = spec.tls,
          .authentication = spec.authentication};
}

}  // namespace

AgentSight::AgentSight(asio::io_context& loop, Parts parts)
    : AgentSight(loop, std::move(parts), Lane("logs"), Lane("figures")) {}

// A file system may be stuck, or a driver.
AgentSight::AgentSight(asio::io_context& loop, Parts parts, const Lane& files, const Lane& figures)
    : parts_(std::move(parts)),
      diary_(loop, files,
             {.options = parts_.options, .roster = parts_.roster, .hang_watch = parts_.hang_watch}),
      health_(loop, [](const HttpRequest&, HttpDoor::Tell tell) { tell({.body = "alive\n"}); }),
      metrics_(loop, figures,
               {.figures = [this] { return FiguresHere(); },
                .ranks = [this] { return RanksHere(std::nullopt); },
                .kernel_lines = parts_.kernel_lines}),
      desk_(loop, MakeSources()),
      logs_(loop, files),
      followers_(loop),
      figures_(loop, figures) {}

void AgentSight::Close() {
  health_.Close();
  metrics_.Close();
  desk_.Close();
}

SightSources AgentSight::MakeSources() {
  return {
      .ask_server = [this](const Inquiry& inquiry) { parts_.link.SendInquiry(inquiry); },
      .tell_server = [this](const InquiryReply& reply) { parts_.link.SendInquiryReply(reply); },
      .own_page = [this](const std::string& why) { return status::ToJson(OwnPage(why)); },
      .way = [this] { return status::ToJson(WayOf(parts_.options.spec)); },
      .look = [this](const Inquiry& inquiry, auto then) { LookHere(inquiry, std::move(then)); }};
}

// What this node knows of it.
status::StatusPage AgentSight::OwnPage(const std::string& why) const {
  status::StatusPage page{.job = parts_.options.spec.run_id,
                          .told_by = absl::StrCat("the agent of ", parts_.options.node.name)};
  page.health = {.state = status::kWaiting, .text = why};
  page.nodes.min = parts_.options.spec.min_nodes;
  page.nodes.max = parts_.options.spec.max_nodes;
  page.restarts.max = parts_.options.spec.max_restarts;
  page.restarts.used = parts_.roster.assignment().restarts_used;
  const bool runs = parts_.core.phase() == NodePhase::kRunning;
  page.round = {.round = parts_.core.round().value(), .phase = runs ? "running" : "forming"};
  const std::string& unfit = parts_.core.check().failure();
  if (!unfit.empty()) {
    page.nodes.unfit = 1;
    page.members.push_back({.name = parts_.options.node.name, .state = "unfit", .check = unfit});
  }
  if (!runs) return page;
  page.round.num_nodes = parts_.roster.assignment().num_nodes;
  page.round.world_size = parts_.roster.assignment().world_size;
  page.nodes.running = 1;
  const hangs::NodeProgress progress = parts_.hang_watch.ranks().Progress();
  page.progress = {.step = progress.step,
                   .steps_per_second = progress.steps_per_second,
                   .slowest_rank = progress.slowest_rank,
                   .slowest_node = parts_.options.node.name,
                   .lag_steps = progress.step - progress.slowest_step};
  page.members.push_back({.name = parts_.options.node.name,
                          .node_rank = parts_.roster.assignment().node_rank.value(),
                          .first_rank = parts_.roster.assignment().first_rank.value(),
                          .num_ranks = parts_.roster.assignment().local_world_size,
                          .state = "running",
                          .step = progress.slowest_step});
  return page;
}

void AgentSight::LookHere(const Inquiry& inquiry, TellPart then) {
  InquiryPart part{.node = parts_.options.node.name,
                   .first_rank = parts_.roster.assignment().first_rank.value(),
                   .num_ranks = parts_.roster.assignment().local_world_size};
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

void AgentSight::TellStacks(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  parts_.hang_watch.LookAtRanks(inquiry.rank,
                                [part = std::move(part), bytes_max = inquiry.bytes_max,
                                 then = std::move(then)](const RankReports& ranks) mutable {
                                  part.body = status::ToJson(status::MakeStacks(ranks, bytes_max));
                                  then(std::move(part));
                                });
}

void AgentSight::TellLogs(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  absl::StatusOr<status::LogsAsk> ask = status::ParseLogsAsk(inquiry.detail);
  if (!ask.ok()) {
    part.status = ask.status();
    return then(std::move(part));
  }
  const LogFiles files{.run_directory = parts_.options.run_directory,
                       .first_rank = part.first_rank,
                       .num_ranks = part.num_ranks,
                       .attempt = parts_.roster.assignment().restart_count};
  std::optional<uint64_t> look;
  if (ask->follows) look = followers_.OnLook(MonoNow());
  using Read = absl::StatusOr<status::LogsOfNode>;
  logs_.Run<Read>(
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
        if (look) followers_.OnShown(*look, !has_more);
      });
}

std::vector<status::RankFigures> AgentSight::RanksHere(std::optional<int> only) const {
  std::vector<status::RankFigures> ranks;
  for (const WatchedRank& watched : parts_.hang_watch.WatchedRanks()) {
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

void AgentSight::TellFigures(const Inquiry& inquiry, InquiryPart part, TellPart then) {
  const std::vector<status::RankFigures> ranks = RanksHere(inquiry.rank);
  figures_.Run<status::FiguresOfNode>(
      kFiguresPatience,
      [reader = reader_, ranks, lines = parts_.kernel_lines()] {
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

AgentFigures AgentSight::FiguresHere() const {
  AgentFigures figures{.version = std::string(Version()),
                       .run_id = parts_.options.spec.run_id,
                       .node = parts_.options.node.name,
                       .spent = diary_.diary().spent(),
                       .counts = diary_.diary().counts(),
                       .restarts_used = parts_.roster.assignment().restarts_used,
                       .restarts_max = parts_.options.spec.max_restarts,
                       .steps_per_second = parts_.hang_watch.ranks().Progress().steps_per_second};
  const MonoTime now = MonoNow();
  for (const Spent spent : status::kAllSpent) {
    figures.spent_seconds[static_cast<size_t>(spent)] =
        absl::ToDoubleSeconds(diary_.diary().SpentOn(spent, now));
  }
  return figures;
}

}  // namespace muster::agent
