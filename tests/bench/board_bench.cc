// What a rank pays for being watched: one operation on the progress board, and one mark, in
// nanoseconds.
//
//   board_bench [operations]
//
// The board lies in memory of an agent's kind (shared, named, mapped twice), which no other process
// writes; an operation is its record, its start, that it is awaited, and its end.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "agent/process/board_memory.h"
#include "worker_runtime/comm/operation_ring.h"

namespace muster::comm {
namespace {

double NanosecondsOf(MonoTime begin, int count) {
  return absl::ToDoubleNanoseconds(MonoNow() - begin) / count;
}

int Run(int count) {
  const auto memory = agent::BoardMemory::Create();
  if (!memory.ok()) return 1;
  const auto ring = OperationRing::OpenBoard(memory->path());
  if (!ring.ok()) return 1;
  OperationRing& board = **ring;
  const uint16_t group = board.AddGroup({.name = "world", .id = 1, .rank = 0, .size = 8});
  const Operation operation = {.kind = OperationKind::kAllReduce, .sequence = 0};
  const MonoTime now = MonoNow();
  for (const bool is_warm : {false, true}) {
    MonoTime begin = MonoNow();
    for (int i = 0; i < count; ++i) {
      const OperationRing::Ticket ticket = board.Record(group, operation, 1, now);
      board.SetState(ticket, OperationState::kStarted);
      board.SetAwaited(ticket, true);
      board.SetState(ticket, OperationState::kDone);
      board.AddWait(absl::Nanoseconds(100));
    }
    const double of_operation = NanosecondsOf(begin, count);
    begin = MonoNow();
    for (int i = 0; i < count; ++i) board.MarkProgress(i, Phase::kForward);
    const double of_mark = NanosecondsOf(begin, count);
    if (!is_warm) continue;
    std::printf("board: %.0f ns an operation from its call to its end, %.0f ns a mark\n",
                of_operation, of_mark);
  }
  return 0;
}

}  // namespace
}  // namespace muster::comm

int main(int argc, char** argv) {
  return muster::comm::Run(argc > 1 ? std::atoi(argv[1]) : 1000000);
}
