#include "tests/support/emulation/stream_communicators.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "tests/support/emulation/emulated_stream.h"
#include "worker_runtime/comm/deadline_watch.h"
#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/lane_task.h"
#include "worker_runtime/comm/loopback/loopback_group.h"
#include "worker_runtime/comm/register_memory.h"

namespace muster::testing {
namespace {

using comm::Call;
using comm::Completion;
using comm::FailureCell;
using comm::LaneTask;
using comm::LaunchOrder;
using comm::LoopbackGroup;
using comm::Membership;
using comm::Operation;

constexpr absl::Duration kPollInterval = absl::Microseconds(100);
// Each question lets the device do a little, so that a step takes many: on a busy machine a thread
// that sleeps in between is away for long.
constexpr int kQuestionsAtOnce = 32;

// The numbers of registered buffers; 0: none.
struct RegisteredBuffers {
  int64_t input = 0;
  int64_t output = 0;
};

// What a rank has registered with one communicator.
//
// Threads: safe.
class RegisteredMemory {
 public:
  int64_t Add(const void* data, size_t bytes) {
    base::MutexLock lock(mu_);
    pieces_[++last_] = {Address(data), Address(data) + bytes};
    return last_;
  }
  void Remove(int64_t number) {
    base::MutexLock lock(mu_);
    pieces_.erase(number);
  }
  bool Has(int64_t number) {
    base::MutexLock lock(mu_);
    return number == 0 || pieces_.count(number) > 0;
  }
  // The number of the piece that the buffer lies in; 0: in none. Errors: partly in one.
  absl::StatusOr<int64_t> Find(const void* data, size_t bytes) {
    if (data == nullptr || bytes == 0) return 0;
    const uintptr_t begin = Address(data), end = begin + bytes;
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    base::MutexLock lock(mu_);
    bool touches = false;
    for (const auto& [number, piece] : pieces_) {
      if (piece.begin <= begin && end <= piece.end) return number;
      touches = touches || (begin < piece.end && piece.begin < end);
    }
    if (touches) return absl::InternalError("works in memory of which only a part is registered");
    for (const auto& [number, piece] : pieces_) {
      if (piece.begin / page * page <= begin && end <= (piece.end + page - 1) / page * page) {
        return number;
      }
    }
    return 0;
  }

 private:
  struct Piece {
    uintptr_t begin, end;
  };
  static uintptr_t Address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

  base::Mutex mu_;
  int64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, Piece> pieces_ ABSL_GUARDED_BY(mu_);
};

// The meeting place of the devices of all ranks. Called within their work.
//
// Threads: safe.
class StreamGroup {
 public:
  StreamGroup(std::shared_ptr<LoopbackGroup> meetings, int size, StreamFigures* figures)
      : meetings_(std::move(meetings)), size_(size), figures_(figures) {}

  LoopbackGroup& meetings() { return *meetings_; }
  StreamFigures* figures() { return figures_; }
  std::shared_ptr<StreamGroup> Child(const std::string& path, std::string name, int size) {
    base::MutexLock lock(mu_);
    std::shared_ptr<StreamGroup>& child = children_[path];
    if (child == nullptr) {
      child = std::make_shared<StreamGroup>(meetings_->Child(path, std::move(name), size), size,
                                            figures_);
    }
    return child;
  }

  // `rank` comes to its next operation of that counter; ends once all have.
  std::shared_ptr<Completion> Arrive(int rank, const Call& call,
                                     const RegisteredBuffers& registered) {
    Call own = {.operation = call.operation, .inputs = call.inputs, .output = call.output};
    own.deadline = MonoTime::InfiniteFuture();  // the lane's
    own.timeout = call.timeout;
    own.completion = std::make_shared<Completion>([] { return std::string("a meeting"); });
    const std::shared_ptr<Completion> met = own.completion;
    if (std::string why = Count(rank, call.captured, registered, own.operation); !why.empty()) {
      meetings_->Fail(absl::InternalError(why));
    }
    meetings_->Arrive(rank, std::move(own));
    return met;
  }

 private:
  // A call as the first rank has come to it.
  struct UnderWay {
    bool captured = false;
    bool input_is_registered = false;
    bool output_is_registered = false;
    int come = 0;
  };

  // Empty, or what is wrong with it.
  std::string Count(int rank, bool captured, const RegisteredBuffers& registered, Operation& op) {
    base::MutexLock lock(mu_);
    const auto [kind, peer] = comm::CounterOf(op);
    const int64_t number = arrivals_[{rank, kind, peer}]++;
    const std::string who = absl::StrCat(comm::Signature(op), " of rank ", rank);
    if (!captured && op.sequence != number) {
      return absl::StrCat(who, " is number ", op.sequence, " to its host, and number ", number,
                          " to its device");
    }
    op.sequence = number;
    const bool sends = op.kind == OperationKind::kSend;
    const std::tuple<int, int, int64_t> key =
        op.is_collective() ? std::tuple(-1, -1, number)
                           : std::tuple(sends ? rank : op.peer, sends ? op.peer : rank, number);
    const auto found =
        under_way_
            .try_emplace(key, UnderWay{.captured = captured,
                                       .input_is_registered = registered.input != 0,
                                       .output_is_registered = registered.output != 0})
            .first;
    const UnderWay first = found->second;
    if (++found->second.come == (op.is_collective() ? size_ : 2)) under_way_.erase(found);
    if (captured != first.captured) {
      return absl::StrCat(who, " is ", captured ? "launched with a capture" : "called alone",
                          ", and another rank's is not");
    }
    const auto mixture = [&](absl::string_view what, bool is_registered) {
      return absl::StrCat("the ", what, " of ", who, " lies in ", is_registered ? "" : "un",
                          "registered memory, and another rank's does not");
    };
    if ((registered.input != 0) != first.input_is_registered) {
      return mixture("input", registered.input != 0);
    }
    if ((registered.output != 0) != first.output_is_registered) {
      return mixture("output", registered.output != 0);
    }
    return "";
  }

  const std::shared_ptr<LoopbackGroup> meetings_;
  const int size_;
  StreamFigures* const figures_;  // null, or outlives the communicators
  base::Mutex mu_;
  std::map<std::string, std::shared_ptr<StreamGroup>> children_ ABSL_GUARDED_BY(mu_);
  std::map<std::tuple<int, OperationKind, int>, int64_t> arrivals_ ABSL_GUARDED_BY(mu_);
  std::map<std::tuple<int, int, int64_t>, UnderWay> under_way_ ABSL_GUARDED_BY(mu_);
};

// What work of the device keeps of its rank, which may end before.
struct RankEnd {
  std::shared_ptr<StreamGroup> group;
  int rank = 0;
  int size = 1;
  FailureCell failure;
  RegisteredMemory registered;
};

// A thread and its stream, as of comm/nccl/nccl_lane.h.
class StreamLane {
 public:
  StreamLane(EmulatedCuda& cuda, std::shared_ptr<RankEnd> end, LaunchOrder* order)
      : cuda_(cuda),
        end_(std::move(end)),
        order_(order),
        stream_(*cuda.CreateStream()),
        thread_([this] { Run(); }) {}
  ~StreamLane() {
    {
      base::MutexLock lock(mu_);
      closed_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    cuda_.DestroyStream(stream_).IgnoreError();
  }

  void Push(Call call, bool is_launch) {
    base::MutexLock lock(mu_);
    const LaunchOrder::Place place = order_ != nullptr && !is_launch ? order_->Take() : 0;
    queue_.push_back({.call = std::move(call), .is_launch = is_launch, .place = place, .task = {}});
    changed_.NotifyAll();
  }
  // Once what was pushed before has ended. Waits.
  absl::Status RunBetweenCalls(std::string name, std::function<absl::Status()> body) {
    const LaneTask task(std::move(name), std::move(body));
    {
      base::MutexLock lock(mu_);
      queue_.push_back({.call = task.AsCall(), .task = task});
      changed_.NotifyAll();
    }
    return task.Wait();
  }

 private:
  struct Queued {
    Call call;
    bool is_launch = false;
    LaunchOrder::Place place = 0;
    std::optional<LaneTask> task;  // `call` stands for it
  };
  struct Running {
    Call call;
    CudaEvent end;
    bool owns_end = false;
  };

  void Run() {
    while (true) {
      {
        base::MutexLock lock(mu_);
        if (closed_) break;
        const bool is_idle = queue_.empty() && running_.empty();
        changed_.WaitUntil(mu_, is_idle ? MonoTime::InfiniteFuture() : MonoNow() + kPollInterval);
        if (closed_) break;
      }
      if (const absl::Status failure = end_->failure.Get(); !failure.ok()) {
        EndAll(failure);
      } else if (absl::Status status = Advance(); !status.ok()) {
        end_->group->meetings().Fail(status);
        end_->failure.Set(status);
      }
    }
    EndAll(end_->failure.Get());
  }

  absl::Status Advance() {
    while (std::optional<Queued> next = TakeNext()) {
      if (next->task.has_value()) {
        next->task->Run();
        continue;
      }
      const absl::Status posted = next->is_launch ? Follow(next->call) : Post(next->call);
      Leave(*next);
      if (!posted.ok()) {
        next->call.Finish(posted);
        return posted;
      }
    }
    for (int asked = 0; asked < kQuestionsAtOnce && !running_.empty(); ++asked) {
      const absl::StatusOr<bool> is_done = cuda_.QueryEvent(running_.front().end);
      if (!is_done.ok()) return is_done.status();
      if (const absl::Status failure = end_->failure.Get(); !failure.ok()) return failure;
      if (*is_done) End(absl::OkStatus());
    }
    if (running_.empty() || MonoNow() < running_.front().call.deadline) return absl::OkStatus();
    const Call& late = running_.front().call;
    return absl::DeadlineExceededError(absl::StrCat(Name(late.operation), " on rank ", end_->rank,
                                                    " did not finish within ",
                                                    absl::FormatDuration(late.timeout)));
  }

  std::optional<Queued> TakeNext() {
    base::MutexLock lock(mu_);
    if (queue_.empty()) return std::nullopt;
    const Queued& front = queue_.front();
    if (front.task.has_value() && !running_.empty()) return std::nullopt;
    if (StandsInLine(front) && !order_->IsFirst(front.place)) return std::nullopt;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    return next;
  }

  bool StandsInLine(const Queued& queued) const {
    return order_ != nullptr && !queued.is_launch && !queued.task.has_value();
  }
  void Leave(const Queued& queued) {
    if (StandsInLine(queued)) order_->Leave(queued.place);
  }

  absl::Status Post(Call& call) {
    call.MarkStarted();
    if (call.on_stream != nullptr) {
      MUSTER_RETURN_IF_ERROR(
          cuda_.StreamWaitEvent(stream_, {.handle = call.on_stream->filled().native()}));
    }
    MUSTER_RETURN_IF_ERROR(PutOnStream(call));
    Running running = {.call = call, .end = {}};
    if (call.on_stream != nullptr) {
      running.end = {.handle = call.on_stream->finished().native()};
    } else {
      MUSTER_ASSIGN_OR_RETURN(running.end, cuda_.CreateEvent());
      running.owns_end = true;
    }
    MUSTER_RETURN_IF_ERROR(cuda_.RecordEvent(running.end, stream_));
    if (call.on_stream != nullptr) call.on_stream->MarkPosted();
    if (call.captured) {
      call.Finish(absl::OkStatus());
    } else {
      running_.push_back(std::move(running));
    }
    return absl::OkStatus();
  }

  absl::Status Follow(Call& call) {
    const CudaEvent end = {.handle = call.on_stream->finished().native()};
    running_.push_back({.call = std::move(call), .end = end});
    return absl::OkStatus();
  }

  // Transfers register nothing: nccl's have communicators of their own. Ordered sums gather in
  // memory of the lane's.
  absl::StatusOr<RegisteredBuffers> Registered(const Call& call) const {
    RegisteredBuffers found;
    const Operation& op = call.operation;
    if (order_ == nullptr || (op.is_reduction() && op.order == SumOrder::kOrdered)) return found;
    const comm::BlockCounts blocks = comm::CountBlocks(op.kind, end_->size);
    const auto find = [&](const void* data, int64_t num_blocks) {
      return end_->registered.Find(data, static_cast<size_t>(num_blocks * op.bytes()));
    };
    absl::StatusOr<int64_t> input = call.inputs.empty() ? 0 : find(call.inputs[0], blocks.input);
    absl::StatusOr<int64_t> output = find(call.output, blocks.output);
    for (const absl::StatusOr<int64_t>* each : {&input, &output}) {
      if (each->ok()) continue;
      return absl::InternalError(absl::StrCat(comm::Signature(op), " of rank ", end_->rank, " ",
                                              each->status().message()));
    }
    if (StreamFigures* const figures = end_->group->figures();
        figures != nullptr && call.on_stream != nullptr && op.count > 0) {
      ++(*input != 0 && *output != 0 ? figures->registered_calls : figures->other_calls);
    }
    return RegisteredBuffers{.input = *input, .output = *output};
  }

  // Puts it there in two parts: it has begun here; it has begun everywhere.
  absl::Status PutOnStream(const Call& call) {
    MUSTER_ASSIGN_OR_RETURN(const RegisteredBuffers registered, Registered(call));
    Call kept = {.operation = call.operation,
                 .inputs = call.inputs,
                 .output = call.output,
                 .captured = call.captured,
                 .timeout = call.timeout};
    auto met = std::make_shared<std::shared_ptr<Completion>>();
    EmulatedStream& stream = EmulatedStream::Of(stream_);
    const kernels::LaunchError begun = stream.Enqueue([end = end_, kept, registered, met] {
      if (!end->registered.Has(registered.input) || !end->registered.Has(registered.output)) {
        end->group->meetings().Fail(absl::InternalError(
            absl::StrCat(comm::Signature(kept.operation), " of rank ", end->rank,
                         " runs in memory whose registration has gone since")));
      }
      *met = end->group->Arrive(end->rank, kept, registered);
      return std::string();
    });
    const kernels::LaunchError ended =
        stream.EnqueueWhen([met] { return (*met)->IsDone(); },
                           [end = end_, met] {
                             if (absl::Status status = (*met)->Wait(MonoTime()); !status.ok())
                               end->failure.Set(status);
                             return std::string();
                           });
    if (begun != nullptr) return absl::InternalError(begun);
    if (ended != nullptr) return absl::InternalError(ended);
    return absl::OkStatus();
  }

  void End(const absl::Status& status) {
    const Running ended = std::move(running_.front());
    running_.pop_front();
    if (ended.owns_end) cuda_.DestroyEvent(ended.end).IgnoreError();
    ended.call.Finish(status);
  }

  void EndAll(const absl::Status& failure) {
    while (!running_.empty()) End(failure);
    std::deque<Queued> queue;
    {
      base::MutexLock lock(mu_);
      queue.swap(queue_);
    }
    for (const Queued& queued : queue) {
      queued.call.Finish(failure);
      Leave(queued);
    }
  }

  EmulatedCuda& cuda_;
  const std::shared_ptr<RankEnd> end_;
  LaunchOrder* const order_;  // null: of transfers
  const CudaStream stream_;

  base::Mutex mu_;
  base::Condition changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);

  // The lane's thread only.
  std::deque<Running> running_;

  std::thread thread_;  // last: it uses everything above
};

class StreamCommunicator final : public comm::CallCommunicator {
 public:
  StreamCommunicator(Membership membership, EmulatedCuda& cuda, std::shared_ptr<StreamGroup> group)
      : CallCommunicator(std::move(membership)), cuda_(cuda), end_(std::make_shared<RankEnd>()) {
    end_->group = std::move(group);
    end_->rank = rank();
    end_->size = size();
  }
  ~StreamCommunicator() override {
    if (const int left = registrations_.Close(); left > 0) {
      FailDevice(absl::StrCat(left, " registrations outlive their communicator, rank ", rank(),
                              " of group ", this->group()));
    }
    end_->failure.Set(comm::ClosedError(rank(), size(), this->group()));
    end_->group->meetings().Leave(rank());
    base::MutexLock lock(lanes_mu_);
    lanes_.clear();
  }

  void Abort(absl::string_view reason) override {
    base::MutexLock lock(alive_mu_);
    const absl::Status failure = comm::AbortError(rank(), size(), group(), reason);
    end_->group->meetings().Fail(failure);
    end_->failure.Set(failure);
  }
  int64_t bytes_sent() const override { return bytes_sent_; }

  absl::Status WhileAlive(absl::FunctionRef<absl::Status()> put) override {
    base::MutexLock lock(alive_mu_);
    if (absl::Status failure = end_->failure.Get(); !failure.ok()) return failure;
    return put();
  }
  void WatchLaunch(Call call, absl::Span<const Operation> operations) override {
    for (const Operation& op : operations) bytes_sent_ += BytesOnARing(op, size());
    LaneOf(call.operation).Push(std::move(call), /*is_launch=*/true);
  }

 private:
  bool ReachesDevices() const override { return true; }
  bool CapturesCalls() const override { return true; }
  bool RegistersMemory() const override { return true; }

  absl::StatusOr<Registration> RegisterHere(Buffer memory) override {
    const size_t bytes = static_cast<size_t>(memory.count) * SizeOf(memory.dtype);
    if (!cuda_.Holds(memory.data, bytes)) {
      return absl::InvalidArgumentError("the memory to register is not the device's");
    }
    int64_t number = 0;
    MUSTER_RETURN_IF_ERROR(LaneOf({}).RunBetweenCalls("registering memory", [&] {
      number = end_->registered.Add(memory.data, bytes);
      return absl::OkStatus();
    }));
    return registrations_.Add([this, memory, bytes, number] {
      if (!cuda_.Holds(memory.data, bytes)) {
        FailDevice(absl::StrCat("memory of rank ", rank(), " of group ", group(),
                                " was given back before its registration"));
      }
      const absl::Status given_up =
          LaneOf({}).RunBetweenCalls("giving up registered memory", [this, number] {
            end_->registered.Remove(number);
            return absl::OkStatus();
          });
      if (!given_up.ok()) end_->registered.Remove(number);  // the lane has failed
    });
  }
  // A mistake of the program's that no call of it would tell.
  void FailDevice(const std::string& why) {
    const absl::StatusOr<CudaStream> stream = cuda_.CreateStream();
    if (!stream.ok()) return;  // it has failed before
    EmulatedStream::Of(*stream).Enqueue([why] { return why; });
    cuda_.DestroyStream(*stream).IgnoreError();
  }

  void Start(Call call) override {
    if (const absl::Status failure = end_->failure.Get(); !failure.ok())
      return call.Finish(failure);
    if (!call.captured) bytes_sent_ += BytesOnARing(call.operation, size());
    LaneOf(call.operation).Push(std::move(call), /*is_launch=*/false);
  }

  StreamLane& LaneOf(const Operation& op) {
    base::MutexLock lock(lanes_mu_);
    std::unique_ptr<StreamLane>& lane = lanes_[CounterOf(op)];
    if (lane == nullptr) {
      lane =
          std::make_unique<StreamLane>(cuda_, end_, op.is_collective() ? &launch_order() : nullptr);
    }
    return *lane;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership child, const std::vector<int>&,
                                                          const std::string& path) override {
    auto group = end_->group->Child(path, child.group, child.size);
    return std::make_unique<StreamCommunicator>(std::move(child), cuda_, std::move(group));
  }

  EmulatedCuda& cuda_;
  const std::shared_ptr<RankEnd> end_;
  std::atomic<int64_t> bytes_sent_ = 0;
  comm::Registrations registrations_;
  base::Mutex alive_mu_;  // held while a launch is put there: before the device's and the group's
  base::Mutex lanes_mu_;
  std::map<std::pair<OperationKind, int>, std::unique_ptr<StreamLane>> lanes_
      ABSL_GUARDED_BY(lanes_mu_);
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeStreamCommunicators(EmulatedCuda& cuda,
                                                                   const Membership& common,
                                                                   StreamFigures* figures) {
  auto meetings = std::make_shared<LoopbackGroup>(common.group, common.size,
                                                  std::make_shared<comm::DeadlineWatch>());
  auto group = std::make_shared<StreamGroup>(std::move(meetings), common.size, figures);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < common.size; ++rank) {
    Membership membership = common;
    membership.rank = rank;
    ranks.push_back(std::make_unique<StreamCommunicator>(std::move(membership), cuda, group));
  }
  return ranks;
}

}  // namespace muster::testing
