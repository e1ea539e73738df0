#include "rendezvous/server/musterd_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/membership.h"
#include "proto/base/status_macros.h"

namespace muster::rendezvous {
namespace {

constexpr int kUsageExitCode = 2;
constexpr double kMinLeaseSeconds = 1;
constexpr double kMaxLeaseSeconds = 3600;

MusterdCommand UsageError(const std::string& message) {
  std::cerr << "musterd: " << message << "\n";
  return {.exit_code = kUsageExitCode};
}

}  // namespace

absl::StatusOr<std::pair<std::string, int>> ParseListen(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  int port = -1;
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  const bool is_bare_v6 = !is_bracketed && host.find(':') != std::string::npos;
  const bool has_stray_bracket = host.find_first_of("[]") != std::string::npos;
  if (colon == std::string::npos || host.empty() || is_bare_v6 || has_stray_bracket ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen=", text, ": expected HOST:PORT, such as localhost:29400 or [::1]:29400"));
  }
  return std::make_pair(host, port);
}

MusterdCommand ParseMusterdCommand(int argc, char** argv) {
  CLI::App app(
      "The rendezvous of Muster, for many jobs: agents find it by --rdzv_endpoint=HOST:PORT.",
      "musterd");
  std::string listen = "localhost:29400", tls = "on", format = "text";
  double lease_seconds = absl::ToDoubleSeconds(LeaseSettings{}.duration);
  MusterdCommand command;
  MusterdOptions& options = command.options;
  app.add_option("--listen", listen, "HOST:PORT to listen on; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--port_file", options.port_file, "write the port to this file once it listens");
  app.add_option("--token_file", options.token_file,
                 "the secret (default: $MUSTER_TOKEN_FILE, ~/.config/muster/token)");
  app.add_option("--token_dir", options.token_dir,
                 "one secret per user: a file each, named as the user");
  app.add_option("--tls", tls, "off: agents still prove the secret, but nothing is encrypted")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--lease", lease_seconds, "seconds without a word after which a node is lost")
      ->check(CLI::Range(kMinLeaseSeconds, kMaxLeaseSeconds))
      ->capture_default_str();
  app.add_option("--log_format", format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    return command;
  } catch (const CLI::ParseError& error) {
    return UsageError(error.what());
  }
  if (!options.token_dir.empty() && !options.token_file.empty()) {
    return UsageError("--token_dir and --token_file exclude each other");
  }
  const auto endpoint = ParseListen(listen);
  if (!endpoint.ok()) return UsageError(std::string(endpoint.status().message()));
  std::tie(options.address, options.port) = *endpoint;
  options.tls = tls == "on" ? TlsMode::kOn : TlsMode::kOff;
  options.lease = absl::Seconds(lease_seconds);
  options.log_format = format == "json" ? log::Format::kJson : log::Format::kText;
  command.run = true;
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
        absl::StrCat("--token_dir=", token_dir, " holds no token: put one file per user there"));
  }
  std::sort(owners.begin(), owners.end(),
            [](const auto& a, const auto& b) { return a.secret < b.secret; });
  const auto same =
      std::adjacent_find(owners.begin(), owners.end(),
                         [](const auto& a, const auto& b) { return a.secret == b.secret; });
  if (same != owners.end()) {
    return absl::InvalidArgumentError(absl::StrCat("--token_dir=", token_dir, ": ", same->owner,
                                                   " and ", (same + 1)->owner,
                                                   " have the same secret; give each their own"));
  }
  return owners;
}

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".new");
  std::ofstream(temporary) << port << "\n" << std::flush;
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write --port_file=", path, ": ", error.message()));
}

}  // namespace muster::rendezvous
