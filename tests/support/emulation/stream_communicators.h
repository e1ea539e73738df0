// A backend whose operations run on streams of an emulated GPU, as nccl's do: what follows a queue
// follows its events, and what does not is found out.
//
//   EmulatedCuda cuda({.seed = seed});
//   auto ranks = MakeStreamCommunicators(cuda, {.size = 2});   // each for a thread with a device
//   of its own, on `cuda`
//
// An operation begins on the device of each rank in the order of its stream and ends on none before
// it has begun on all. It can be captured; as NCCL asks it, that is a property of the operation:
// where one rank launches it with a capture and another calls it, it fails (a GPU would hang). So
// it does where a launch was not given the numbers of its calls.
//
// Memory can be registered, and that is strict too. It is looked at as NCCL does it: when a call is
// put on its stream, by whole pages, with collectives that are no ordered sums. A call fails
//   where one rank's input (or output) lies in registered memory and another's does not;
//   where a buffer lies partly in it;
//   where a registration that it was put there or captured with has gone before it runs.
// The device fails, which Finish tells,
//   where memory is given back before its registration;
//   where a registration outlives its communicator.
// Sums are those of loopback, bit by bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/support/emulation/emulated_cuda.h"
#include "worker_runtime/comm/call_communicator.h"

namespace muster::testing {

// Collectives on memory of the device, in all groups and on all ranks, as often as they were put on
// a stream or into a capture; of ordered sums none.
struct StreamFigures {
  std::atomic<int64_t> registered_calls = 0;  // wholly in registered memory
  std::atomic<int64_t> other_calls = 0;
};

// Makes communicators as comm::MakeLoopbackCommunicators does; `cuda` outlives them, and `figures`,
// if there are any.
std::vector<std::unique_ptr<Communicator>> MakeStreamCommunicators(
    EmulatedCuda& cuda, const comm::Membership& common, StreamFigures* figures = nullptr);

}  // namespace muster::testing
