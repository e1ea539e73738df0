// Values of command line options: text -> plain values. Each is read here, whether it came from the
// command line or from an environment variable; launcher/flags.cc puts the name of the option in
// front of the message. Ranges of numbers are JobSpec::Validate's.
//
// Errors:  kInvalidArgument saying what was expected.
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// "host", "host:port", "[v6]:port", "[v6]", or a bare IPv6 literal. `default_port` if there is
// none.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text, int default_port);

// A host name or address, without port or brackets.
absl::StatusOr<std::string> ParseHost(const std::string& text);

// "0".."3", or a map of local ranks "0:1,11:3".
absl::StatusOr<StreamSelection> ParseStreamSelection(const std::string& text);

// "0,2,11"; sorted, each once. Empty text: none.
absl::StatusOr<std::vector<int>> ParseLocalRanks(const std::string& text);

// Comma list in which ",," stands for one comma. Empty text: none.
absl::StatusOr<std::vector<std::string>> ParseFilters(const std::string& text);

// "SIGTERM,INT"; with or without SIG. Only signals that a process can be asked to stop by, or to
// pass on.
absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text);

// Seconds ("30", "0.5"), or with a unit: "500ms", "30s", "10m", "1h". To the microsecond.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);

absl::StatusOr<int> ParseInteger(const std::string& text);
absl::StatusOr<double> ParseNumber(const std::string& text);
absl::StatusOr<std::string> ParseText(const std::string& text);

// 0 1 true false yes no on off, in any case.
absl::StatusOr<bool> ParseBool(const std::string& text);

// "A-B".
absl::StatusOr<PortRange> ParsePortRange(const std::string& text);

absl::StatusOr<NumaBinding> ParseNumaBinding(const std::string& text);
absl::StatusOr<ConsoleMode> ParseConsoleMode(const std::string& text);

}  // namespace muster::launcher
