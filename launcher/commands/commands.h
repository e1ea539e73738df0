// The subcommands of `muster`, one file each, and what they share of `muster run`. main.cc has the
// table. Each returns the exit code (proto/base/exit_codes.h).
//
// Threads: the main thread, before any other exists.
#pragma once

#include "absl/status/status.h"
#include "launcher/line/invocation.h"

namespace muster {
struct JobOutcome;
}  // namespace muster

namespace muster::launcher {

struct HostJob;

// `muster run`: one node's part of a job, from the command line to the exit code. The walk:
// ParseFlags -> PrepareNode (node_setup.h) -> ForkGuardian -> the rendezvous (embedded, or a link
// to it) -> Agent -> JobOutcome -> FormatExitSummary and the exit code.
int RunCommand(const Invocation& invocation);

// Returns the exit code of `outcome`. What started us finds why the job failed in the file that it
// named in TORCHELASTIC_ERROR_FILE; one that cannot be written costs a line.
int EndRun(const JobOutcome& outcome, const Invocation& invocation);

// The same of a job that is refused, once the log has said why.
int RefuseRun(const absl::Status& status, const Invocation& invocation);

// `muster run --hostfile`: one agent per host, started over ssh; for this machine alone, ours.
// Returns the agents' code, which is the same on every host; 4 if a host could not be reached,
// after the others have been stopped. A connection that is lost later ends nothing: its agent runs
// on, and the others' code counts. Signals that stop the job are passed on to all agents.
int HostsCommand(const HostJob& job, const Invocation& invocation);

// The other end of that on each host; not for people. Greets, reads what to start (remote_start.h)
// from standard input, and runs it as a process of its own. Further lines "signal N" are signals
// for it. The end of the input, which is the end of the connection, ends nothing.
int AgentCommand(const Invocation& invocation);

// What becomes of the guardian of an agent that was killed, once nothing of that agent is left: it
// tells the rendezvous, so that the others need not wait for the node's lease. Reads a DeathNotice
// of proto/agent.proto from standard input, and says it until the server has answered, for a few
// seconds at most. Nobody waits for the exit code.
int DeathNoticeCommand();

// `muster accelerate ...`, `muster deepspeed ...`, `muster ilab ...`, also by links of these names:
// their command lines behind that name, performed as `muster run` (launcher/peers/). What is not
// for a launcher goes to the real program, if it is installed.
int AccelerateCommand(const Invocation& invocation);
int DeepSpeedCommand(const Invocation& invocation);
int InstructLabCommand(const Invocation& invocation);

// Looks at a job. `status` returns how it is; `stacks` and `logs` 0 once a node has answered, which
// with --follow goes on until the job ends; `top` is redrawn every two seconds, and prints once
// where the standard output is no terminal.
int StatusCommand(const Invocation& invocation);
int StacksCommand(const Invocation& invocation);
int LogsCommand(const Invocation& invocation);
int TopCommand(const Invocation& invocation);

// Files of this machine: what happened in a job that kept its logs, what an incident file says, and
// what a Prometheus has to show.
int ReportCommand(const Invocation& invocation);
int ExplainCommand(const Invocation& invocation);
int MetricsTokenCommand(const Invocation& invocation);

// A person asks the rendezvous for a stop of the job, or of a node's part. 0 once the stop is on
// its way, which it then is also if the server dies and comes back with its state.
int StopCommand(const Invocation& invocation);
int DrainCommand(const Invocation& invocation);

// `muster plan`: the page of plan_command.h; why not goes to stderr.
int PlanCommand(const Invocation& invocation);

// `muster export`: a checkpoint of the runtime with its arrays whole, in files that others read.
int ExportCommand(const Invocation& invocation);

// `muster bench scaling`: runs the same program at several numbers of ranks, and prints a table.
int BenchCommand(const Invocation& invocation);

// `muster doctor`: looks at this node, or at those of a host file. 0 without a fault, 1 with one, 2
// for a wrong command line; over a host file as `muster run` of the doctor.
int DoctorCommand(const Invocation& invocation);

// `muster link DIR`: makes those links to this program that are missing, under the names of the
// launchers whose command lines it takes, and says which. Replaces links to another `muster`, and
// nothing else: a file in the way is named, and no link is made.
int LinkCommand(const Invocation& invocation);

}  // namespace muster::launcher
