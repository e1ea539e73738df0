// DeepSpeed's options without a host file: the job is on this machine, as one host, `localhost`,
// with its GPUs as slots. With --nnodes, or under a scheduler, every node is started so.
//
// Differs in: CUDA_VISIBLE_DEVICES, which `deepspeed` forgets where an option is given, says which
// GPUs there are; .deepspeed_env is read here too; a machine without GPUs runs --num_gpus workers
// on CPUs.
//
// Source:  DeepSpeed 0.19, deepspeed/launcher/{runner,launch}.py.
// Threads: pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/config/launch_config.h"
#include "proto/base/environment.h"
#include "proto/command_line/command_line.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

// The path at which DeepSpeed looks for a host file where none is named.
inline constexpr char kUsualHostFile[] = "/job/hostfile";

// Whether one of the options that only DeepSpeed has was given.
bool HasDeepSpeedOption(const command_line::CommandLine& line);

// The GPUs of this machine.
struct GpusHere {
  std::function<int()> count;        // of those that are visible
  std::vector<std::string> visible;  // as CUDA_VISIBLE_DEVICES lists them; empty: it is not set
};

// The workers of this machine, and the variables for them but for those of ToldOfNodes. Nothing
// without one of those options. Slots that CUDA_VISIBLE_DEVICES lists are those GPUs; where one is
// not in it, all count from 0 within it, and a note says so.
//
// Errors: kInvalidArgument naming the option and what this machine has; an option that only a host
// file gives a meaning; an option beside it that says something else.
absl::StatusOr<LaunchConfig> PlanOneHost(const command_line::CommandLine& line,
                                         const GpusHere& gpus, const std::string& deepspeed_env);

// CROSS_RANK and CROSS_SIZE: this node among those of the job.
EnvironmentMap ToldOfNodes(const JobSpec& spec);

}  // namespace muster::launcher
