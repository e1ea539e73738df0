#include "rendezvous/server/musterd_options.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/listen_address.h"
#include "proto/command_line/values.h"
#include "proto/io/read_file.h"

namespace muster::rendezvous {
namespace {

using command_line::Into;
using command_line::ParseName;

constexpr absl::Duration kMinLease = absl::Seconds(1);
constexpr absl::Duration kMaxLease = absl::Hours(1);

constexpr char kUsage[] =
    "usage: musterd [options]\n"
    "\n"
    "The rendezvous of Muster, for many jobs. Agents find it by --rdzv_endpoint=HOST:PORT.\n";

absl::StatusOr<Endpoint> ParseListen(const std::string& text) {
  constexpr int kNone = -1;
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text, kNone);
  if (endpoint.ok() && endpoint->port != kNone) return endpoint;
  return absl::InvalidArgumentError("expected HOST:PORT, such as localhost:29400 or [::1]:29400");
}

absl::StatusOr<TlsMode> ParseTls(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const bool on, command_line::ParseBool(text));
  return on ? TlsMode::kOn : TlsMode::kOff;
}

absl::StatusOr<absl::Duration> ParseLease(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const absl::Duration lease, command_line::ParseDuration(text));
  if (kMinLease <= lease && lease <= kMaxLease) return lease;
  return absl::InvalidArgumentError("expected a time between 1s and 1h");
}

absl::StatusOr<log::Format> ParseLogFormat(const std::string& text) {
  return command_line::ParseChoice<log::Format>(
      text, {{"text", log::Format::kText}, {"json", log::Format::kJson}});
}

command_line::Grammar MusterdGrammar(MusterdOptions& out) {
  command_line::Grammar grammar{.program = "musterd", .usage = kUsage};
  grammar.options = {
      {.name = "listen",
       .value_name = "HOST:PORT",
       .help = absl::StrCat(
           "address to listen on, unless systemd passes a socket; port 0 takes a free port [",
           ToString(out.listen), "]"),
       .read = Into(ParseListen, out.listen)},
      {.name = "port_file",
       .value_name = "FILE",
       .help = "write the port to FILE once listening",
       .read = Into(ParseName, out.port_file)},
      {.name = "token_file",
       .value_name = "FILE",
       .help = "file with the secret [$MUSTER_TOKEN_FILE, ~/.config/muster/token]",
       .read = Into(ParseName, out.token_file)},
      {.name = "token_dir",
       .value_name = "DIR",
       .help = "directory with secrets of several users: one file each, named after the user",
       .read = Into(ParseName, out.token_dir)},
      {.name = "state_dir",
       .value_name = "DIR",
       .help = "keep job state in this local directory, so that a restarted musterd goes on with "
               "the jobs [in memory only]",
       .read = Into(ParseName, out.state_dir)},
      {.name = "tls",
       .value_name = "on|off",
       .help = "encrypt connections; off: agents still prove the secret [on]",
       .read = Into(ParseTls, out.tls)},
      {.name = "auth",
       .value_name = "secret|none",
       .help = "secret: agents prove the secret; none: anyone who reaches the port is let in, "
               "without encryption [secret]",
       .read = Into(command_line::ParseAuthentication, out.authentication),
       .variables = {"MUSTER_AUTH"}},
      {.name = "lease",
       .value_name = "SECONDS",
       .help = absl::StrCat("time a node may be silent before it counts as lost [",
                            absl::FormatDuration(out.lease), "]"),
       .read = Into(ParseLease, out.lease)},
      {.name = "metrics",
       .value_name = "[ADDRESS:]PORT",
       .help = "serve figures of the jobs to a Prometheus, at /metrics of that port; on this "
               "machine alone unless an address is given [none]",
       .read = Into(command_line::ParseListenAddress, out.metrics)},
      {.name = "health",
       .value_name = "[ADDRESS:]PORT",
       .help = "answer probes at /healthz of that port, to anyone and with nothing else; on this "
               "machine alone unless an address is given [none]",
       .read = Into(command_line::ParseListenAddress, out.health)},
      {.name = "log_format",
       .value_name = "text|json",
       .help = "format of the log lines [text]",
       .read = Into(ParseLogFormat, out.log_format)},
  };
  for (command_line::Option& option : grammar.options) option.group = "Options";
  return grammar;
}

}  // namespace

absl::StatusOr<MusterdCommand> ParseMusterdCommand(const std::vector<std::string>& args,
                                                   const EnvironmentMap& environment) {
  MusterdCommand command;
  const command_line::Grammar grammar = MusterdGrammar(command.options);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, args, environment));
  command.print = std::move(line.print);
  if (!command.print.empty()) return command;
  command.warnings = std::move(line.warnings);
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (!command.options.token_dir.empty() && !command.options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--token_dir and --token_file cannot both be given: the first is for many users, the "
        "second for one");
  }
  const MusterdOptions& options = command.options;
  if (!options.authentication && (!options.token_dir.empty() || !options.token_file.empty())) {
    return absl::InvalidArgumentError(
        "--auth=none and a token cannot both be given: without authentication no secret is asked "
        "for");
  }
  if (!options.authentication) command.options.tls = TlsMode::kOff;
  return command;
}

absl::StatusOr<std::vector<OwnerKey>> LoadOwners(const std::string& token_dir,
                                                 const SecretSources& sources) {
  std::vector<OwnerKey> owners;
  if (token_dir.empty()) {
    MUSTER_ASSIGN_OR_RETURN(UserSecret own, LoadUserSecret(sources));
    owners.push_back({"", std::move(own.secret)});
    return owners;
  }
  std::error_code error;
  for (std::filesystem::directory_iterator it(token_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.front() == '.') continue;
    MUSTER_ASSIGN_OR_RETURN(std::string secret, ReadSecretFile(it->path()));
    owners.push_back({name, std::move(secret)});
  }
  if (error)
    return absl::InvalidArgumentError(
        absl::StrCat("--token_dir=", token_dir, ": ", error.message()));
  if (owners.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token_dir=", token_dir, " is empty: put one token file per user there"));
  }
  std::sort(owners.begin(), owners.end(),
            [](const auto& a, const auto& b) { return a.secret < b.secret; });
  const auto same =
      std::adjacent_find(owners.begin(), owners.end(),
                         [](const auto& a, const auto& b) { return a.secret == b.secret; });
  if (same != owners.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token_dir=", token_dir, ": ", same->owner, " and ", (same + 1)->owner,
                     " have the same secret; give each a secret of their own"));
  }
  return owners;
}

absl::Status WritePortFile(const std::string& path, int port) {
  const int error = ReplaceFile(path, absl::StrCat(port, "\n"), 0644);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write --port_file=", path, ": ", std::strerror(error)));
}

}  // namespace muster::rendezvous
