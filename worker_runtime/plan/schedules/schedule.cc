#include "worker_runtime/plan/schedules/schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

constexpr int64_t kMostRanks = 1024;
constexpr int64_t kMostStages = 4096;
constexpr size_t kLongestName = 40;

class Reader {
 public:
  absl::StatusOr<Schedule> Read(absl::string_view text) {
    for (const absl::string_view whole : absl::StrSplit(text, '\n')) {
      ++line_;
      const absl::string_view line = absl::StripAsciiWhitespace(whole);
      if (line.empty() || absl::StartsWith(line, "#")) continue;
      MUSTER_RETURN_IF_ERROR(ReadLine(line));
    }
    if (!has_micro_batches_) return Missing("micro_batches N");
    if (schedule_.rank_of_stage.empty()) return Missing("stages_on_ranks R R ...");
    const int ranks =
        *std::max_element(schedule_.rank_of_stage.begin(), schedule_.rank_of_stage.end()) + 1;
    if (schedule_.num_ranks() != ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("stages_on_ranks names ranks 0 to ", ranks - 1, ", and there are lines of ",
                       schedule_.num_ranks(), ": one line \"rank R: ...\" is expected for each"));
    }
    return std::move(schedule_);
  }

 private:
  template <typename... Text>
  absl::Status Bad(const Text&... text) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", text...));
  }
  static absl::Status Missing(absl::string_view line) {
    return absl::InvalidArgumentError(absl::StrCat("there is no line \"", line, "\""));
  }
  static std::string Quoted(absl::string_view text) {
    return absl::StrCat("'", absl::Utf8SafeCHexEscape(text.substr(0, 40)), "'");
  }

  absl::Status ReadLine(absl::string_view line) {
    if (absl::ConsumePrefix(&line, "rank ")) return ReadRank(line);
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words[0] == "schedule") return ReadName(words);
    if (words[0] == "micro_batches") return ReadMicroBatches(words);
    if (words[0] == "stages_on_ranks") return ReadStages(words);
    return Bad(Quoted(words[0]),
               " is not known here; schedule, micro_batches, stages_on_ranks or rank is expected");
  }

  absl::Status ReadName(const std::vector<absl::string_view>& words) {
    const auto is_fine = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
    if (words.size() != 2 || words[1].size() > kLongestName ||
        !std::all_of(words[1].begin(), words[1].end(), is_fine)) {
      return Bad("schedule is followed by one name of at most ", kLongestName,
                 " letters, digits, - and _");
    }
    schedule_.name = std::string(words[1]);
    return absl::OkStatus();
  }

  absl::Status ReadMicroBatches(const std::vector<absl::string_view>& words) {
    int64_t count = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &count) || count < 1 ||
        count > kMostPasses) {
      return Bad("micro_batches is followed by a whole number of at least 1");
    }
    schedule_.micro_batches = count;
    has_micro_batches_ = true;
    return absl::OkStatus();
  }

  absl::Status ReadStages(const std::vector<absl::string_view>& words) {
    schedule_.rank_of_stage.clear();
    for (size_t i = 1; i < words.size(); ++i) {
      int rank = 0;
      if (!absl::SimpleAtoi(words[i], &rank) || rank < 0 || rank >= kMostRanks) {
        return Bad(Quoted(words[i]), " is not the number of a rank");
      }
      schedule_.rank_of_stage.push_back(rank);
    }
    if (schedule_.rank_of_stage.empty() || schedule_.num_stages() > kMostStages) {
      return Bad("stages_on_ranks is followed by the rank of each stage, of 1 to ", kMostStages);
    }
    return absl::OkStatus();
  }

  absl::Status ReadRank(absl::string_view line) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    int rank = 0;
    if (!absl::SimpleAtoi(parts.first, &rank) || rank != schedule_.num_ranks() ||
        rank >= kMostRanks) {
      return Bad("\"rank ", schedule_.num_ranks(),
                 ": ...\" is expected: ranks come in their order, each once");
    }
    std::vector<StagePass>& passes = schedule_.passes.emplace_back();
    for (const absl::string_view word : absl::StrSplit(parts.second, ' ', absl::SkipEmpty())) {
      const std::optional<StagePass> pass = PassOf(absl::StripAsciiWhitespace(word));
      if (!pass) {
        return Bad(Quoted(word),
                   " is not a pass; F, B, I or W with stage and micro-batch is expected, as F0.3");
      }
      passes.push_back(*pass);
      if (++num_passes_ > kMostPasses) return Bad("there are more than ", kMostPasses, " passes");
    }
    return absl::OkStatus();
  }

  static std::optional<StagePass> PassOf(absl::string_view word) {
    StagePass pass;
    if (word.empty()) return std::nullopt;
    switch (word[0]) {
      case 'F':
        pass.kind = PassKind::kForward;
        break;
      case 'B':
        pass.kind = PassKind::kBackward;
        break;
      case 'I':
        pass.kind = PassKind::kInputGradient;
        break;
      case 'W':
        pass.kind = PassKind::kWeightGradient;
        break;
      default:
        return std::nullopt;
    }
    const std::pair<absl::string_view, absl::string_view> numbers =
        absl::StrSplit(word.substr(1), absl::MaxSplits('.', 1));
    const bool are_numbers = absl::SimpleAtoi(numbers.first, &pass.stage) &&
                             absl::SimpleAtoi(numbers.second, &pass.micro_batch);
    if (!are_numbers || pass.stage < 0 || pass.micro_batch < 0) return std::nullopt;
    return pass;
  }

  Schedule schedule_{.name = "unnamed"};
  bool has_micro_batches_ = false;
  int64_t num_passes_ = 0;
  int line_ = 0;
};

}  // namespace

char LetterOf(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return 'F';
    case PassKind::kBackward:
      return 'B';
    case PassKind::kInputGradient:
      return 'I';
    case PassKind::kWeightGradient:
      return 'W';
  }
  return '?';
}

std::string ToString(const StagePass& pass) {
  return absl::StrCat(std::string(1, LetterOf(pass.kind)), pass.stage, ".", pass.micro_batch);
}

int Schedule::stages_per_rank() const {
  std::vector<int> count(passes.size());
  for (const int rank : rank_of_stage) ++count[rank];
  return count.empty() ? 0 : *std::max_element(count.begin(), count.end());
}

int64_t Schedule::num_passes() const {
  int64_t count = 0;
  for (const std::vector<StagePass>& of_rank : passes) {
    count += static_cast<int64_t>(of_rank.size());
  }
  return count;
}

std::string FormatSchedule(const Schedule& schedule) {
  std::string text =
      absl::StrCat("schedule ", schedule.name, "\nmicro_batches ", schedule.micro_batches,
                   "\nstages_on_ranks ", absl::StrJoin(schedule.rank_of_stage, " "), "\n");
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const StagePass& pass : schedule.passes[rank]) absl::StrAppend(&text, " ", ToString(pass));
    text.push_back('\n');
  }
  return text;
}

absl::StatusOr<Schedule> ParseSchedule(absl::string_view text) { return Reader().Read(text); }

}  // namespace muster::plan
