#include "tests/support/emulation/emulated_cuda.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "tests/support/emulation/block_emulator.h"
#include "tests/support/emulation/emulated_stream.h"

namespace muster::testing {
namespace {

// The block emulator has one set of registers for all.
base::Mutex& WhoWorks() {
  static base::Mutex mutex;
  return mutex;
}

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

bool AllDone(const std::vector<WorkOrder::Handle>& items) {
  return std::all_of(items.begin(), items.end(),
                     [](const WorkOrder::Handle& item) { return item->done; });
}

constexpr absl::Duration kLookAgain = absl::Microseconds(200);

}  // namespace

struct EmulatedCuda::Node {
  Work run;
  std::function<bool()> may_run;
  int lane;
  std::vector<size_t> after;  // earlier nodes
};

struct EmulatedCuda::Capture {
  Stream* origin;
  std::thread::id thread;
  std::vector<Node> nodes;
};

struct EmulatedCuda::Graph {
  std::vector<Node> nodes;
  std::vector<WorkOrder::Handle> last_launch;
};

struct EmulatedCuda::Event {
  Front front;
};

class EmulatedCuda::Stream final : public EmulatedStream {
 public:
  Stream(EmulatedCuda& device, int lane) : device_(device), lane_(lane) {}

  kernels::LaunchError Enqueue(WorkFunction work) override {
    return EnqueueWhen(nullptr, std::move(work));
  }
  kernels::LaunchError EnqueueWhen(std::function<bool()> may_run, WorkFunction work) override {
    thread_local std::string failure;
    base::MutexLock lock(device_.mu_);
    failure = std::string(device_.Put(*this, std::move(work), std::move(may_run)).message());
    return failure.empty() ? nullptr : failure.c_str();
  }

  int lane() const { return lane_; }
  Front& front() { return front_; }
  int64_t& pieces() { return pieces_; }

 private:
  EmulatedCuda& device_;
  const int lane_;
  // Guarded by the device's mutex.
  Front front_;
  int64_t pieces_ = 0;  // of work that were ever put on it
};

EmulatedCuda::EmulatedCuda(Options options)
    : options_(options), order_(options.seed, options.work_per_question) {}

EmulatedCuda::~EmulatedCuda() = default;

absl::Status EmulatedCuda::Finish() {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(Let(WorkOrder::kAll));
  if (!captures_.empty()) return absl::InternalError("a capture was not ended");
  if (!order_.is_idle()) return absl::InternalError("work is left that may never run");
  if (memory_.num_allocations() + pinned_.size() + streams_.size() + events_.size() +
          graphs_.size() >
      0) {
    return absl::InternalError(
        absl::StrCat("not given back: ", memory_.num_allocations(), " allocations of the device, ",
                     pinned_.size(), " of pinned memory, ", streams_.size(), " streams, ",
                     events_.size(), " events, ", graphs_.size(), " graphs"));
  }
  return absl::OkStatus();
}

bool EmulatedCuda::Holds(const void* memory, size_t bytes) {
  base::MutexLock lock(mu_);
  return memory_.Holds(memory, bytes);
}

absl::StatusOr<CudaProperties> EmulatedCuda::Properties() {
  return CudaProperties{.uuid = options_.uuid,
                        .name = "an emulated GPU",
                        .major = 9,
                        .minor = 0,
                        .num_multiprocessors = 1,
                        .shared_bytes_max = BlockEmulator::shared_bytes_max};
}

absl::StatusOr<CudaMemory> EmulatedCuda::MemoryInfo() {
  base::MutexLock lock(mu_);
  return CudaMemory{.free_bytes = options_.memory_bytes - memory_.bytes(),
                    .total_bytes = options_.memory_bytes};
}

absl::Status EmulatedCuda::LastError() {
  base::MutexLock lock(mu_);
  return Failure();
}

// --- Running

absl::Status EmulatedCuda::Failure() {
  return failure_.empty() ? absl::OkStatus() : absl::InternalError(failure_);
}

// Opening the device's memory and closing it again costs more than a piece of work.
absl::Status EmulatedCuda::Let(size_t most) {
  if (most == 0 || !order_.MayRun()) return Failure();
  base::MutexLock lock(WhoWorks());
  memory_.Open();
  std::string failure = order_.Run(most);
  memory_.Close();
  if (failure_.empty()) failure_ = std::move(failure);
  return Failure();
}

absl::Status EmulatedCuda::Force(Front front) {
  if (front.capture != 0) return Wrong("the host waits for what is captured and does not run");
  while (true) {
    if (order_.MayRun()) {
      base::MutexLock lock(WhoWorks());
      memory_.Open();
      std::string failure = order_.RunUntil(front.work);
      memory_.Close();
      if (failure_.empty()) failure_ = std::move(failure);
    }
    if (AllDone(front.work)) return Failure();
    nobody_tells_.WaitUntil(mu_, MonoNow() + kLookAgain);
  }
}

// Something happens meanwhile, so that who asks again and again gets its answer.
absl::StatusOr<bool> EmulatedCuda::Query(const Front& front) {
  if (front.capture != 0) return Wrong("the host asks for what is captured and does not run");
  MUSTER_RETURN_IF_ERROR(Let(order_.DrawSome()));
  return AllDone(front.work);
}

absl::Status EmulatedCuda::Put(Stream& stream, Work work, std::function<bool()> may_run) {
  MUSTER_RETURN_IF_ERROR(Failure());
  ++stream.pieces();
  Front& front = stream.front();
  if (front.capture != 0) {
    std::vector<Node>& nodes = captures_.at(front.capture).nodes;
    nodes.push_back({.run = std::move(work),
                     .may_run = std::move(may_run),
                     .lane = stream.lane(),
                     .after = front.nodes});
    front.nodes = {nodes.size() - 1};
  } else {
    front.work = {order_.Add(std::move(work), stream.lane(), front.work, std::move(may_run))};
  }
  return absl::OkStatus();
}

absl::Status EmulatedCuda::NotCapturing(absl::string_view what) {
  for (const auto& [id, capture] : captures_) {
    if (capture.thread == std::this_thread::get_id()) {
      return Wrong(absl::StrCat(what, " while this thread captures a stream"));
    }
  }
  return absl::OkStatus();
}

// --- Memory

absl::StatusOr<void*> EmulatedCuda::Allocate(size_t bytes) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(NotCapturing("memory is taken"));
  if (bytes > options_.memory_bytes - memory_.bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("the emulated GPU has ",
                                                     options_.memory_bytes - memory_.bytes(),
                                                     " bytes left, not ", bytes));
  }
  return memory_.Allocate(bytes);
}

absl::Status EmulatedCuda::Free(void* memory) {
  base::MutexLock lock(mu_);
  if (memory == nullptr) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(NotCapturing("memory is freed"));
  const absl::Status status = Let(WorkOrder::kAll);
  std::string failure = memory_.Free(memory);
  if (failure_.empty()) failure_ = std::move(failure);
  return status.ok() ? Failure() : status;
}

absl::StatusOr<void*> EmulatedCuda::AllocatePinned(size_t bytes) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(NotCapturing("pinned memory is taken"));
  std::vector<unsigned char> memory(std::max<size_t>(bytes, 1), kMemoryPoison);
  void* data = memory.data();
  pinned_.emplace(reinterpret_cast<uintptr_t>(data), std::move(memory));
  return data;
}

absl::Status EmulatedCuda::FreePinned(void* memory) {
  base::MutexLock lock(mu_);
  if (memory == nullptr) return absl::OkStatus();
  if (pinned_.erase(reinterpret_cast<uintptr_t>(memory)) > 0) return absl::OkStatus();
  return Wrong("pinned memory is freed that was not allocated, or was freed before");
}

bool EmulatedCuda::IsPinned(const void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return false;
  const auto& [first, area] = *--after;
  return address - first <= area.size() && bytes <= area.size() - (address - first);
}

std::string EmulatedCuda::WhyNotCopied(const void* to, const void* from, size_t bytes,
                                       CopyDirection direction) {
  const auto side = [&](absl::string_view name, bool on_host, bool right) -> std::string {
    if (right) return "";
    return absl::StrCat("a copy of ", bytes, " bytes ", name, " what is no ",
                        on_host ? "pinned memory" : "memory of the device", ", or no longer");
  };
  const bool to_host = direction == CopyDirection::kToHost;
  const bool from_host = direction == CopyDirection::kToDevice;
  const bool to_right = to_host ? IsPinned(to, bytes) : memory_.Holds(to, bytes);
  const bool from_right = from_host ? IsPinned(from, bytes) : memory_.Holds(from, bytes);
  const std::string why = side("to", to_host, to_right);
  return why.empty() ? side("from", from_host, from_right) : why;
}

absl::Status EmulatedCuda::MemcpyAsync(void* to, const void* from, size_t bytes,
                                       CopyDirection direction, CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const on, Find(stream));
  if (bytes == 0) return absl::OkStatus();
  if (const std::string why = WhyNotCopied(to, from, bytes, direction); !why.empty()) {
    return Wrong(why);
  }
  return Put(*on, [=, this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {  // runs under mu_
    std::string why = WhyNotCopied(to, from, bytes, direction);
    if (why.empty()) std::memmove(to, from, bytes);
    return why;
  });
}

absl::Status EmulatedCuda::MemsetAsync(void* memory, int value, size_t bytes, CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const on, Find(stream));
  if (bytes == 0) return absl::OkStatus();
  if (!memory_.Holds(memory, bytes)) return Wrong("what is set is no memory of the device");
  return Put(*on, [=] {
    std::memset(memory, value, bytes);
    return std::string();
  });
}

// --- Streams and events

absl::StatusOr<EmulatedCuda::Stream*> EmulatedCuda::Find(CudaStream stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return Wrong("no such stream, or it was destroyed");
  return found->second.get();
}

absl::StatusOr<EmulatedCuda::Event*> EmulatedCuda::Find(CudaEvent event) {
  const auto found = events_.find(event.handle);
  if (found == events_.end()) return Wrong("no such event, or it was destroyed");
  return found->second.get();
}

absl::StatusOr<CudaStream> EmulatedCuda::CreateStream() {
  base::MutexLock lock(mu_);
  auto stream = std::make_unique<Stream>(*this, num_lanes_++);
  CudaStream handle = static_cast<EmulatedStream*>(stream.get());
  streams_.emplace(handle, std::move(stream));
  return handle;
}

absl::Status EmulatedCuda::DestroyStream(CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const destroyed, Find(stream));
  if (destroyed->front().capture != 0) return Wrong("a stream is destroyed that is captured");
  streams_.erase(stream);
  return absl::OkStatus();
}

absl::Status EmulatedCuda::SynchronizeStream(CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(NotCapturing("the host waits"));
  MUSTER_ASSIGN_OR_RETURN(Stream* const found, Find(stream));
  return Force(found->front());
}

absl::StatusOr<bool> EmulatedCuda::QueryStream(CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const found, Find(stream));
  return Query(found->front());
}

absl::StatusOr<absl::Duration> EmulatedCuda::TimeOf(CudaStream stream,
                                                    absl::FunctionRef<void()> put) {
  const auto pieces = [&]() -> absl::StatusOr<int64_t> {
    MUSTER_RETURN_IF_ERROR(SynchronizeStream(stream));
    base::MutexLock lock(mu_);
    MUSTER_ASSIGN_OR_RETURN(Stream* const found, Find(stream));
    return found->pieces();
  };
  MUSTER_ASSIGN_OR_RETURN(const int64_t before, pieces());
  put();
  MUSTER_ASSIGN_OR_RETURN(const int64_t after, pieces());
  return absl::Microseconds(after - before);
}

absl::StatusOr<CudaEvent> EmulatedCuda::CreateEvent() {
  base::MutexLock lock(mu_);
  auto event = std::make_unique<Event>();
  const CudaEvent handle = {.handle = event.get()};
  events_.emplace(handle.handle, std::move(event));
  return handle;
}

absl::Status EmulatedCuda::DestroyEvent(CudaEvent event) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(Find(event).status());
  events_.erase(event.handle);
  return absl::OkStatus();
}

absl::Status EmulatedCuda::RecordEvent(CudaEvent event, CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Event* const recorded, Find(event));
  MUSTER_ASSIGN_OR_RETURN(Stream* const on, Find(stream));
  recorded->front = on->front();
  if (recorded->front.capture != 0) recorded->front.work.clear();
  return Failure();
}

absl::Status EmulatedCuda::SynchronizeEvent(CudaEvent event) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(NotCapturing("the host waits"));
  MUSTER_ASSIGN_OR_RETURN(Event* const found, Find(event));
  return Force(found->front);
}

absl::StatusOr<bool> EmulatedCuda::QueryEvent(CudaEvent event) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Event* const found, Find(event));
  return Query(found->front);
}

absl::Status EmulatedCuda::StreamWaitEvent(CudaStream stream, CudaEvent event) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const waits, Find(stream));
  MUSTER_ASSIGN_OR_RETURN(Event* const found, Find(event));
  Front& front = waits->front();
  const Front& awaited = found->front;
  if (awaited.capture == 0) {
    if (front.capture != 0 && !awaited.work.empty()) {
      return Wrong("a captured stream waits for an event that was recorded outside of the capture");
    }
    std::erase_if(front.work, [](const WorkOrder::Handle& item) { return item->done; });
    front.work.insert(front.work.end(), awaited.work.begin(), awaited.work.end());
    return Failure();
  }
  if (!captures_.contains(awaited.capture)) {
    return Wrong("a stream waits for an event that was recorded in a capture that has ended");
  }
  if (front.capture != 0 && front.capture != awaited.capture) {
    return Wrong("a captured stream waits for an event of another capture");
  }
  front.capture = awaited.capture;
  front.nodes.insert(front.nodes.end(), awaited.nodes.begin(), awaited.nodes.end());
  return Failure();
}

// --- Graphs

absl::Status EmulatedCuda::BeginCapture(CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const origin, Find(stream));
  if (origin->front().capture != 0) return Wrong("a stream is captured that is captured already");
  origin->front().capture = ++num_captures_;
  captures_[num_captures_] = {.origin = origin, .thread = std::this_thread::get_id(), .nodes = {}};
  return Failure();
}

absl::StatusOr<CudaGraph> EmulatedCuda::EndCapture(CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_ASSIGN_OR_RETURN(Stream* const origin, Find(stream));
  const auto found = captures_.find(origin->front().capture);
  if (found == captures_.end() || found->second.origin != origin) {
    return Wrong("a capture is ended on a stream that it was not begun on");
  }
  auto graph = std::make_unique<Graph>(Graph{.nodes = std::move(found->second.nodes)});
  std::vector<bool> joined(graph->nodes.size());
  for (const size_t node : origin->front().nodes) joined[node] = true;
  for (size_t i = joined.size(); i-- > 0;) {
    if (!joined[i]) continue;
    for (const size_t earlier : graph->nodes[i].after) joined[earlier] = true;
  }
  for (const auto& [handle, other] : streams_) {
    Front& front = other->front();
    if (front.capture != found->first) continue;
    front.capture = 0;
    front.nodes.clear();
  }
  captures_.erase(found);
  if (std::count(joined.begin(), joined.end(), false) > 0) {
    return Wrong("a capture is ended that another stream has not come back from");
  }
  MUSTER_RETURN_IF_ERROR(Failure());
  const CudaGraph handle = {.handle = graph.get()};
  graphs_.emplace(handle.handle, std::move(graph));
  return handle;
}

// Its nodes mix with the work of other streams.
absl::Status EmulatedCuda::LaunchGraph(CudaGraph graph, CudaStream stream) {
  base::MutexLock lock(mu_);
  MUSTER_RETURN_IF_ERROR(NotCapturing("a graph is launched"));
  MUSTER_ASSIGN_OR_RETURN(Stream* const on, Find(stream));
  const auto found = graphs_.find(graph.handle);
  if (found == graphs_.end()) return Wrong("no such graph, or it was destroyed");
  Graph& launched = *found->second;
  std::vector<WorkOrder::Handle>& front = on->front().work;
  std::vector<WorkOrder::Handle> before = front;
  before.insert(before.end(), launched.last_launch.begin(), launched.last_launch.end());
  std::vector<WorkOrder::Handle> items;
  for (const Node& node : launched.nodes) {
    std::vector<WorkOrder::Handle> after;
    for (const size_t earlier : node.after) after.push_back(items[earlier]);
    items.push_back(order_.Add(node.run, node.lane, after.empty() ? before : after, node.may_run));
  }
  if (!items.empty()) front = launched.last_launch = std::move(items);
  return Failure();
}

absl::Status EmulatedCuda::DestroyGraph(CudaGraph graph) {
  base::MutexLock lock(mu_);
  const auto found = graphs_.find(graph.handle);
  if (found == graphs_.end()) return Wrong("no such graph, or it was destroyed");
  const auto& items = found->second->last_launch;
  const bool done = AllDone(items);
  graphs_.erase(found);
  return done ? Failure() : Wrong("a graph is destroyed before its last launch has run");
}

}  // namespace muster::testing
