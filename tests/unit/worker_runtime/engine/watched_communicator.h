// A communicator that calls a test before it starts a collective, to fall behind or to look on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "muster/communicator.h"
#include "proto/base/status_macros.h"

namespace muster::testing {

class WatchedCommunicator final : public Communicator {
 public:
  // `before` is called with the number of elements that a collective gives back; `inner` outlives
  // this.
  WatchedCommunicator(Communicator& inner, std::function<void(int64_t count)> before)
      : inner_(inner), before_(std::move(before)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& group() const override { return inner_.group(); }
  int64_t bytes_sent() const override { return inner_.bytes_sent(); }
  int64_t bytes_reserved() const override { return inner_.bytes_reserved(); }
  void Abort(absl::string_view reason) override { inner_.Abort(reason); }

  Work AllReduce(Buffer buffer, ReduceOptions options) override {
    before_(buffer.count);
    return inner_.AllReduce(buffer, options);
  }
  Work ReduceScatter(ConstBuffer input, Buffer output, ReduceOptions options) override {
    before_(output.count);
    return inner_.ReduceScatter(input, output, options);
  }
  Work AllReduceSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                         SubtreeOptions options) override {
    before_(output.count);
    return inner_.AllReduceSubtrees(roots, output, options);
  }
  Work ReduceScatterSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                             SubtreeOptions options) override {
    before_(output.count);
    return inner_.ReduceScatterSubtrees(roots, output, options);
  }
  Work AllGather(ConstBuffer input, Buffer output, CallOptions options) override {
    before_(output.count);
    return inner_.AllGather(input, output, options);
  }
  Work Broadcast(Buffer buffer, int root, CallOptions options) override {
    return inner_.Broadcast(buffer, root, options);
  }
  Work AllToAll(ConstBuffer input, Buffer output, CallOptions options) override {
    return inner_.AllToAll(input, output, options);
  }
  Work Barrier(CallOptions options) override { return inner_.Barrier(options); }
  Work Send(ConstBuffer buffer, int to, CallOptions options) override {
    return inner_.Send(buffer, to, options);
  }
  Work Recv(Buffer buffer, int from, CallOptions options) override {
    return inner_.Recv(buffer, from, options);
  }
  absl::StatusOr<Registration> Register(Buffer memory) override { return inner_.Register(memory); }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(std::optional<int> color, int key,
                                                      std::string name) override {
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                            inner_.Split(color, key, std::move(name)));
    if (part == nullptr) return part;
    auto watched = std::make_unique<WatchedCommunicator>(*part, before_);
    watched->owned_ = std::move(part);
    return std::unique_ptr<Communicator>(std::move(watched));
  }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  const std::function<void(int64_t count)> before_;
};

}  // namespace muster::testing
