#include "launcher/commands/stop_command.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "launcher/commands/sight.h"
#include "launcher/line/stop_options.h"
#include "launcher/sight/observer.h"
#include "proto/base/status_macros.h"
#include "proto/io/host_name.h"
#include "proto/io/user_secret.h"
#include "proto/spec/job_spec.h"
#include "rendezvous/client/grpc_link.h"

namespace muster::launcher {
namespace {

absl::StatusOr<rendezvous::GrpcLinkOptions> LinkOf(const StopFlags& flags,
                                                   const Invocation& invocation) {
  rendezvous::GrpcLinkOptions link{
      .host = flags.endpoint->host,
      .port = flags.endpoint->port,
      .secret = PublicSecret(),
      .tls = flags.tls && flags.authentication ? TlsMode::kOn : TlsMode::kOff,
      .run_id = flags.run_id.empty() ? JobSpec().run_id : flags.run_id,
      .role = rendezvous::LinkRole::kPerson,
      .node_name = HostName()};
  if (flags.authentication) {
    MUSTER_ASSIGN_OR_RETURN(link.secret, LoadUserSecret(SecretSourcesIn(invocation.environment)));
  }
  std::random_device random;
  link.jitter_seed = random();
  link.incarnation = Incarnation(uint64_t{random()} << 32 | random() | 1);
  return link;
}

// The answer, or why there is none.
absl::StatusOr<std::string> Ask(const StopFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(rendezvous::GrpcLinkOptions options, LinkOf(flags, invocation));
  asio::io_context loop{1};
  const auto work = asio::make_work_guard(loop);
  std::optional<StopAnswer> answer;
  std::string detail = "no answer";
  asio::steady_timer patience(loop, absl::ToChronoNanoseconds(flags.patience));
  patience.async_wait([&](const asio::error_code& error) {
    if (!error) loop.stop();
  });
  asio::steady_timer quiet(loop, absl::ToChronoNanoseconds(kQuietWait));
  quiet.async_wait([&](const asio::error_code& error) {
    if (!error) SayWait(ToString(*flags.endpoint), flags.patience);
  });
  rendezvous::GrpcLink link(loop, std::move(options));
  link.Ask(flags.request, [&](StopAnswer given) {
    answer = std::move(given);
    loop.stop();
  });
  link.Open({.on_state = [&](bool up, std::string why, absl::Status fatal) {
    if (!up) detail = std::move(why);
    if (fatal.ok()) return;
    answer = StopAnswer{.status = fatal};
    loop.stop();
  }});
  loop.run();
  if (!answer) {
    return absl::UnavailableError(absl::StrCat("the rendezvous at ", ToString(*flags.endpoint),
                                               " did not answer within ",
                                               absl::FormatDuration(flags.patience), ": ", detail));
  }
  if (!answer->status.ok()) return answer->status;
  return answer->text;
}

// A job of this node alone has no rendezvous that could be asked.
absl::Status NoEndpoint(const std::string& program, const Invocation& invocation) {
  std::vector<std::string> ways;
  for (const JobHere& job : FindJobsHere(invocation.environment)) {
    if (!job.page.ok() || job.page->nodes.max != 1) continue;
    ways.push_back(absl::StrCat("`kill ", job.pid, "` (job ", job.page->job, ")"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--rdzv_endpoint is missing: give the job's, as in `", program,
      " --rdzv_endpoint=node1:29400`, or set ", kEndpointVariable,
      ways.empty() ? "" : "; a job of this node alone is ended by SIGTERM to its muster: ",
      absl::StrJoin(ways, ", ")));
}

int RunStopCommand(StopCommandKind kind, const char* program, const Invocation& invocation) {
  return RunParsed<StopFlags>(
      program, ParseStopFlags(kind, invocation.args, invocation.environment),
      [&](const StopFlags& flags) -> absl::StatusOr<int> {
        StopFlags found = flags;
        if (!flags.endpoint) {
          MUSTER_ASSIGN_OR_RETURN(const SightWay way,
                                  FindWayHere(flags.run_id, invocation.environment));
          if (!way.endpoint) return NoEndpoint(program, invocation);
          found.endpoint = way.endpoint;
          found.run_id = way.job;
          found.tls = way.tls;
          found.authentication = way.authentication;
        }
        MUSTER_ASSIGN_OR_RETURN(const std::string answer, Ask(found, invocation));
        return PrintText(answer + "\n", 0);
      });
}

}  // namespace

int StopCommand(const Invocation& invocation) {
  return RunStopCommand(StopCommandKind::kStop, "muster stop", invocation);
}

int DrainCommand(const Invocation& invocation) {
  return RunStopCommand(StopCommandKind::kDrain, "muster drain", invocation);
}

}  // namespace muster::launcher
