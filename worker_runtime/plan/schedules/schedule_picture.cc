#include "worker_runtime/plan/schedules/schedule_picture.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::plan {
namespace {

// The largest span that divides all times.
int64_t UnitOf(const ScheduleProof& proof) {
  int64_t unit = 0;
  for (const std::vector<PlacedPass>& of_rank : proof.passes) {
    for (const PlacedPass& placed : of_rank) {
      unit = std::gcd(unit, std::gcd(placed.begin, placed.end));
    }
  }
  return std::max<int64_t>(unit, 1);
}

// Which of its rank's stages a pass is of: "", or "a", "b", ... where there are several.
std::string TurnOf(const Schedule& schedule, int stage) {
  if (schedule.stages_per_rank() == 1) return "";
  const int rank = schedule.rank_of_stage[stage];
  const auto turn =
      std::count(schedule.rank_of_stage.begin(), schedule.rank_of_stage.begin() + stage, rank);
  return turn < 26 ? std::string(1, static_cast<char>('a' + turn)) : "z";
}

std::string LabelOf(const Schedule& schedule, const StagePass& pass) {
  return absl::StrCat(std::string(1, LetterOf(pass.kind)), pass.micro_batch,
                      TurnOf(schedule, pass.stage));
}

const char* ColorOf(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return "#8fb8de";
    case PassKind::kBackward:
      return "#7fc29b";
    case PassKind::kInputGradient:
      return "#f2c572";
    case PassKind::kWeightGradient:
      return "#c9a0dc";
  }
  return "#ffffff";
}

}  // namespace

std::string DrawText(const Schedule& schedule, const ScheduleProof& proof) {
  const int64_t unit = UnitOf(proof);
  const int64_t cells = std::min(proof.end / unit, kMostCells);
  const size_t width = absl::StrCat("F", schedule.micro_batches - 1).size() +
                       (schedule.stages_per_rank() > 1 ? 1 : 0);
  std::string text;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::string line;
    const auto fill_to = [&](int64_t cell) {
      for (int64_t c = static_cast<int64_t>(line.size() / (width + 1)); c < cell; ++c) {
        line += "." + std::string(width, ' ');
      }
    };
    for (const PlacedPass& placed : proof.passes[rank]) {
      const int64_t begin = placed.begin / unit;
      const int64_t end = std::min(placed.end / unit, cells);
      if (begin >= cells) break;
      fill_to(begin);
      std::string drawn = LabelOf(schedule, placed.pass);
      drawn.resize(width, ' ');
      if (end - begin > 1) drawn.resize(static_cast<size_t>(end - begin) * (width + 1) - 1, '=');
      line += drawn + " ";
    }
    fill_to(cells);
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppendFormat(&text, "rank %-3d %s\n", rank, line);
  }
  if (cells < proof.end / unit) {
    absl::StrAppend(&text, "(the first ", cells, " of ", proof.end / unit,
                    " units of time; as SVG all are drawn)\n");
  }
  return text;
}

std::string DrawSvg(const Schedule& schedule, const ScheduleProof& proof) {
  constexpr int64_t kCell = 28;
  constexpr int64_t kRow = 26;
  constexpr int64_t kLeft = 60;
  constexpr int64_t kTop = 30;
  const int64_t unit = UnitOf(proof);
  const int64_t width = kLeft + proof.end / unit * kCell + 10;
  const int64_t height = kTop + schedule.num_ranks() * kRow + 10;
  std::string svg = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
      "\" font-family=\"sans-serif\" font-size=\"11\">\n<text x=\"8\" y=\"18\">", schedule.name,
      ", ", schedule.num_ranks(), " ranks, ", schedule.num_stages(), " stages, ",
      schedule.micro_batches, " micro-batches, idle ", ToString(proof.idle_share()), "</text>\n");
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const int64_t y = kTop + rank * kRow;
    absl::StrAppend(&svg, "<text x=\"8\" y=\"", y + 16, "\">rank ", rank, "</text>\n<rect x=\"",
                    kLeft, "\" y=\"", y, "\" width=\"", proof.end / unit * kCell, "\" height=\"",
                    kRow - 4, "\" fill=\"#eeeeee\"/>\n");
    for (const PlacedPass& placed : proof.passes[rank]) {
      const int64_t x = kLeft + placed.begin / unit * kCell;
      const int64_t wide = (placed.end - placed.begin) / unit * kCell;
      absl::StrAppend(&svg, "<g><title>", ToString(placed.pass), ", ", placed.begin, " to ",
                      placed.end, "</title><rect x=\"", x, "\" y=\"", y, "\" width=\"", wide,
                      "\" height=\"", kRow - 4, "\" fill=\"", ColorOf(placed.pass.kind),
                      "\" stroke=\"#ffffff\"/><text x=\"", x + 3, "\" y=\"", y + 15, "\">",
                      LabelOf(schedule, placed.pass), "</text></g>\n");
    }
  }
  return svg + "</svg>\n";
}

}  // namespace muster::plan
