// The command line of musterd, and what follows from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/endpoint.h"
#include "proto/base/environment.h"
#include "proto/base/membership.h"
#include "proto/io/credentials.h"
#include "proto/io/log.h"
#include "proto/io/user_secret.h"

namespace muster::rendezvous {

// The port at which agents look for it unless they are told another (as torchrun does).
inline constexpr int kDefaultPort = 29400;

struct MusterdOptions {
  Endpoint listen{.host = "localhost", .port = kDefaultPort};  // port 0: a free one
  std::string port_file;
  std::string token_file;
  std::string token_dir;
  std::string state_dir;  // empty: the state dies with the process
  TlsMode tls = TlsMode::kOn;
  bool authentication = true;
  absl::Duration lease = LeaseSettings{}.duration;
  std::optional<Endpoint> metrics;  // none: they are not served
  std::optional<Endpoint> health;   // none: no probe is answered
  log::Format log_format = log::Format::kText;
};

struct MusterdCommand {
  MusterdOptions options;
  std::vector<std::string> warnings;  // accepted, but worth a line
  std::string print;                  // not empty: to be printed, and nothing else done
};

// `args` without the program's name.
//
// Errors: kInvalidArgument naming the flag, the value and what was expected.
absl::StatusOr<MusterdCommand> ParseMusterdCommand(const std::vector<std::string>& args,
                                                   const EnvironmentMap& environment);

// One owner per file of `token_dir`, named as the file; else the user's own secret, named "".
//
// Errors: those of LoadUserSecret. kInvalidArgument: an empty directory, or two owners with the
// same secret.
absl::StatusOr<std::vector<OwnerKey>> LoadOwners(const std::string& token_dir,
                                                 const SecretSources& sources);

// Writes `port` and a newline so that a reader never sees half of it.
absl::Status WritePortFile(const std::string& path, int port);

}  // namespace muster::rendezvous
