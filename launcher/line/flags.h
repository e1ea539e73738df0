// Command line and PET_* environment -> JobSpec. Pure: arguments and environment come in as values.
//
// The way of one value: proto/command_line splits the arguments, the rows of run_options.cc read
// them, flags.cc puts together what several options decide, JobSpec::Validate checks ranges and
// combinations. Differences from torchrun: deploy/docs/torchrun.md.
//
// Source: torch 2.15, torch/distributed/run.py.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/config/accelerate_config.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/line/placement.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/base/endpoint.h"
#include "proto/base/environment.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

// What a command line asks for besides running: text to print on stdout, exit code 0.
struct PrintAndExit {
  std::string text;
};

// How our own lines are written, and where figures are told.
struct OutputFlags {
  std::string log_format = "text";  // or json
  std::string log_level = "info";   // debug, info, warning, error
  std::optional<Endpoint> metrics;  // none: nowhere
};

struct RunFlags {
  JobSpec spec;
  OutputFlags output;
  Placement placement;
  EnvironmentMap environment;  // of a configuration file or DeepSpeed's, over what workers inherit
  // Accepted, but worth a line (e.g. an option that --standalone overrules).
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // worth a line too, and nothing to worry about
};

// What options may ask of the machine. Where nothing is given, there are no files and no GPUs.
struct MachineView {
  // The text of a file; relative paths begin at `directory`.
  std::function<absl::StatusOr<std::string>(const std::string& path)> read =
      [](const std::string&) { return absl::NotFoundError("there are no files"); };
  std::string directory;
  std::function<int()> count_gpus = [] { return 0; };  // those that are visible
  std::vector<std::string> visible_gpus;  // as CUDA_VISIBLE_DEVICES lists them; empty: not set
  // Those of the whole machine; hardware threads of one core count once.
  std::function<int()> count_cores = [] { return 1; };
};

// `args` without the program's name and without a leading `run`. Options end at the first
// argument that is none. Precedence: command line, then PET_<NAME>, then --config_file or --ilab,
// then what `scheduler` says (line/placement.h), then default; an empty variable counts as
// unset. `fresh_run_id` is the random id of a job on one node that needs none
// (--standalone, and where neither an endpoint nor a master's port was given); empty: it stays the
// default.
//
// The result is a HostJob where there is --hostfile, a host file in --config_file, or DeepSpeed's
// options and a host file at its usual place: its options have been read, and are checked together
// on each host. The spec of RunFlags is validated. Its endpoint is empty when a job on one node
// needs none; with several nodes it always has host and port. A static job always has a node rank.
//
// Errors: kInvalidArgument naming the flag (or variable), the value, what was expected and, for an
// unknown option, the nearest spelling; that of `scheduler`, unless --scheduler=none.
absl::StatusOr<std::variant<RunFlags, PrintAndExit, HostJob>> ParseFlags(
    const std::vector<std::string>& args, const EnvironmentMap& environment,
    const std::string& fresh_run_id = "",
    const absl::StatusOr<SchedulerFindings>& scheduler = SchedulerFindings{},
    const MachineView& machine = {});

}  // namespace muster::launcher
