// `muster status`: how a job is.
#include "launcher/commands/commands.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands/sight.h"
#include "launcher/sight/observer.h"
#include "launcher/sight/status_text.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

int ShowPage(const status::StatusPage& page, bool json) {
  return PrintText(json ? absl::StrCat(status::ToJson(page), "\n") : StatusText(page),
                   ExitCodeOfHealth(page.health));
}

int ShowList(const status::JobList& list, bool json) {
  return PrintText(json ? absl::StrCat(status::ToJson(list), "\n") : JobListText(list),
                   ExitCodeOfWorst(list));
}

absl::StatusOr<int> ShowJob(const SightFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                          ReachJob(flags.way, invocation));
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          observer->Ask({.kind = InquiryKind::kStatus, .job = flags.way.job},
                                        TimeFor(InquiryKind::kStatus)));
  MUSTER_ASSIGN_OR_RETURN(const status::StatusPage page, status::ParseStatusPage(answer.page));
  return ShowPage(page, flags.json);
}

absl::StatusOr<int> ShowJobsAt(const SightFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                          ReachRendezvous(flags.way, invocation));
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          observer->Ask({.kind = InquiryKind::kJobs}, TimeFor(InquiryKind::kJobs)));
  MUSTER_ASSIGN_OR_RETURN(const status::JobList list, status::ParseJobList(answer.page));
  if (list.jobs.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no job of yours is known at ", ToString(*flags.way.endpoint)));
  }
  if (list.jobs.size() > 1) return ShowList(list, flags.json);
  SightFlags of_one = flags;
  of_one.way.job = list.jobs.front().job;
  return ShowJob(of_one, invocation);
}

absl::StatusOr<int> ShowJobsHere(const SightFlags& flags, const Invocation& invocation) {
  const std::vector<JobHere> jobs = FindJobsHere(invocation.environment);
  if (jobs.size() <= 1) return ShowJob(flags, invocation);
  status::JobList list;
  for (const JobHere& job : jobs) {
    if (job.page.ok()) {
      list.jobs.push_back(status::LineOf(*job.page));
    } else {
      list.jobs.push_back({.job = absl::StrCat("the job of ", job.socket),
                           .health = {.state = status::kWaiting,
                                      .text = std::string(job.page.status().message())}});
    }
  }
  return ShowList(list, flags.json);
}

absl::StatusOr<int> ShowStatus(const SightFlags& flags, const Invocation& invocation) {
  if (!flags.way.job.empty()) return ShowJob(flags, invocation);
  return flags.way.endpoint ? ShowJobsAt(flags, invocation) : ShowJobsHere(flags, invocation);
}

}  // namespace

int StatusCommand(const Invocation& invocation) {
  return RunSight(SightKind::kStatus, invocation,
                  [&](const SightFlags& flags) { return ShowStatus(flags, invocation); });
}

}  // namespace muster::launcher
