#include "worker_runtime/comm/loopback/loopback_communicator.h"

#include <atomic>
#include <utility>

#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/loopback/loopback_group.h"

namespace muster::comm {
namespace {

class LoopbackCommunicator final : public CallCommunicator {
 public:
  LoopbackCommunicator(Membership membership, std::shared_ptr<LoopbackGroup> group)
      : CallCommunicator(std::move(membership)), group_(std::move(group)) {}
  ~LoopbackCommunicator() override { group_->Leave(rank()); }

  void Abort(absl::string_view reason) override {
    group_->Fail(AbortError(rank(), size(), group(), reason));
  }
  int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  void Start(Call call) override {
    bytes_sent_ += BytesOnARing(call.operation, size());
    group_->Arrive(rank(), std::move(call));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership child,
                                                          const std::vector<int>& members,
                                                          const std::string& path) override {
    auto group = group_->Child(path, child.group, static_cast<int>(members.size()));
    return std::make_unique<LoopbackCommunicator>(std::move(child), std::move(group));
  }

  const std::shared_ptr<LoopbackGroup> group_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLoopbackCommunicators(const Membership& common) {
  auto group =
      std::make_shared<LoopbackGroup>(common.group, common.size, std::make_shared<DeadlineWatch>());
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < common.size; ++rank) {
    Membership membership = common;
    membership.rank = rank;
    ranks.push_back(std::make_unique<LoopbackCommunicator>(std::move(membership), group));
  }
  return ranks;
}

}  // namespace muster::comm
