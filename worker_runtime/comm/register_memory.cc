#include "worker_runtime/comm/register_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "muster/buffer.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace comm {
namespace {

constexpr size_t kNoticeBytes = 512;  // its code and, up to the first zero, its words

std::vector<uint8_t> NoticeOf(const absl::Status& failure, int rank) {
  std::vector<uint8_t> notice(kNoticeBytes);
  notice[0] = static_cast<uint8_t>(failure.code());
  const std::string words = absl::StrCat("rank ", rank, ": ", failure.message());
  std::copy_n(words.begin(), std::min(words.size(), kNoticeBytes - 2), notice.begin() + 1);
  return notice;
}

absl::Status StatusOf(const std::vector<uint8_t>& notice) {
  const auto end = std::find(notice.begin() + 1, notice.end(), 0);
  return {static_cast<absl::StatusCode>(notice[0]), std::string(notice.begin() + 1, end)};
}

}  // namespace

absl::StatusOr<Registration> RegisterOnAllRanks(
    Communicator& group, absl::FunctionRef<absl::StatusOr<Registration>()> register_here) {
  absl::StatusOr<Registration> own = register_here();
  std::vector<int32_t> first = {own.ok() ? group.size() : group.rank()};
  MUSTER_RETURN_IF_ERROR(group.AllReduce(BufferOf(first), {.op = ReduceOp::kMin}).Wait());
  if (first[0] == group.size()) return own;
  std::vector<uint8_t> notice(kNoticeBytes);
  if (first[0] == group.rank()) notice = NoticeOf(own.status(), group.rank());
  if (own.ok()) *own = Registration();
  MUSTER_RETURN_IF_ERROR(group.Broadcast(BufferOf(notice), first[0]).Wait());
  return StatusOf(notice);
}

Registration Registrations::Add(std::function<void()> give_up) {
  {
    base::MutexLock lock(shared_->mu);
    ++shared_->num_left;
  }
  return Registration([shared = shared_, give_up = std::move(give_up)] {
    base::MutexLock lock(shared->mu);
    if (shared->is_closed) return;
    --shared->num_left;
    give_up();
  });
}

int Registrations::Close() {
  base::MutexLock lock(shared_->mu);
  shared_->is_closed = true;
  return shared_->num_left;
}

}  // namespace comm

absl::StatusOr<Registration> Communicator::Register(Buffer) { return Registration(); }

}  // namespace muster
