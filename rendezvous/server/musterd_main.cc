// musterd: the rendezvous daemon. Its command line is in musterd_options.cc, its work in
// rendezvous_server.cc.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/signal_set.hpp"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/io/descriptors.h"
#include "rendezvous/server/musterd_options.h"
#include "rendezvous/server/rendezvous_server.h"

namespace {

using muster::EnvironmentMap;
using muster::VariableOrEmpty;
using muster::rendezvous::MusterdOptions;
using muster::rendezvous::RendezvousServer;

constexpr absl::Duration kShutdownTime = absl::Seconds(2);

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

int Fail(const absl::Status& status) {
  std::cerr << "musterd: " << status.message() << std::endl;
  return absl::IsPermissionDenied(status) ? muster::kExitRefused : muster::kExitUsage;
}

muster::SecretSources Sources(const MusterdOptions& options, const EnvironmentMap& environment) {
  const std::string home = VariableOrEmpty(environment, "HOME");
  if (!options.token_file.empty()) return {.token_file = options.token_file, .home = home};
  return {.token = VariableOrEmpty(environment, "MUSTER_TOKEN"),
          .token_file = VariableOrEmpty(environment, "MUSTER_TOKEN_FILE"),
          .home = home};
}

int Run(const MusterdOptions& options, const EnvironmentMap& environment) {
  auto owners =
      options.authentication
          ? muster::rendezvous::LoadOwners(options.token_dir, Sources(options, environment))
          : std::vector<muster::OwnerKey>{{"", muster::PublicSecret().secret}};
  if (!owners.ok()) return Fail(owners.status());

  asio::io_context loop(1);
  const auto guard = asio::make_work_guard(loop);
  muster::LeaseSettings lease;
  lease.duration = options.lease;
  const auto server = RendezvousServer::Create(loop, {.may_have_predecessor = true,
                                                      .lease = lease,
                                                      .owners = *owners,
                                                      .tls = options.tls,
                                                      .host_name = HostName()});
  // Before anybody can know that it listens, and end it.
  asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const asio::error_code&, int) {
    server->Shutdown(kShutdownTime, [&loop] { loop.stop(); });
  });
  const auto port = server->Listen(options.listen.host, options.listen.port);
  if (!port.ok()) return Fail(port.status());
  if (!options.port_file.empty()) {
    if (const absl::Status status = muster::rendezvous::WritePortFile(options.port_file, *port);
        !status.ok()) {
      return Fail(status);
    }
  }
  std::cerr << "musterd: listening on "
            << ToString(muster::Endpoint{.host = options.listen.host, .port = *port})
            << (options.authentication ? "" : muster::kAuthenticationOff) << std::endl;

  loop.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  muster::OpenStandardStreams();
  // Whoever reads our log may end before us: a line that is lost must not end every user's job.
  std::signal(SIGPIPE, SIG_IGN);
  const EnvironmentMap environment = muster::EnvironmentOf(environ);
  const auto command = muster::rendezvous::ParseMusterdCommand(
      std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc), environment);
  if (!command.ok()) return Fail(command.status());
  for (const std::string& warning : command->warnings) std::cerr << "musterd: " << warning << "\n";
  if (!command->print.empty()) return std::cout << command->print ? 0 : muster::kExitFailure;
  muster::log::Configure({.format = command->options.log_format});
  return Run(command->options, environment);
}
