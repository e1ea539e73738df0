#include "worker_runtime/engine/batch_feed.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/cross_entropy.h"

namespace muster::engine {
namespace {

constexpr int64_t kNotRead = -1;  // the step of a batch

absl::Status Differs(absl::string_view what, int64_t reader, int64_t engine) {
  return absl::InvalidArgumentError(absl::StrCat("the reader's ", what, " is ", reader,
                                                 " and the engine's ", engine,
                                                 "; make it with Engine::Read, after Load"));
}

}  // namespace

BatchFeed::BatchFeed(Rig& rig, const TrainingProgress& progress)
    : rig_(rig),
      progress_(progress),
      pool_(rig.pool.device()),
      copies_(rig.pool.device(), &pool_, Queue::Lane::kCopy) {}

absl::StatusOr<const Batch*> BatchFeed::Next(BatchReader& reader) const {
  const BatchOptions& options = reader.options();
  if (options.accumulation != rig_.plan.accumulation) {
    return Differs("accumulation", options.accumulation, rig_.plan.accumulation);
  }
  if (options.size != rig_.set_up.mesh.replicas()) {
    return Differs("number of ranks", options.size, rig_.set_up.mesh.replicas());
  }
  if (options.rank != rig_.replica()) return Differs("rank", options.rank, rig_.replica());
  const absl::StatusOr<const Batch*> next = reader.Next();
  if (!next.ok()) return AsOwnFailure(next.status());
  const Batch* batch = *next;
  if (batch->step != progress_.step) return Differs("step", batch->step, progress_.step);
  return batch;
}

absl::Status BatchFeed::Begin(BatchReader& reader) {
  batches_.resize(rig_.plan.accumulation);
  for (Batch& batch : batches_) batch.step = kNotRead;
  return rig_.host_reads() ? absl::OkStatus() : rig_.Guard(Bring(reader));
}

// Their places are free: the host has waited for the end of the step that read them last, or that
// has failed and nobody wants what it still computes from whichever ids.
absl::Status BatchFeed::Bring(BatchReader& reader) {
  const Device& device = rig_.queue.device();
  places_.resize(batches_.size());
  for (size_t i = 0; i < batches_.size(); ++i) {
    MUSTER_ASSIGN_OR_RETURN(const Batch* next, Next(reader));
    const Batch& own = batches_[i] = *next;
    Place& place = places_[i];
    const auto bring = [&](const std::vector<int32_t>& ids, Tensor& to) {
      const auto count = static_cast<int64_t>(ids.size());
      if (to.empty() || to.num_elements() != count) to = pool_.Allocate(DType::kI32, {count});
      device.Upload(copies_, ids.data(), to.raw_data(), to.num_bytes());
    };
    bring(own.inputs, place.inputs);
    bring(own.targets, place.targets);
    if (place.is_there == nullptr) place.is_there = device.MakeEvent();
    place.is_there->Record(copies_);
  }
  return absl::OkStatus();
}

absl::StatusOr<const Batch*> BatchFeed::At(BatchReader& reader, Tape& tape, int64_t index,
                                           bool is_capturing) {
  Batch& own = batches_[index];
  if (rig_.host_reads()) {
    // The first of a rank's stages that comes to it reads it, with those before it.
    for (Batch& batch : batches_) {
      if (own.step != kNotRead) break;
      if (batch.step != kNotRead) continue;
      MUSTER_ASSIGN_OR_RETURN(const Batch* next, Next(reader));
      batch = *next;
    }
    return &own;
  }
  const Place& place = places_[index];
  if (!is_capturing) place.is_there->HoldUp(rig_.queue);
  tape.AreBrought({{own.inputs, place.inputs}, {own.targets, place.targets}});
  return &own;
}

void BatchFeed::HoldUp() {
  for (const Place& place : places_) place.is_there->HoldUp(rig_.queue);
}

std::vector<double> BatchFeed::TargetsThatCount() const {
  if (rig_.set_up.PlaceOf(rig_.set_up.num_stages() - 1) != rig_.place()) {
    return std::vector<double>(batches_.size());
  }
  std::vector<double> counts;
  for (const Batch& batch : batches_) {
    const auto ignored =
        std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoredTarget);
    counts.push_back(static_cast<double>(batch.targets.size()) - static_cast<double>(ignored));
  }
  return counts;
}

StepShape BatchFeed::Shape() const {
  return {.batch = batches_.front().batch,
          .sequence = batches_.front().sequence,
          .pool = rig_.pool.usage()};
}

}  // namespace muster::engine
