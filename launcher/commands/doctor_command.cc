// `muster doctor`: looks at this node, or at those of a host file.
#include "launcher/commands/commands.h"

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/sight.h"
#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/look.h"
#include "launcher/doctor/measure.h"
#include "launcher/doctor/measured_nodes.h"
#include "launcher/doctor/node_health.h"
#include "launcher/node/node_setup.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/base/exit_codes.h"
#include "proto/spec/worker_env.h"

namespace muster::launcher {
namespace {

// One of several tasks or workers on a node speaks; the others are silent.
bool IsSilent(const EnvironmentMap& environment, const SchedulerFindings& scheduler) {
  const std::string local_rank = VariableOrEmpty(environment, "LOCAL_RANK");
  return (!local_rank.empty() && local_rank != "0") || scheduler.tasks.local > 0;
}

bool IsLessSevere(const Finding& a, const Finding& b) { return a.severity < b.severity; }

}  // namespace

int DoctorCommand(const Invocation& invocation) {
  const auto parsed = ParseDoctorFlags(invocation.args, invocation.environment,
                                       absl::StrCat(invocation.binary_directory, "/muster"));
  if (!parsed.ok()) {
    std::fprintf(stderr, "muster doctor: %s\n", std::string(parsed.status().message()).c_str());
    return ExitCodeOf(parsed.status());
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*parsed)) {
    return PrintText(print->text, 0);
  }
  const DoctorFlags& flags = std::get<DoctorFlags>(*parsed);
  for (const std::string& warning : flags.warnings) {
    std::fprintf(stderr, "muster doctor: %s\n", warning.c_str());
  }
  if (!flags.run_line.empty()) {
    Invocation run = invocation;
    run.args = flags.run_line;
    return RunCommand(run);
  }
  // Variables that cannot be read keep nobody from looking at this node.
  const SchedulerFindings scheduler =
      FindScheduler(SurroundingsOf(invocation)).value_or(SchedulerFindings());
  if (IsSilent(invocation.environment, scheduler)) return 0;
  // Over a host file the first node with a fault ends the job: the others have the grace to speak.
  std::signal(SIGTERM, SIG_IGN);
  const NodeHealth node = LookAtThisNode(invocation.environment);
  std::vector<Finding> findings = Diagnose(node, LookAtGpus());
  // An agent that runs this as its node check keeps the last line: a fault, where there is one.
  const bool is_check = FindVariable(invocation.environment, kNodeCheckVariable) != nullptr;
  if (is_check) absl::c_stable_sort(findings, IsLessSevere);
  const MeasuredNodes job =
      is_check ? MeasuredNodes() : FindMeasuredNodes(invocation.environment, scheduler);
  const std::vector<Rate> rates = MeasureRates(job);
  if (!rates.empty()) {
    std::vector<std::string> names;
    for (const Endpoint& each : job.nodes) names.push_back(each.host);
    for (Finding& finding : JudgeRates(names, rates)) findings.push_back(std::move(finding));
  }
  const std::string text = flags.as_json ? FormatAsJson(node.networks.host_name, findings)
                                         : FormatFindings(node.networks.host_name, findings);
  return PrintText(text, ExitCodeOfFindings(findings));
}

}  // namespace muster::launcher
