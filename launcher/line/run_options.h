// The table of options of `muster run`: all of torchrun's, and ours. A new one is a row in
// run_options.cc and, unless it fills a field of JobSpec by itself, a line in flags.cc.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "launcher/line/flag_values.h"
#include "launcher/line/flags.h"
#include "launcher/line/rendezvous_conf.h"
#include "proto/base/endpoint.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {

// Endpoint::port of an endpoint that was given without one.
inline constexpr int kNoPort = -1;

// What the options say, each for itself; flags.cc puts it together.
struct RunChoices {
  JobSpec spec;  // what one option decides alone
  OutputFlags output;

  NodeCount nodes;
  RendezvousConf conf;
  std::optional<Endpoint> endpoint;
  std::string master_addr;
  std::optional<int> master_port;
};

// The grammar whose rows fill `choices`, which outlives it. Defaults in the help are those of
// `choices`.
command_line::Grammar RunGrammar(RunChoices& choices);

// The variable that tells commands which speak to a job where it is, unless options do.
inline constexpr char kEndpointVariable[] = "MUSTER_ENDPOINT";
// How long they try to reach the rendezvous, unless they are told.
inline constexpr absl::Duration kReachPatience = absl::Seconds(10);
// The help of these commands says what JOB is, and how a job is found.
inline constexpr char kWhichJob[] =
    "JOB is the job's id (--rdzv_id); leave it out if there is only one job. ";
inline constexpr char kJobsHere[] =
    "Without an endpoint\n"
    "the command finds your jobs on this node, through sockets that only you can open.\n";
// Whether an option of `muster run` says which job, and how it is reached: those that the commands
// take which speak to a job.
bool FindsTheJob(const std::string& option);
// Where such a command reaches the rendezvous, its port filled in; nothing if no option says it.
std::optional<Endpoint> EndpointOfJob(const RunChoices& choices);

}  // namespace muster::launcher
