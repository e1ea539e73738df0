#include "worker_runtime/plan/batch_equation.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"

namespace muster::plan {
namespace {

// "128 or 144"
std::string NearestMultiples(int64_t n, int64_t of) {
  const int64_t below = n / of * of;
  if (below == 0) return absl::StrCat(of);
  return absl::StrCat(below, " or ", below + of);
}

std::string Number(int64_t value) { return value == 0 ? "?" : absl::StrCat(value); }

absl::Status Unsolvable(const BatchSizes& asked, int64_t replicas) {
  const int64_t known =
      std::max<int64_t>(asked.micro, 1) * std::max<int64_t>(asked.accumulation, 1);
  const bool is_open = asked.micro == 0 || asked.accumulation == 0;
  std::vector<std::string> hints = {absl::StrCat(
      "a train_batch_size of ",
      is_open ? NearestMultiples(asked.train, known * replicas) : absl::StrCat(known * replicas))};
  if (asked.train % known == 0) {
    const int64_t parts = asked.train / known;
    hints.push_back(absl::StrCat(is_open ? NearestDivisors(parts, replicas) : absl::StrCat(parts),
                                 " ranks that work on different sequences"));
  }
  if (!is_open && asked.train % (asked.micro * replicas) == 0) {
    hints.push_back(absl::StrCat("an accumulation of ", asked.train / (asked.micro * replicas)));
  }
  if (!is_open && asked.train % (asked.accumulation * replicas) == 0) {
    hints.push_back(
        absl::StrCat("a micro-batch of ", asked.train / (asked.accumulation * replicas)));
  }
  return FieldError(
      "--train_batch_size",
      absl::StrCat("=", asked.train, " must be micro-batch x accumulation x ranks, and ",
                   asked.train, " is not ", Number(asked.micro), " x ", Number(asked.accumulation),
                   " x ", replicas, "; the nearest that fit: ", absl::StrJoin(hints, ", or ")));
}

}  // namespace

absl::StatusOr<BatchSizes> SolveBatch(const BatchSizes& asked, int64_t replicas) {
  BatchSizes solved = asked;
  if (asked.micro == 0 && asked.accumulation == 0) solved.accumulation = 1;
  // No more than one of the two is open now.
  int64_t& open = solved.micro == 0 ? solved.micro : solved.accumulation;
  const bool is_open = open == 0;
  const int64_t known = std::max<int64_t>(solved.micro, 1) *
                        std::max<int64_t>(solved.accumulation, 1) / (is_open ? 1 : open) * replicas;
  if (asked.train % known != 0) return Unsolvable(asked, replicas);
  if (is_open) open = asked.train / known;
  if (asked.train != solved.micro * solved.accumulation * replicas) {
    return Unsolvable(asked, replicas);
  }
  return solved;
}

absl::Status SpreadBatch(PlanOptions& options, int64_t replicas) {
  if (options.asked.train == 0) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const BatchSizes solved, SolveBatch(options.asked, replicas));
  options.batch_size = solved.micro;
  options.plan.accumulation = solved.accumulation;
  return absl::OkStatus();
}

}  // namespace muster::plan
