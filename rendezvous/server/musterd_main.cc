// musterd: the rendezvous daemon. Its command line is in musterd_options.cc, its work in
// rendezvous_server.cc.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/signal_set.hpp"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/io/descriptors.h"
#include "rendezvous/server/musterd_options.h"
#include "rendezvous/server/port_mark.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/server/state_file.h"
#include "rendezvous/server/state_writer.h"

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

// What --state_dir holds, and who writes there; empty without.
struct State {
  std::unique_ptr<muster::rendezvous::RecordKeeper> keeper;
  muster::rendezvous::StateFile::Contents contents;
};

absl::StatusOr<State> OpenState(asio::io_context& loop, const std::string& directory) {
  if (directory.empty()) return State{};
  auto file = muster::rendezvous::StateFile::Open(directory, absl::ToUnixMillis(absl::Now()),
                                                  muster::MonoNow());
  if (!file.ok()) return file.status();
  State state{.contents = (*file)->TakeContents()};
  state.keeper = std::make_unique<muster::rendezvous::StateWriter>(loop, *std::move(file));
  return state;
}

std::string InWords(const MusterdOptions& options, size_t num_jobs) {
  if (options.state_dir.empty()) return "";
  if (num_jobs == 0) return absl::StrCat("; state in ", options.state_dir);
  return absl::StrCat("; going on with ", num_jobs, num_jobs == 1 ? " job" : " jobs", " of ",
                      options.state_dir);
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
  auto state = OpenState(loop, options.state_dir);
  if (!state.ok()) return Fail(state.status());
  const size_t num_jobs = state->contents.jobs.size();
  // Where the state of an earlier life is, every round that anybody was told of is in it.
  const bool knows_all_rounds = state->contents.first_term < state->contents.term;
  const auto server =
      RendezvousServer::Create(loop,
                               {.term = state->contents.term,
                                .first_term = state->contents.first_term,
                                .may_have_predecessor = !knows_all_rounds,
                                .lease = lease,
                                .owners = *owners,
                                .tls = options.tls,
                                .host_name = HostName()},
                               std::move(state->keeper), std::move(state->contents.jobs));
  // Before anybody can know that it listens, and end it.
  asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const asio::error_code&, int) {
    server->Shutdown(kShutdownTime, [&loop] { loop.stop(); });
  });
  const auto port = server->Listen(options.listen.host, options.listen.port);
  if (!port.ok()) return Fail(port.status());
  // Who takes any free port comes back to another one.
  std::optional<muster::rendezvous::PortMark> mark;
  if (options.listen.port != 0) mark.emplace(loop, *port);
  if (!options.port_file.empty()) {
    if (const absl::Status status = muster::rendezvous::WritePortFile(options.port_file, *port);
        !status.ok()) {
      return Fail(status);
    }
  }
  std::cerr << "musterd: listening on "
            << ToString(muster::Endpoint{.host = options.listen.host, .port = *port})
            << (options.authentication ? "" : muster::kAuthenticationOff)
            << InWords(options, num_jobs) << std::endl;

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
  muster::LeaveWith(Run(command->options, environment));
}
