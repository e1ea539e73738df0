// Which network interfaces NCCL_SOCKET_IFNAME means.
//
//   eth,ib       those whose name begins with eth or ib
//   =eth0,eth1   eth0 and eth1 alone
//   ^docker,lo   all but those whose name begins with docker or lo
//   ^=lo         all but lo
//
// Pure values.
// Source: NCCL user guide, "Environment variables", NCCL_SOCKET_IFNAME. The marks stand once,
// before
//         the list. As in NCCL, an element may end in ":port", which says nothing about names,
//         empty elements are passed over, and a value of less than two characters sets nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::comm {

struct InterfacePattern {
  bool excludes = false;  // ^
  bool is_exact = false;  // =
  std::vector<std::string> names;

  bool Matches(absl::string_view interface) const;
};

// Never fails: each text is a pattern, if one that fits nothing. Without names it fits all of them,
// or none if it excludes.
InterfacePattern ParseInterfacePattern(absl::string_view text);

// Whether NCCL takes `text` as a setting at all.
bool IsInterfacePattern(absl::string_view text);

}  // namespace muster::comm
