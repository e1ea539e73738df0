// Parts of cut parameters, and where their elements are in the whole.
#include "muster/tensor_ranks.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

std::vector<int64_t> SectionsOf(absl::Span<const int64_t> whole, const ParameterCut& cut) {
  return cut.sections.empty() ? std::vector<int64_t>{whole[cut.axis]} : cut.sections;
}

template <typename... What>
absl::Status Refuse(absl::Span<const int64_t> whole, const What&... what) {
  return absl::InvalidArgumentError(
      absl::StrCat("its shape is [", absl::StrJoin(whole, ", "), "], and ", what...));
}

}  // namespace

absl::Status ParameterPart::Check(absl::Span<const int64_t> whole, const ParameterCut& cut,
                                  int64_t ranks) {
  if (cut.axis < 0 || cut.axis >= static_cast<int>(whole.size())) {
    return Refuse(whole, "there is no axis ", cut.axis, " to cut");
  }
  int64_t sum = 0;
  for (const int64_t size : SectionsOf(whole, cut)) {
    if (size < 0 || size > whole[cut.axis] - sum) return Refuse(whole, "its sections are longer");
    sum += size;
    if (size % ranks == 0) continue;
    int64_t fits = std::min(ranks, size);
    while (size % fits != 0) --fits;
    return Refuse(whole, ranks, " tensor ranks do not divide the ", size, " that they cut; ", fits,
                  " would");
  }
  return sum == whole[cut.axis] ? absl::OkStatus() : Refuse(whole, "its sections are shorter");
}

ParameterPart::ParameterPart(absl::Span<const int64_t> whole,
                             const std::optional<ParameterCut>& cut, TensorRanks ranks)
    : is_cut_(cut.has_value() && ranks.size > 1), ranks_(ranks) {
  for (const int64_t size : whole) num_elements_ *= size;
  if (!is_cut_) return;
  num_elements_ /= ranks.size;
  int64_t inner = 1;
  for (const int64_t size : whole.subspan(cut->axis + 1)) inner *= size;
  for (const int64_t size : SectionsOf(whole, *cut)) sections_.push_back(size * inner);
  whole_line_ = whole[cut->axis] * inner;
}

void ParameterPart::ForEachRun(int64_t first, int64_t count,
                               absl::FunctionRef<void(const ElementRun& run)> visit) const {
  if (!is_cut_) {
    if (count > 0) visit({first, first, count});
    return;
  }
  const int64_t line = whole_line_ / ranks_.size;
  for (int64_t next = first; next < first + count;) {
    int64_t in_section = next % line;
    int64_t section_in_whole = next / line * whole_line_;
    size_t s = 0;
    for (; in_section >= sections_[s] / ranks_.size; ++s) {
      in_section -= sections_[s] / ranks_.size;
      section_in_whole += sections_[s];
    }
    const int64_t held = sections_[s] / ranks_.size;
    const int64_t length = std::min(held - in_section, first + count - next);
    visit({next, section_in_whole + ranks_.rank * held + in_section, length});
    next += length;
  }
}

int64_t ParameterPart::CountBefore(int64_t first_in_whole) const {
  if (!is_cut_) return first_in_whole;
  int64_t count = first_in_whole / whole_line_ * (whole_line_ / ranks_.size);
  int64_t in_section = first_in_whole % whole_line_;
  for (const int64_t section : sections_) {
    const int64_t held = section / ranks_.size;
    count += std::clamp<int64_t>(in_section - ranks_.rank * held, 0, held);
    in_section -= section;
  }
  return count;
}

}  // namespace muster
