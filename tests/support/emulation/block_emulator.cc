#include "tests/support/emulation/block_emulator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/status_macros.h"
#include "tests/support/emulation/draws.h"
#include "tests/support/emulation/fibre.h"

namespace muster::testing {
namespace {

constexpr unsigned char kPoison = 0xff;
constexpr size_t kCopyBytes = 16;

std::string Place(const SourcePlace& where) {
  absl::string_view file = where.file_name();
  return absl::StrCat(file.substr(file.rfind('/') + 1), ":", where.line());
}

bool SamePlace(const SourcePlace& a, const SourcePlace& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

struct Thread {
  enum class State { kReady, kInBlockMeeting, kInWarpMeeting, kEnded };
  struct Copy {
    void* to;
    const void* from;
  };

  Fibre fibre;
  State state = State::kReady;
  SourcePlace where;  // of the meeting that it waits in
  std::vector<Copy> copies;
};

// The threads of a block or a warp that wait somewhere.
struct Meeting {
  int present = 0;
  bool vote = false;
};

class Block {
 public:
  // `threads`: at rest.
  Block(absl::Span<const std::unique_ptr<Thread>> threads, size_t shared_bytes);

  // Empty, or what went wrong.
  std::string Run(const std::function<void()>& thread, Draws& draws);

  bool MeetInBlock(bool vote, SourcePlace where);
  const BlockEmulator::Slots& MeetInWarp(const void* value, size_t bytes, SourcePlace where);
  Thread& running() { return *threads_[running_]; }
  void Fail(std::string what);

 private:
  void WaitAs(Thread::State state, const SourcePlace& where);
  void WakeUp(size_t first, size_t last);
  // `kind`: of the meeting; first, last: who should come.
  void CheckPlaces(size_t first, size_t last, absl::string_view kind);
  void EndThread();
  std::string WhoWaits() const;

  absl::Span<const std::unique_ptr<Thread>> threads_;
  std::unique_ptr<unsigned char[]> shared_;
  size_t shared_bytes_;
  std::vector<size_t> ready_;
  size_t running_ = 0;
  size_t ended_ = 0;
  Meeting block_;
  bool block_verdict_ = false;
  struct WarpState {
    Meeting meeting;
    // A lane may come to the next meeting before another has read what this one gave.
    BlockEmulator::Slots slots[2];
    int turn = 0;
  };
  std::vector<WarpState> warps_;
  std::string failure_;
};

// The launch that runs.
Block* running_block = nullptr;
uint64_t schedule = 1;

// Kept for later launches: a launch takes less time than making its stacks again.
absl::Span<const std::unique_ptr<Thread>> TakeThreads(size_t threads) {
  static std::vector<std::unique_ptr<Thread>> made;
  while (made.size() < threads) made.push_back(std::make_unique<Thread>());
  return absl::MakeConstSpan(made).first(threads);
}

Block::Block(absl::Span<const std::unique_ptr<Thread>> threads, size_t shared_bytes)
    : threads_(threads), shared_(new unsigned char[shared_bytes]), shared_bytes_(shared_bytes) {
  warps_.resize(threads.size() / BlockEmulator::kWarpSize);
}

void Block::Fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

std::string Block::Run(const std::function<void()>& thread, Draws& draws) {
  std::fill_n(shared_.get(), shared_bytes_, kPoison);
  BlockEmulator::shared_memory = shared_.get();
  block_ = {};
  ended_ = 0;
  ready_.clear();
  for (size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->fibre.Start([&thread] { thread(); });
    threads_[i]->state = Thread::State::kReady;
    threads_[i]->copies.clear();
    ready_.push_back(i);
  }
  for (WarpState& warp : warps_) warp.meeting = {};
  while (failure_.empty() && !ready_.empty()) {
    std::swap(ready_[draws.Below(ready_.size())], ready_.back());
    running_ = ready_.back();
    ready_.pop_back();
    BlockEmulator::thread_index = {.x = static_cast<unsigned>(running_)};
    if (running().fibre.Resume()) EndThread();
  }
  if (failure_.empty() && ended_ < threads_.size()) Fail(WhoWaits());
  return failure_;
}

void Block::EndThread() {
  running().state = Thread::State::kEnded;
  ++ended_;
  if (!running().copies.empty()) {
    Fail(absl::StrCat("thread ", running_, " ended with copies that it had not finished"));
  }
}

// Nobody can go on: the first that waits, and one that does not wait with it.
std::string Block::WhoWaits() const {
  std::string text = "threads wait for others that do not come:";
  std::vector<std::string> told;
  for (size_t i = 0; i < threads_.size(); ++i) {
    const Thread& thread = *threads_[i];
    const std::string place = thread.state == Thread::State::kEnded
                                  ? std::string("has ended")
                                  : absl::StrCat("is at ", Place(thread.where));
    if (std::find(told.begin(), told.end(), place) != told.end()) continue;
    absl::StrAppend(&text, told.empty() ? " " : "; ", "thread ", i, " ", place);
    told.push_back(place);
  }
  return text;
}

void Block::WaitAs(Thread::State state, const SourcePlace& where) {
  Thread& self = running();
  self.state = state;
  self.where = where;
}

void Block::WakeUp(size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    threads_[i]->state = Thread::State::kReady;
    if (i != running_) ready_.push_back(i);
  }
}

void Block::CheckPlaces(size_t first, size_t last, absl::string_view kind) {
  for (size_t i = first; i < last; ++i) {
    if (SamePlace(threads_[i]->where, running().where)) continue;
    Fail(absl::StrCat(kind, " differ: thread ", i, " is at ", Place(threads_[i]->where),
                      ", thread ", running_, " at ", Place(running().where)));
  }
}

bool Block::MeetInBlock(bool vote, SourcePlace where) {
  block_.vote |= vote;
  WaitAs(Thread::State::kInBlockMeeting, where);
  if (++block_.present == static_cast<int>(threads_.size())) {
    CheckPlaces(0, threads_.size(), "barriers of a block");
    block_verdict_ = block_.vote;
    block_ = {};
    WakeUp(0, threads_.size());
    ready_.push_back(running_);
  }
  running().fibre.Leave();
  return block_verdict_;
}

const BlockEmulator::Slots& Block::MeetInWarp(const void* value, size_t bytes, SourcePlace where) {
  const size_t lane = running_ % BlockEmulator::kWarpSize;
  const size_t first = running_ - lane;
  WarpState& warp = warps_[running_ / BlockEmulator::kWarpSize];
  const int turn = warp.turn;
  MUSTER_CHECK(bytes <= BlockEmulator::kSlotBytes);
  if (bytes > 0) std::memcpy(warp.slots[turn][lane].data(), value, bytes);
  WaitAs(Thread::State::kInWarpMeeting, where);
  if (++warp.meeting.present == BlockEmulator::kWarpSize) {
    CheckPlaces(first, first + BlockEmulator::kWarpSize, "operations of a warp");
    warp.meeting = {};
    warp.turn ^= 1;
    WakeUp(first, first + BlockEmulator::kWarpSize);
    ready_.push_back(running_);
  }
  running().fibre.Leave();
  return warp.slots[turn];
}

}  // namespace

void BlockEmulator::SetSchedule(uint64_t seed) { schedule = seed; }

kernels::LaunchError BlockEmulator::Run(kernels::LaunchShape shape,
                                        const std::function<void()>& thread) {
  static std::string failure;
  if (shape.blocks == 0 || shape.blocks_y == 0) return nullptr;
  if (shape.threads <= 0 || shape.threads > 1024 || shape.threads % kWarpSize != 0) {
    failure = absl::StrCat("a block of ", shape.threads, " threads");
    return failure.c_str();
  }
  if (shape.shared_bytes > shared_bytes_max) {
    failure = absl::StrCat("a block of ", shape.shared_bytes, " bytes of shared memory, of which ",
                           "there are at most ", shared_bytes_max);
    return failure.c_str();
  }
  block_size = {.x = static_cast<unsigned>(shape.threads), .y = 1, .z = 1};
  grid_size = {
      .x = static_cast<unsigned>(shape.blocks), .y = static_cast<unsigned>(shape.blocks_y), .z = 1};
  Draws draws(schedule);
  std::vector<int64_t> order(shape.blocks * shape.blocks_y);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.Below(i)]);
  Block block(TakeThreads(shape.threads), shape.shared_bytes);
  running_block = &block;
  failure.clear();
  for (const int64_t index : order) {
    block_index = {.x = static_cast<unsigned>(index % shape.blocks),
                   .y = static_cast<unsigned>(index / shape.blocks)};
    failure = block.Run(thread, draws);
    if (failure.empty()) continue;
    absl::StrAppend(&failure, " (block ", block_index.x, ", ", block_index.y, ")");
    break;
  }
  running_block = nullptr;
  return failure.empty() ? nullptr : failure.c_str();
}

bool BlockEmulator::MeetInBlock(bool vote, SourcePlace where) {
  return running_block->MeetInBlock(vote, where);
}

const BlockEmulator::Slots& BlockEmulator::MeetInWarp(const void* value, size_t bytes,
                                                      SourcePlace where) {
  return running_block->MeetInWarp(value, bytes, where);
}

void BlockEmulator::StartCopy(void* to, const void* from, SourcePlace where) {
  const auto aligned = [](const void* at) {
    return reinterpret_cast<uintptr_t>(at) % kCopyBytes == 0;
  };
  if (!aligned(to) || !aligned(from)) {
    running_block->Fail(absl::StrCat("a copy at ", Place(where), " is not aligned to 16 bytes"));
    return;
  }
  running_block->running().copies.push_back({.to = to, .from = from});
}

void BlockEmulator::FinishCopies() {
  for (const Thread::Copy& copy : running_block->running().copies) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, kCopyBytes);
    } else {
      std::memcpy(copy.to, copy.from, kCopyBytes);
    }
  }
  running_block->running().copies.clear();
}

}  // namespace muster::testing
