// Values that only `muster run` has: text -> plain values. Those that every program has are
// proto/command_line/values.h's; ranges of numbers are JobSpec::Validate's.
//
// Errors:  kInvalidArgument saying what was expected.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

struct NodeCount {
  int min = 1;
  int max = 1;
};
// "N" or "MIN:MAX".
absl::StatusOr<NodeCount> ParseNodeCount(const std::string& text);

// "N", "auto", "cpu", "gpu", "gpu:1,3" (ids or UUIDs).
absl::StatusOr<ProcessesPerNode> ParseProcessesPerNode(const std::string& text);

absl::StatusOr<RendezvousBackend> ParseBackend(const std::string& text);
absl::StatusOr<ScaleUp> ParseScaleUp(const std::string& text);
// "auto", "off", "require", or the name of an interface.
absl::StatusOr<NetworkUse> ParseNetworkUse(const std::string& text);
absl::StatusOr<StoreClients> ParseStoreClients(const std::string& text);
absl::StatusOr<WatchMode> ParseWatchMode(const std::string& text);

// "0".."3", or a map of local ranks "0:1,11:3".
absl::StatusOr<StreamSelection> ParseStreamSelection(const std::string& text);

// "0,2,11"; sorted, each once. Empty text: none.
absl::StatusOr<std::vector<int>> ParseLocalRanks(const std::string& text);

// Comma list in which ",," stands for one comma. Empty text: none.
absl::StatusOr<std::vector<std::string>> ParseFilters(const std::string& text);

// "SIGTERM,INT"; with or without SIG. Only signals that a process can be asked to stop by, or to
// pass on.
absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text);

// "A-B".
absl::StatusOr<PortRange> ParsePortRange(const std::string& text);

absl::StatusOr<OmpThreads> ParseOmpThreads(const std::string& text);  // "4", "auto", "none"
// "torch,numpy.linalg": names of Python modules; "auto" stands alone. Each once.
absl::StatusOr<std::vector<std::string>> ParseModules(const std::string& text);
absl::StatusOr<NumaBinding> ParseNumaBinding(const std::string& text);
absl::StatusOr<ConsoleMode> ParseConsoleMode(const std::string& text);

}  // namespace muster::launcher
