#include "launcher/sight/top_screen.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/sight/status_text.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

using status::FiguresOfNode;
using status::GpuFigures;
using status::RankFigures;

struct RankRow {
  std::string node;
  RankFigures rank;
  GpuFigures gpu;  // the first that it uses
  bool has_gpu = false;
  int64_t lag = -1;
};

struct RankRows {
  std::vector<RankRow> rows;
  std::vector<InquiryPart> unanswered;
  double cpu_percent = 0;  // of all nodes that tell
  int num_nodes = 0;
};

const GpuFigures* Find(const std::vector<GpuFigures>& gpus, int index) {
  for (const GpuFigures& gpu : gpus) {
    if (gpu.index == index) return &gpu;
  }
  return nullptr;
}

RankRows MakeRows(const std::vector<InquiryPart>& parts) {
  RankRows out;
  for (const InquiryPart& part : parts) {
    absl::StatusOr<FiguresOfNode> figures =
        part.status.ok() ? status::ParseFigures(part.body) : part.status;
    if (!figures.ok()) {
      out.unanswered.push_back(part);
      out.unanswered.back().status = figures.status();
      continue;
    }
    ++out.num_nodes;
    out.cpu_percent += std::max(0.0, figures->node.cpu_percent);
    for (RankFigures& rank : figures->ranks) {
      // A node speaks for its own ranks alone.
      if (rank.rank < part.first_rank || rank.rank - part.first_rank >= part.num_ranks) continue;
      RankRow row{.node = ForTerminal(part.node), .rank = std::move(rank)};
      for (const int index : row.rank.gpus) {
        const GpuFigures* const gpu = Find(figures->gpus, index);
        if (gpu == nullptr || row.has_gpu) continue;
        row.gpu = *gpu;
        row.has_gpu = true;
      }
      out.rows.push_back(std::move(row));
    }
  }
  int64_t furthest = -1;
  for (const RankRow& row : out.rows) furthest = std::max(furthest, row.rank.step);
  for (RankRow& row : out.rows) {
    if (row.rank.step >= 0) row.lag = furthest - row.rank.step;
  }
  return out;
}

bool IsShown(const RankRow& row, const std::string& filter) {
  return filter.empty() || absl::StrContains(row.node, filter) ||
         filter == absl::StrCat(row.rank.rank);
}

void Sort(TopSort sort, std::vector<RankRow>& rows) {
  // Smaller is first.
  const auto key = [sort](const RankRow& row) -> std::pair<double, double> {
    switch (sort) {
      case TopSort::kLag:
        return {-static_cast<double>(row.lag), -row.rank.silent_seconds};
      case TopSort::kCpu:
        return {-row.rank.cpu_percent, 0};
      case TopSort::kGpu:  // one that does little is what is looked for
        return {row.has_gpu ? row.gpu.busy_percent : 1000, 0};
      case TopSort::kMemory:
        return {-static_cast<double>(row.rank.memory_mib), 0};
      case TopSort::kRank:
        break;
    }
    return {0, 0};
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const RankRow& a, const RankRow& b) {
    return std::tuple(key(a), a.rank.rank) < std::tuple(key(b), b.rank.rank);
  });
}

std::string Rounded(double value) {
  return value < 0 ? "-" : absl::StrFormat("%.0f", std::min(value, 1e6));
}

// "512M", "80G".
std::string Memory(int64_t mib) {
  if (mib < 0) return "-";
  if (mib < 10000) return absl::StrCat(mib, "M");
  return absl::StrCat((mib + 512) / 1024, "G");
}

std::string NoteOf(const RankRow& row) {
  if (row.rank.pid == 0) return "ended";
  std::vector<std::string> notes;
  if (!row.gpu.fault.empty()) notes.push_back(ForTerminal(row.gpu.fault));
  if (row.rank.silent_seconds >= 0) {
    notes.push_back(absl::StrCat(ShortTime(row.rank.silent_seconds), " silent"));
  }
  if (!row.gpu.slowed_by.empty()) {
    notes.push_back(absl::StrCat("slowed: ", ForTerminal(row.gpu.slowed_by)));
  }
  if (row.rank.gpus.size() > 1) notes.push_back(absl::StrCat(row.rank.gpus.size(), " GPUs"));
  if (!row.rank.doing.empty()) notes.push_back(ForTerminal(row.rank.doing));
  std::string text;
  for (const std::string& note : notes) absl::StrAppend(&text, text.empty() ? "" : ", ", note);
  return text;
}

constexpr char kHeading[] =
    " RANK NODE          STEP   LAG PHASE    CPU%    MEM GPU%   GMEM    W  C  MHZ NOTE";

std::string LineOf(const RankRow& row) {
  return absl::StrFormat("%5d %-10s %7s %5s %-8s %4s %6s %4s %6s %4s %2s %4s %s", row.rank.rank,
                         row.node.substr(0, 10), Rounded(static_cast<double>(row.rank.step)),
                         Rounded(static_cast<double>(row.lag)),
                         row.rank.phase.empty() ? "-" : ForTerminal(row.rank.phase).substr(0, 8),
                         Rounded(row.rank.cpu_percent), Memory(row.rank.memory_mib),
                         Rounded(row.gpu.busy_percent), Memory(row.gpu.memory_used_mib),
                         Rounded(row.gpu.power_watts), Rounded(row.gpu.celsius),
                         Rounded(row.gpu.sm_mhz), NoteOf(row));
}

std::string HealthLine(const status::StatusPage& page) {
  std::string line = absl::StrCat("job ", ForTerminal(page.job), ": ", page.health.state);
  if (page.health.for_seconds >= 0) {
    absl::StrAppend(&line, " for ", ShortTime(page.health.for_seconds));
  }
  if (!page.health.text.empty()) absl::StrAppend(&line, ": ", ForTerminal(page.health.text));
  return line;
}

std::string SumLine(const RankRows& rows, const status::StatusPage& page) {
  std::string line = absl::StrCat("round ", page.round.round, ", ", rows.num_nodes,
                                  rows.num_nodes == 1 ? " node, " : " nodes, ", rows.rows.size(),
                                  rows.rows.size() == 1 ? " rank" : " ranks");
  if (page.progress.step >= 0) absl::StrAppend(&line, "; step ", page.progress.step);
  if (page.progress.steps_per_second >= 0) {
    absl::StrAppend(&line, absl::StrFormat(", %.3g/s", page.progress.steps_per_second));
  }
  if (rows.num_nodes > 0) {
    absl::StrAppend(&line,
                    absl::StrFormat("; CPUs %.0f %% busy", rows.cpu_percent / rows.num_nodes));
  }
  return line;
}

}  // namespace

const char* NameOf(TopSort sort) {
  switch (sort) {
    case TopSort::kLag:
      return "lag";
    case TopSort::kRank:
      return "rank";
    case TopSort::kCpu:
      return "cpu";
    case TopSort::kGpu:
      return "gpu";
    case TopSort::kMemory:
      return "memory";
  }
  return "";
}

TopSort Next(TopSort sort) {
  return sort == TopSort::kMemory ? TopSort::kLag
                                  : static_cast<TopSort>(static_cast<int>(sort) + 1);
}

std::string TopScreen(const TopFigures& figures, const TopView& view) {
  RankRows rows = MakeRows(figures.parts);
  std::vector<std::string> head = {HealthLine(figures.page), SumLine(rows, figures.page)};
  if (!figures.trouble.empty()) head.push_back(ForTerminal(figures.trouble));
  for (size_t i = 0; i < rows.unanswered.size() && i < 2; ++i) {
    const InquiryPart& part = rows.unanswered[i];
    head.push_back(absl::StrCat(ForTerminal(part.node), ": ", ForTerminal(part.status.message())));
  }
  if (rows.unanswered.size() > 2) {
    head.push_back(absl::StrCat("and ", rows.unanswered.size() - 2, " nodes more do not answer"));
  }
  head.emplace_back(kHeading);
  std::vector<RankRow> shown;
  for (RankRow& row : rows.rows) {
    if (IsShown(row, view.filter)) shown.push_back(std::move(row));
  }
  Sort(view.sort, shown);
  const std::string foot =
      !view.typing.empty()
          ? view.typing
          : absl::StrCat("q quit  s sort: ", NameOf(view.sort),
                         "  f filter: ", view.filter.empty() ? "none" : ForTerminal(view.filter));
  std::vector<std::string> lines = std::move(head);
  const size_t room = view.lines > lines.size() + 1 ? view.lines - lines.size() - 1 : 0;
  const bool has_end = view.lines > 0;
  for (size_t i = 0; i < shown.size() && (!has_end || i < room); ++i) {
    lines.push_back(LineOf(shown[i]));
  }
  if (has_end) lines.push_back(foot);
  std::string out;
  for (size_t i = 0; i < lines.size() && (!has_end || i < view.lines); ++i) {
    absl::StrAppend(&out, absl::string_view(lines[i]).substr(0, view.columns), "\n");
  }
  return out;
}

}  // namespace muster::launcher
