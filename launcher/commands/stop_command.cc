// `muster stop` and `muster drain`: a person asks for an end.
#include "launcher/commands/commands.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "launcher/commands/sight.h"
#include "launcher/sight/observer.h"
#include "proto/base/status_macros.h"
#include "proto/spec/job_spec.h"
#include "rendezvous/client/grpc_link.h"

namespace muster::launcher {
namespace {

// The answer, or why there is none.
absl::StatusOr<std::string> Ask(const SightWay& way, const StopRequest& request,
                                const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(rendezvous::GrpcLinkOptions options,
                          LinkOf(way, rendezvous::LinkRole::kPerson, invocation));
  if (way.job.empty()) options.run_id = JobSpec().run_id;
  asio::io_context loop{1};
  const auto work = asio::make_work_guard(loop);
  std::optional<StopAnswer> answer;
  std::string detail = "no answer";
  asio::steady_timer patience(loop, absl::ToChronoNanoseconds(way.patience));
  patience.async_wait([&](const asio::error_code& error) {
    if (!error) loop.stop();
  });
  asio::steady_timer quiet(loop, absl::ToChronoNanoseconds(kQuietWait));
  quiet.async_wait([&](const asio::error_code& error) {
    if (!error) SayWait(ToString(*way.endpoint), way.patience);
  });
  rendezvous::GrpcLink link(loop, std::move(options));
  link.Ask(request, [&](StopAnswer given) {
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
    return absl::UnavailableError(absl::StrCat("the rendezvous at ", ToString(*way.endpoint),
                                               " did not answer within ",
                                               absl::FormatDuration(way.patience), ": ", detail));
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

int RunStop(SightKind kind, const Invocation& invocation) {
  return RunSight(kind, invocation, [&](const SightFlags& flags) -> absl::StatusOr<int> {
    SightWay way = flags.way;
    if (!way.endpoint) {
      MUSTER_ASSIGN_OR_RETURN(way, FindWayHere(flags.way.job, invocation.environment));
      if (!way.endpoint) return NoEndpoint(ProgramOf(kind), invocation);
      way.patience = flags.way.patience;
    }
    MUSTER_ASSIGN_OR_RETURN(const std::string answer, Ask(way, flags.request, invocation));
    return PrintText(answer + "\n", 0);
  });
}

}  // namespace

int StopCommand(const Invocation& invocation) { return RunStop(SightKind::kStop, invocation); }

int DrainCommand(const Invocation& invocation) { return RunStop(SightKind::kDrain, invocation); }

}  // namespace muster::launcher
