#include "launcher/commands/doctor_command.h"

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands/run_command.h"
#include "launcher/doctor/doctor_options.h"
#include "launcher/doctor/look.h"
#include "launcher/doctor/measure.h"
#include "launcher/doctor/node_health.h"
#include "proto/base/exit_codes.h"

namespace muster::launcher {
namespace {

// Only one of several tasks or workers on a node speaks.
bool IsSilent(const EnvironmentMap& environment) {
  for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    const std::string value = VariableOrEmpty(environment, name);
    if (!value.empty() && value != "0") return true;
  }
  return false;
}

}  // namespace

int DoctorCommand(const Invocation& invocation) {
  const auto parsed = ParseDoctorFlags(invocation.args, invocation.environment,
                                       absl::StrCat(invocation.binary_directory, "/muster"));
  if (!parsed.ok()) {
    std::fprintf(stderr, "muster doctor: %s\n", std::string(parsed.status().message()).c_str());
    return ::muster::ExitCodeOf(parsed.status());
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*parsed)) {
    return std::fputs(print->text.c_str(), stdout) < 0 ? kExitFailure : 0;
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
  if (IsSilent(invocation.environment)) return 0;
  // Over a host file the first node with a fault ends the job: the others have the grace to speak.
  std::signal(SIGTERM, SIG_IGN);
  const NodeHealth node = LookAtThisNode(invocation.environment);
  std::vector<Finding> findings = Diagnose(node, LookAtGpus());
  std::vector<std::string> addresses;
  const std::vector<Rate> rates = MeasureRates(invocation.environment, &addresses);
  if (!rates.empty()) {
    for (Finding& finding : JudgeRates(addresses, rates)) findings.push_back(std::move(finding));
  }
  const std::string text = flags.as_json ? FormatAsJson(node.networks.host_name, findings)
                                         : FormatFindings(node.networks.host_name, findings);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return kExitFailure;
  return ExitCodeOf(findings);
}

}  // namespace muster::launcher
