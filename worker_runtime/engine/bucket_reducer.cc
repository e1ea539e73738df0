#include "worker_runtime/engine/bucket_reducer.h"

#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster::engine {

BucketReducer::BucketReducer(std::vector<plan::Bucket> buckets) : buckets_(std::move(buckets)) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const plan::Bucket& bucket = buckets_[b];
    bucket_of_.resize(std::max<size_t>(bucket_of_.size(), bucket.end_parameter));
    for (int p = bucket.first_parameter; p < bucket.end_parameter; ++p) bucket_of_[p] = b;
  }
}

void BucketReducer::Begin(Reduce reduce) {
  reduce_ = std::move(reduce);
  started_.clear();
  missing_.clear();
  for (const plan::Bucket& bucket : buckets_) {
    missing_.push_back(bucket.end_parameter - bucket.first_parameter);
  }
}

void BucketReducer::MarkReady(int parameter) {
  int& missing = missing_[bucket_of_[parameter]];
  MUSTER_CHECK(missing > 0);
  --missing;
  while (started_.size() < buckets_.size() && missing_[started_.size()] == 0) StartNext();
}

void BucketReducer::StartRest() {
  while (started_.size() < buckets_.size()) StartNext();
}

void BucketReducer::StartNext() {
  const MonoTime now = MonoNow();
  started_.push_back({.work = reduce_(buckets_[started_.size()]), .since = now});
}

absl::Status BucketReducer::Wait() {
  absl::Status first_error;
  for (const Started& started : started_) first_error.Update(started.work.Wait());
  busy_ = absl::ZeroDuration();
  if (!first_error.ok()) return first_error;
  // Reductions of one communicator run one after the other.
  MonoTime free_since;
  for (const Started& started : started_) {
    const MonoTime begin = std::max(started.since, free_since);
    const MonoTime end = std::max(begin, started.work.FinishedAt());
    busy_ += end - begin;
    free_since = end;
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
