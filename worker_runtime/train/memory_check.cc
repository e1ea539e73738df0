#include "worker_runtime/train/memory_check.h"

#include "absl/strings/str_cat.h"
#include "worker_runtime/train/figures.h"

namespace muster::train {
namespace {

constexpr int kArrays = 4;  // parameters, gradients, two moments

}  // namespace

absl::Status CheckFitsMachine(const GptConfig& model, DType dtype, int local_size,
                              int64_t machine_bytes) {
  const double parameters = static_cast<double>(model.num_parameters());
  const double rank_bytes = kArrays * parameters * static_cast<double>(SizeOf(dtype));
  if (rank_bytes * local_size <= static_cast<double>(machine_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a model of ", ShortCount(parameters), " parameters needs ", ShortBytes(rank_bytes),
      " per rank before any activation, ", ShortBytes(rank_bytes * local_size), " for the ",
      Counted(local_size, "rank"), " of this machine, which has ", ShortBytes(machine_bytes),
      "; choose fewer layers or a smaller width"));
}

}  // namespace muster::train
