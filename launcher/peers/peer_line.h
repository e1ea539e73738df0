// The command lines of other launchers -> one of `muster run`.
//
// Each reader knows every option of its launcher: one that has a meaning here is taken, any other
// is refused by name with what to do instead. Nothing is passed over in silence.
//
// Threads: pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/line/flags.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct PeerLine {
  std::vector<std::string> args;               // behind `muster run`
  std::map<std::string, std::string> sources;  // of those options that a file says
  EnvironmentMap environment;                  // set over what workers inherit
  std::vector<std::string> notes;              // worth a line each
  bool saves_pid = false;                      // in a file of DeepSpeed's while the job runs
  std::string print;                           // not empty: help or the like, to be printed instead
};

// `accelerate launch`, without these two words.
//
// Errors: kInvalidArgument naming the option, or the key of the file, and what to do.
// Source: accelerate 1.15, commands/launch.py.
absl::StatusOr<PeerLine> ReadAccelerateLine(const std::vector<std::string>& args,
                                            const EnvironmentMap& environment,
                                            const MachineView& machine);

// `deepspeed`, without that word. `has_usual_host_file`: whether there is a host file that nobody
// need name.
//
// Errors: kInvalidArgument naming the option and what to do.
// Source: the launcher of DeepSpeed 0.19; `--elastic_training` of 0.18.
absl::StatusOr<PeerLine> ReadDeepSpeedLine(const std::vector<std::string>& args,
                                           bool has_usual_host_file);

// `python -m MODULE ...` whose module is a launcher's: `args` become the line of `muster` with the
// same meaning, and workers run in that Python, which goes into PYTHON_EXEC unless there is one.
// False: it is no such line, and stays.
bool TakeModuleLine(std::vector<std::string>& args, EnvironmentMap& environment);

// What to type instead of `ilab model train`, whose trainer is a program of its own: a line of
// `muster run`. `args` are without these three words.
//
// Errors: kInvalidArgument: an option without its value.
// Source: InstructLab 0.26, `ilab model train`; instructlab-training 0.12, main_ds.py
// (run_training).
absl::StatusOr<std::string> MusterLineForInstructLab(const std::vector<std::string>& args);

}  // namespace muster::launcher
