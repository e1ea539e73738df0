// What PyTorch tells of a rank from outside: its flight recorder, its counters of waiting, the ranks
// of its groups (torch_hook.py), and the stack of its Python.
//
// JSON of a worker, which may be anything: what is not as expected is left out.
//
// Source: torch 2.15, observed. On Gloo `retired` is the only sign of completion, and sends and
// receives are not recorded; they use up op_id.
//
// Pure values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/verdict/evidence.h"
#include "rendezvous/verdict/last_calls.h"

namespace muster::agent {

// One process group, as one rank has used it.
struct TorchGroup {
  std::string name;                            // PyTorch's own, the same on all ranks
  std::string label;                           // for people
  int64_t num_issued = 0;                      // collectives that were called
  std::vector<verdict::Operation> operations;  // of the recorder, oldest first
};

struct TorchRecords {
  std::vector<TorchGroup> groups;
  std::vector<verdict::Call> last_calls;  // of all groups, oldest first; at most kLastCallsMax
  // Calls that were made between those that are recorded: sends and receives.
  bool has_unrecorded = false;
  uint64_t fingerprint = 0;  // changes with all that is recorded
  bool has_pending = false;  // of some operation it is not known that it has ended
};

uint64_t FingerprintOfTorch(absl::string_view recorder);

// fr_trace_json.
//
// Errors: kInvalidArgument: no JSON of a recorder.
absl::StatusOr<TorchRecords> ReadTorchRecorder(absl::string_view json);

// wait_counter_values: calls of new_group, for which all ranks come together and which the recorder
// does not have, as operations of a group of all ranks. Without operations if there was none.
TorchGroup ReadTorchWaits(absl::string_view json);

// What the hook tells: the ranks of each group by PyTorch's name of it, and "function at file:line"
// of the main thread, innermost first. Empty where it is not as expected.
using TorchMembers = std::map<std::string, std::vector<int>>;
struct TorchPython {
  TorchMembers members;
  std::vector<std::string> frames;
  std::string calls;  // the name of the method that the innermost has looked up last
};
TorchPython ReadTorchPython(absl::string_view json);

// The send or receive in which a main thread is that has these frames and `calls` that; empty: in
// none. "wait": for something that PyTorch does, a send or receive if the recorder has nothing.
std::string TorchTransferOf(const TorchPython& python);

}  // namespace muster::agent
