#include "launcher/sight/status_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "proto/base/exit_codes.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using status::HealthOfJob;
using status::NodeOfJob;
using status::StatusPage;

constexpr size_t kNodesShown = 10;
constexpr int kNameColumns = 24;

std::string HealthLine(const std::string& job, const HealthOfJob& health) {
  const std::string since =
      health.for_seconds < 0 ? "" : absl::StrCat(" for ", ShortTime(health.for_seconds));
  // "waiting for 1 more of 2 nodes" says its state itself.
  if (absl::StartsWith(health.text, absl::StrCat(health.state, " "))) {
    return ForTerminal(absl::StrCat(job, ": ", health.text, since.empty() ? "" : ",", since));
  }
  return ForTerminal(
      absl::StrCat(job, ": ", health.state, since, health.text.empty() ? "" : ": ", health.text));
}

std::string Nodes(int count) { return absl::StrCat(count, count == 1 ? " node" : " nodes"); }

std::string RoundLine(const StatusPage& page) {
  if (page.round.round < 0) return "";
  std::string line = absl::StrCat("round ", page.round.round, ", ", page.round.phase);
  if (page.round.for_seconds >= 0) {
    absl::StrAppend(&line, " for ", ShortTime(page.round.for_seconds));
  }
  if (page.round.num_nodes > 0) {
    absl::StrAppend(&line, ": ", page.nodes.running, " of ", Nodes(page.round.num_nodes), " run ",
                    page.round.world_size, page.round.world_size == 1 ? " rank" : " ranks");
  }
  return line;
}

std::string NodesLine(const StatusPage& page) {
  const std::string wanted = page.nodes.min == page.nodes.max
                                 ? absl::StrCat(page.nodes.max)
                                 : absl::StrCat(page.nodes.min, " to ", page.nodes.max);
  std::string line = absl::StrCat("nodes wanted: ", wanted);
  const auto add = [&line](int count, const char* what) {
    if (count > 0) absl::StrAppend(&line, ", ", count, " ", what);
  };
  add(page.nodes.joined, page.round.phase == "running" ? "spare" : "joined");
  add(page.nodes.held_back, "held back");
  add(page.nodes.draining, "draining");
  add(page.nodes.lost, "lost");
  add(page.nodes.unfit, "unfit");
  absl::StrAppend(&line, "; restarts: ", page.restarts.used, " of ", page.restarts.max, " used");
  if (page.restarts.for_other_nodes > 0) {
    absl::StrAppend(&line, ", ", page.restarts.for_other_nodes, " for nodes that came or went");
  }
  return line;
}

std::string ProgressLine(const StatusPage& page) {
  const status::ProgressOfJob& progress = page.progress;
  if (progress.step < 0) return "";
  std::string line = absl::StrCat("step ", progress.step);
  if (progress.steps_per_second >= 0) {
    absl::StrAppend(&line, absl::StrFormat(", %.3g/s", progress.steps_per_second));
  }
  if (progress.lag_steps > 0) {
    absl::StrAppend(&line, "; slowest: rank ", progress.slowest_rank, " on ", progress.slowest_node,
                    ", ", progress.lag_steps, progress.lag_steps == 1 ? " step" : " steps",
                    " behind");
  }
  if (progress.committed_step >= 0) {
    absl::StrAppend(&line, "; checkpoint of step ", progress.committed_step);
  }
  return line;
}

std::string Number(int64_t value) { return value < 0 ? "-" : absl::StrCat(value); }

std::string NodeLine(const NodeOfJob& node) {
  std::string line = absl::StrFormat(
      "  %-24s %-11s %-9s %6s %9s", ForTerminal(node.name.substr(0, kNameColumns)),
      RankRange(node.first_rank, node.num_ranks), ForTerminal(node.state),
      node.lease_seconds < 0 ? "-" : ShortTime(node.lease_seconds), Number(node.step));
  if (node.silent_rank >= 0) {
    absl::StrAppend(&line, "  rank ", node.silent_rank, " silent ", ShortTime(node.silent_seconds));
  }
  return line;
}

// Those that do not simply run come first, then the silent, then the slowest.
std::vector<NodeOfJob> MostTelling(std::vector<NodeOfJob> nodes) {
  if (nodes.size() <= kNodesShown) return nodes;
  const auto rank_of = [](const NodeOfJob& node) {
    return node.state != "running" ? 0 : node.silent_rank >= 0 ? 1 : 2;
  };
  std::stable_sort(nodes.begin(), nodes.end(), [&](const NodeOfJob& a, const NodeOfJob& b) {
    const int left = rank_of(a), right = rank_of(b);
    return left != right ? left < right : a.step < b.step;
  });
  nodes.resize(kNodesShown);
  return nodes;
}

void AddLine(const std::string& line, std::string& out) {
  if (!line.empty())
    absl::StrAppend(&out, "  ", Wrapped(ForTerminal(line), kTextColumns - 2, "    "), "\n");
}

int Urgency(int exit_code) {
  switch (exit_code) {
    case 0:
      return 0;
    case kExitJobEnded:
      return 1;
    case kExitJobWaits:
      return 2;
    case kExitJobHangs:
      return 3;
    default:
      return 4;
  }
}

}  // namespace

std::string ShortTime(double seconds) {
  // A hostile or broken page may say anything.
  const double bounded = std::clamp(seconds, 0.0, 1e9);
  const auto whole = static_cast<int64_t>(bounded);
  if (bounded < 10 && bounded != static_cast<double>(whole))
    return absl::StrFormat("%.1fs", bounded);
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrCat(whole / 60, "m", whole % 60, "s");
  if (whole < 86400) return absl::StrCat(whole / 3600, "h", whole / 60 % 60, "m");
  return absl::StrCat(whole / 86400, "d", whole / 3600 % 24, "h");
}

std::string Wrapped(const std::string& text, size_t width, const std::string& indent) {
  std::string out;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    if (column > 0 && column + 1 + word.size() > width) {
      absl::StrAppend(&out, "\n", indent, word);
      column = indent.size() + word.size();
    } else {
      absl::StrAppend(&out, column == 0 ? "" : " ", word);
      column += word.size() + (column == 0 ? 0 : 1);
    }
  }
  return out;
}

std::string RankRange(int first_rank, int num_ranks) {
  if (first_rank < 0 || num_ranks <= 0) return "-";
  if (num_ranks == 1) return absl::StrCat(first_rank);
  return absl::StrCat(first_rank, "-", int64_t{first_rank} + num_ranks - 1);
}

std::string StatusText(const StatusPage& page) {
  std::string out =
      Wrapped(absl::StrCat("job ", HealthLine(page.job, page.health)), kTextColumns, "    ") + "\n";
  AddLine(RoundLine(page), out);
  if (page.nodes.max > 0) AddLine(NodesLine(page), out);
  AddLine(ProgressLine(page), out);
  if (!page.last_incident.text.empty()) {
    AddLine(absl::StrCat("last incident, ", ShortTime(page.last_incident.ago_seconds),
                         " ago: ", page.last_incident.text),
            out);
  }
  const std::vector<NodeOfJob> shown = MostTelling(page.members);
  if (!shown.empty()) {
    absl::StrAppend(&out, absl::StrFormat("  %-24s %-11s %-9s %6s %9s\n", "NODE", "RANKS", "STATE",
                                          "LEASE", "STEP"));
  }
  for (const NodeOfJob& node : shown) {
    absl::StrAppend(&out, NodeLine(node), "\n");
    if (!node.check.empty()) {
      const std::string why = Wrapped(ForTerminal(node.check), kTextColumns - 4, "    ");
      absl::StrAppend(&out, "    ", why, "\n");
    }
  }
  const size_t more = page.members.size() - shown.size() + page.members_left_out;
  if (more > 0) absl::StrAppend(&out, "  and ", Nodes(static_cast<int>(more)), " more\n");
  if (page.told_by != "the rendezvous") {
    absl::StrAppend(&out, "  told by ", ForTerminal(page.told_by), "\n");
  }
  return out;
}

std::string JobListText(const status::JobList& list) {
  std::string out;
  for (const status::JobLine& job : list.jobs) {
    absl::StrAppend(&out, HealthLine(job.job, job.health));
    if (job.world_size > 0) {
      absl::StrAppend(&out, " (", Nodes(job.num_nodes), ", ", job.world_size,
                      job.world_size == 1 ? " rank" : " ranks",
                      job.step < 0 ? "" : absl::StrCat(", step ", job.step), ")");
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

int ExitCodeOfHealth(const HealthOfJob& health) {
  if (health.state == status::kHealthy) return 0;
  if (health.state == status::kWaiting) return kExitJobWaits;
  if (health.state == status::kHung) return kExitJobHangs;
  if (health.state == status::kEnded) return kExitJobEnded;
  return kExitJobFailed;
}

int ExitCodeOfWorst(const status::JobList& list) {
  int worst = 0;
  for (const status::JobLine& job : list.jobs) {
    const int code = ExitCodeOfHealth(job.health);
    if (Urgency(code) > Urgency(worst)) worst = code;
  }
  return worst;
}

}  // namespace muster::launcher
