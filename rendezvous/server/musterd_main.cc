// musterd: the rendezvous daemon. Its command line is in musterd_options.cc, its work in
// rendezvous_server.cc.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/signal_set.hpp"
#include "rendezvous/server/musterd_options.h"
#include "rendezvous/server/rendezvous_server.h"

namespace {

using muster::rendezvous::MusterdOptions;
using muster::rendezvous::RendezvousServer;

constexpr absl::Duration kShutdownTime = absl::Seconds(2);

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

int Fail(const absl::Status& status) {
  std::cerr << "musterd: " << status.message() << std::endl;
  return absl::IsPermissionDenied(status) ? 3 : 2;
}

int Run(const MusterdOptions& options) {
  const std::string file =
      options.token_file.empty() ? Variable("MUSTER_TOKEN_FILE") : options.token_file;
  const std::string token = options.token_file.empty() ? Variable("MUSTER_TOKEN") : "";
  const auto owners = muster::rendezvous::LoadOwners(
      options.token_dir, {.token = token, .token_file = file, .home = Variable("HOME")});
  if (!owners.ok()) return Fail(owners.status());

  asio::io_context loop(1);
  const auto guard = asio::make_work_guard(loop);
  muster::LeaseSettings lease;
  lease.duration = options.lease;
  const auto server = RendezvousServer::Create(
      loop, {.lease = lease, .owners = *owners, .tls = options.tls, .host_name = HostName()});
  const auto port = server->Listen(options.address, options.port);
  if (!port.ok()) return Fail(port.status());
  if (!options.port_file.empty()) {
    if (const absl::Status status = muster::rendezvous::WritePortFile(options.port_file, *port);
        !status.ok()) {
      return Fail(status);
    }
  }
  std::cerr << "musterd: listening on " << options.address << ":" << *port << std::endl;

  asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const asio::error_code&, int) {
    server->Shutdown(kShutdownTime, [&loop] { loop.stop(); });
  });
  loop.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto command = muster::rendezvous::ParseMusterdCommand(argc, argv);
  if (!command.run) return command.exit_code;
  muster::log::Configure({.format = command.options.log_format});
  return Run(command.options);
}
