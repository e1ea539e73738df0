// What PyTorch tells of a rank from outside: its flight recorder, its counters of waiting, the
// ranks of its groups (torch_hook.py), and the stack of its Python.
//
// JSON of a worker, which may be anything: what is not as expected is left out.
//
// Source: torch 2.15, observed; of NCCL torch 2.11 on one H100, whose dumps lie in
// tests/unit/agent/watch/recorders. On Gloo `retired` is the only sign of completion, and sends and
// receives are not recorded; they use up op_id. NCCL's calls are in a recorder of their own, which
// numbers them by itself.
//
// Pure values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/last_calls.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::agent {

// One process group, as one rank has used it by one back end: a group may have Gloo for the host's
// tensors and NCCL for a GPU's.
struct TorchGroup {
  std::string name;                          // PyTorch's own, the same on all ranks
  std::string label;                         // for people
  int64_t num_issued = 0;                    // collectives that were called
  std::vector<hangs::Operation> operations;  // of the recorder, oldest first
  std::vector<absl::Time> called_at;         // those of the recorder, each; by this node's clock
  bool is_on_device = false;                 // NCCL's: the host calls them, a GPU does them
  // NCCL's sends and receives that have not ended; a peer is a rank of the group.
  std::vector<hangs::Operation> transfers;
  // A batch of sends and receives takes a number of the group's collectives, on the ranks that make
  // it: after that numbers of collectives do not compare between ranks.
  bool has_batches = false;

  // The same on all ranks; unlike `name`, another for each back end.
  std::string Key() const;
};

struct TorchRecords {
  std::vector<TorchGroup> groups;
  std::vector<hangs::Call> last_calls;  // of all groups, oldest first; at most kLastCallsMax
  bool has_transfers = false;           // it has sent or received
  bool has_unrecorded = false;  // as above, and no recorder has it; or there are no records at all
  uint64_t fingerprint = 0;     // changes with all that is recorded
  bool has_pending = false;     // of some operation it is not known that it has ended
};

// The dumps of a process's recorders: fr_trace_json and dump_nccl_trace_json, those that it has.
using TorchDumps = std::vector<std::string>;

uint64_t FingerprintOfTorch(const TorchDumps& dumps);

// A call that stands in two dumps is that of the first.
//
// Errors: kInvalidArgument: one of them is no JSON of a recorder.
absl::StatusOr<TorchRecords> ReadTorchRecorders(const TorchDumps& dumps);

// wait_counter_values.
struct TorchWaits {
  // Calls of new_group, for which all ranks come together and which the recorder does not have, as
  // operations of a group of all ranks. Without operations if there was none.
  TorchGroup new_groups;
  bool has_begun = false;  // it has come through init_process_group
};
TorchWaits ReadTorchWaits(absl::string_view json);

// One rank's records; none of a rank that has sends and receives, since stages of a pipeline come
// to a collective one after the other by intention.
struct RankRecords {
  int rank = 0;
  TorchRecords records;
};

// When the ranks of a node have come to the last collectives that all of them have in common,
// before `now`: of the groups that were used most.
std::vector<hangs::GroupArrivals> FindArrivals(const std::vector<RankRecords>& ranks,
                                               absl::Time now);

// A call that the main thread awaits, by PyTorch's frames: one that no recorder has, or whose root
// none has.
struct TorchCall {
  enum class Kind {
    kNone,
    kTransfer,  // "send", "recv"; or a wait that may be for one, or for what a recorder has
    kRooted,    // "broadcast", "scatter", "reduce", "gather": `peer` is the root
    kMeeting,   // of all ranks of `group`: "monitored_barrier"
    kAnswer,    // of RPC, from `peer`
    kKey,       // of a store, which is not there
  };
  Kind kind = Kind::kNone;
  std::string name;
  std::string group;  // by PyTorch's name of it; empty: of all ranks
  int peer = -1;      // rank of the job at the other end, or the root; -1: not known
};

// What the hook tells: the ranks of each group by PyTorch's name of it, "function at file:line" of
// the main thread, innermost first, then of others that are in the program's files or in
// torch.distributed (hangs::kThreadFrame), and what the main one awaits. Empty where it is not as
// expected.
using TorchMembers = std::map<std::string, std::vector<int>>;
struct TorchPython {
  TorchMembers members;
  std::vector<std::string> frames;
  TorchCall call;
  bool has_groups = false;  // destroy_process_group is still to come, or goes on
  bool has_rpc = false;     // it calls others, and is called, by PyTorch's RPC
};
TorchPython ReadTorchPython(absl::string_view json);

}  // namespace muster::agent
