// What the agent of another host needs, as one line of text: sent over the standard input of ssh,
// so that no value ever passes through a shell.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct RemoteStart {
  std::string directory;               // to start in
  std::vector<std::string> arguments;  // of `muster run`
  EnvironmentMap environment;          // set over what the host gives
  friend bool operator==(const RemoteStart&, const RemoteStart&) = default;
};

// The line that an agent writes when it has been reached, before anything else of its own.
inline constexpr char kRemoteGreeting[] = "muster-agent 1";

// One line, with its end. What is no UTF-8 goes unharmed.
std::string EncodeRemoteStart(const RemoteStart& start);

// Errors: kInvalidArgument: not such a line.
absl::StatusOr<RemoteStart> DecodeRemoteStart(const std::string& line);

}  // namespace muster::launcher
