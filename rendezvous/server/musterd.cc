#include "rendezvous/server/musterd.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/signal_set.hpp"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/host_name.h"
#include "proto/io/http_door.h"
#include "rendezvous/server/metrics_door.h"
#include "rendezvous/server/musterd_options.h"
#include "rendezvous/server/passed_sockets.h"
#include "rendezvous/server/port_mark.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/server/state_file.h"
#include "rendezvous/server/state_writer.h"

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kShutdownTime = absl::Seconds(2);
// So that a node outlives the loss of one.
constexpr int kRenewalsPerLease = 3;
constexpr char kHealthPath[] = "/healthz";

int Fail(const absl::Status& status) {
  std::cerr << "musterd: " << status.message() << std::endl;
  return absl::IsPermissionDenied(status) ? kExitRefused : kExitUsage;
}

SecretSources Sources(const MusterdOptions& options, const EnvironmentMap& environment) {
  if (!options.token_file.empty()) return {.token_file = options.token_file};
  return SecretSourcesIn(environment);
}

// What --state_dir holds, and who writes there; empty without.
struct State {
  std::unique_ptr<RecordKeeper> keeper;
  StateFile::Contents contents;
  bool has_new_port = false;  // the kernel chooses it, so that nobody has known it before
};

absl::StatusOr<State> OpenState(asio::io_context& loop, const std::string& directory) {
  if (directory.empty()) return State{};
  auto file = StateFile::Open(directory, absl::ToUnixMillis(absl::Now()), MonoNow());
  if (!file.ok()) return file.status();
  State state{.contents = (*file)->TakeContents()};
  if (!state.contents.note.empty()) {
    log::Write(log::Level::kWarning, "state_torn", state.contents.note);
  }
  state.keeper = std::make_unique<StateWriter>(loop, *std::move(file));
  return state;
}

std::string InWords(const MusterdOptions& options, size_t num_jobs) {
  if (options.state_dir.empty()) return "";
  if (num_jobs == 0) return absl::StrCat("; state in ", options.state_dir);
  return absl::StrCat("; going on with ", num_jobs, num_jobs == 1 ? " job" : " jobs", " of ",
                      options.state_dir);
}

// The place where the server listens: sockets of a service manager, or else --listen.
struct Listening {
  int port = 0;  // of the first
  std::string words;
};

absl::StatusOr<Listening> Listen(RendezvousServer& server, const Endpoint& wanted,
                                 std::vector<UniqueFd> passed) {
  if (passed.empty()) {
    MUSTER_ASSIGN_OR_RETURN(const int port, server.Listen(wanted.host, wanted.port));
    return Listening{port, ToString(Endpoint{.host = wanted.host, .port = port})};
  }
  MUSTER_ASSIGN_OR_RETURN(const auto addresses, server.ListenOn(std::move(passed)));
  const auto as_text = [](std::string* out, const Endpoint& each) { *out += ToString(each); };
  return Listening{
      addresses.front().port,
      absl::StrCat(absl::StrJoin(addresses, " and ", as_text),
                   addresses.size() == 1 ? ", a socket" : ", sockets", " of the service manager")};
}

std::unique_ptr<RendezvousServer> MakeServer(asio::io_context& loop, const MusterdOptions& options,
                                             const std::vector<OwnerKey>& owners, State state) {
  LeaseSettings lease;
  lease.duration = options.lease;
  lease.renew_interval = std::min(lease.renew_interval, options.lease / kRenewalsPerLease);
  // Where the state of an earlier life is, every round that anybody was told of is in it. An empty
  // state may be what a lost disk has left.
  const bool knows_all_rounds = state.contents.first_term < state.contents.term;
  return RendezvousServer::Create(loop,
                                  {.term = state.contents.term,
                                   .first_term = state.contents.first_term,
                                   .may_have_predecessor = !knows_all_rounds && !state.has_new_port,
                                   .lease = lease,
                                   .owners = owners,
                                   .tls = options.tls,
                                   .host_name = HostName()},
                                  std::move(state.keeper), std::move(state.contents.jobs));
}

std::unique_ptr<PortMark> MarkPort(asio::io_context& loop, int port) {
  auto mark = std::make_unique<PortMark>(loop, port);
  if (!mark->trouble().empty()) log::Write(log::Level::kWarning, "port_mark", mark->trouble());
  return mark;
}

// Says where `path` is served, or why not.
absl::Status TellServed(const std::string& path, absl::string_view what, const Endpoint& at,
                        const absl::StatusOr<int>& port) {
  if (!port.ok()) {
    return absl::Status(
        port.status().code(),
        absl::StrCat("--", what, "=", ToString(at), ": cannot listen: ", port.status().message()));
  }
  std::cerr << "musterd: " << what << " at http://"
            << ToString(Endpoint{.host = at.host, .port = *port}) << path << std::endl;
  return absl::OkStatus();
}

// That this is answered is all that it tells: the loop of all jobs turns.
std::unique_ptr<HttpDoor> MakeHealthDoor(asio::io_context& loop) {
  return std::make_unique<HttpDoor>(loop, [](const HttpRequest& request, HttpDoor::Tell tell) {
    if (request.path == kHealthPath) return tell({.body = "ok\n"});
    tell({.status = 404, .body = absl::StrCat("health is at ", kHealthPath, "\n")});
  });
}

absl::Status Run(const MusterdOptions& options, const EnvironmentMap& environment) {
  // First of all: their numbers are not to be given to others.
  MUSTER_ASSIGN_OR_RETURN(std::vector<UniqueFd> passed, TakePassedSockets(environment));
  std::vector<OwnerKey> owners = {{"", PublicSecret().secret}};
  if (options.authentication) {
    MUSTER_ASSIGN_OR_RETURN(owners, LoadOwners(options.token_dir, Sources(options, environment)));
  }
  asio::io_context loop(1);
  const auto guard = asio::make_work_guard(loop);
  MUSTER_ASSIGN_OR_RETURN(State state, OpenState(loop, options.state_dir));
  const size_t num_jobs = state.contents.jobs.size();
  const bool is_passed = !passed.empty();
  state.has_new_port = options.listen.port == 0 && !is_passed;
  const auto server = MakeServer(loop, options, owners, std::move(state));
  // Signals are awaited before anybody can know that it listens, and end it.
  asio::signal_set signals(loop, SIGTERM, SIGINT);
  signals.async_wait([&](const asio::error_code&, int) {
    server->Shutdown(kShutdownTime, [&loop] { loop.stop(); });
  });
  MUSTER_ASSIGN_OR_RETURN(const Listening listening,
                          Listen(*server, options.listen, std::move(passed)));
  // Who takes any free port comes back to another one, and a service manager keeps its own.
  std::unique_ptr<PortMark> mark;
  if (options.listen.port != 0 && !is_passed) mark = MarkPort(loop, listening.port);
  if (!options.port_file.empty()) {
    MUSTER_RETURN_IF_ERROR(WritePortFile(options.port_file, listening.port));
  }
  std::cerr << "musterd: listening on " << listening.words
            << (options.authentication ? "" : kAuthenticationOff) << InWords(options, num_jobs)
            << std::endl;
  std::unique_ptr<MetricsDoor> metrics;
  if (options.metrics) {
    metrics = std::make_unique<MetricsDoor>(loop, *server, owners, options.authentication);
    MUSTER_RETURN_IF_ERROR(
        TellServed("/metrics", "metrics", *options.metrics, metrics->Listen(*options.metrics)));
  }
  const std::unique_ptr<HttpDoor> health = MakeHealthDoor(loop);
  if (options.health) {
    MUSTER_RETURN_IF_ERROR(TellServed(kHealthPath, "health", *options.health,
                                      health->Listen(options.health->host, options.health->port)));
  }
  loop.run();
  return absl::OkStatus();
}

}  // namespace

int RunMusterd(const std::vector<std::string>& args, const EnvironmentMap& environment) {
  // The reader of our log may end before us: a line that is lost must not end every user's job.
  std::signal(SIGPIPE, SIG_IGN);
  const auto command = ParseMusterdCommand(args, environment);
  if (!command.ok()) return Fail(command.status());
  for (const std::string& warning : command->warnings) std::cerr << "musterd: " << warning << "\n";
  if (!command->print.empty()) return std::cout << command->print ? 0 : kExitFailure;
  log::Configure({.format = command->options.log_format});
  const absl::Status ended = Run(command->options, environment);
  return ended.ok() ? 0 : Fail(ended);
}

}  // namespace muster::rendezvous
