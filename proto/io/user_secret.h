// The secret of a user: what tells this user's nodes from strangers. Nothing has to be set up where
// home is shared.
//
// Threads: thread-safe (files only).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/environment.h"

namespace muster {

// What a secret looks like: 32 random bytes in hexadecimal, or in base64 of either alphabet, with
// or without its one `=`. Others are refused, since what a person thinks of can be guessed from
// what anyone hears: the name in a certificate, or a proof.
inline constexpr size_t kSecretHexDigits = 64;
inline constexpr size_t kSecretBase64Characters = 43;

// The sources that the secret may come from; the first that is not empty counts.
struct SecretSources {
  std::string token;       // $MUSTER_TOKEN: the secret itself
  std::string token_file;  // $MUSTER_TOKEN_FILE or --token_file
  std::string home;        // $HOME: .config/muster/token below it, made on first use
};

// Those that `environment` names.
SecretSources SecretSourcesIn(const EnvironmentMap& environment);

struct UserSecret {
  std::string secret;
  std::string origin;  // "MUSTER_TOKEN" or the path, for messages
};

// Finds the secret, and makes the file below `home` (0600 in a directory of 0700, 32 random bytes
// in hexadecimal) if there is none; of several processes that do so at once all get the same
// secret.
//
// Errors: kInvalidArgument: of another form, no source given, or it cannot be read or made.
//         kPermissionDenied: the file belongs to somebody else, or others may read it; the message
//         has the command to run. kNotFound: `token_file` does not exist.
absl::StatusOr<UserSecret> LoadUserSecret(const SecretSources& sources);

// The public secret: authentication is off (--auth=none), and anyone who reaches the port is let
// in.
UserSecret PublicSecret();
// The end of the line that says that authentication is off, behind the address.
inline constexpr char kAuthenticationOff[] =
    " without authentication (--auth=none): anyone who reaches that port can join or stop jobs";

// Reads one token file, with the same checks; never makes one.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

}  // namespace muster
