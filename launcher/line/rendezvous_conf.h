// --rdzv_conf: "k1=v1,k2=v2" -> values. torchrun's keys and ours, one row of a table each. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::launcher {

struct RendezvousConf {
  std::optional<absl::Duration> timeout;  // of the static back end; the others': join_timeout
  std::optional<absl::Duration> join_timeout;
  std::optional<absl::Duration> last_call_timeout;
  std::optional<absl::Duration> close_timeout;
  std::optional<absl::Duration> read_timeout;
  std::optional<absl::Duration> orphan_timeout;
  std::optional<absl::Duration> lease;
  std::optional<absl::Duration> renew_interval;
  std::optional<bool> is_host;
  std::optional<int> rank;
  // A sentence for each key of torchrun's back ends that has nothing to set here.
  std::vector<std::string> warnings;
};

// A value may be quoted, and so may the whole text (PyTorch's own tests do). A key given twice: the
// last one wins.
//
// Errors: kInvalidArgument naming the item: no value, an unknown key (with the nearest), a value of
// the wrong kind.
absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text);

// The keys that have an effect, for the help: "join_timeout, ...".
std::string RendezvousConfKeys();

}  // namespace muster::launcher
