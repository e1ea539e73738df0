// The command line of musterd, and what follows from it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/io/credentials.h"
#include "proto/io/log.h"
#include "proto/io/user_secret.h"

namespace muster::rendezvous {

struct MusterdOptions {
  std::string address;
  int port = 0;
  std::string port_file;
  std::string token_file;
  std::string token_dir;
  TlsMode tls = TlsMode::kOn;
  absl::Duration lease;
  log::Format log_format = log::Format::kText;
};

// What the command line says: options, or that there is nothing to run (help was printed).
struct MusterdCommand {
  bool run = false;
  int exit_code = 0;
  MusterdOptions options;
};

// Prints help and errors itself.
MusterdCommand ParseMusterdCommand(int argc, char** argv);

// "host:port", "[v6]:port".
//
// Errors: kInvalidArgument.
absl::StatusOr<std::pair<std::string, int>> ParseListen(const std::string& text);

// One owner per file of `token_dir`, named as the file; else the user's own secret, named "".
//
// Errors: those of LoadUserSecret. kInvalidArgument: an empty directory, or two owners with the
// same secret.
absl::StatusOr<std::vector<OwnerKey>> LoadOwners(const std::string& token_dir,
                                                 const SecretSources& sources);

// Writes `port` and a newline so that a reader never sees half of it.
absl::Status WritePortFile(const std::string& path, int port);

}  // namespace muster::rendezvous
