// Decides where each stream of a worker goes: file, console, filtered file; through a pipe or a
// pseudo terminal; and with which prefix.
//
// The rule for consoles: what is not a terminal gets what the workers wrote, in whole lines, as
// under torchrun; prefixes appear there only where torchrun has them (--tee), or where they were
// asked for. Nothing depends on the number of workers. On a terminal several workers' lines carry
// host and rank.
//
// Pure. Performed by log_pump.h.
#pragma once

#include <string>
#include <vector>

#include "agent/console/line_format.h"
#include "proto/base/ids.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// One worker of a round, as the pump needs it.
struct PumpedWorker {
  LocalRank local_rank;
  Rank rank;
  // Its process is that of the round before, perhaps with another rank, and has its streams.
  bool is_kept = false;
};

struct StreamRoute {
  enum class Way {
    kFile,      // the worker writes to its file itself
    kPipe,      // the agent reads, and passes on as below
    kTerminal,  // likewise, from a pseudo terminal: the worker shall see one
  };
  Way way = Way::kPipe;
  bool to_file = false;     // stdout.log or stderr.log of the worker
  bool to_console = false;  // otherwise only kept for the summary's last lines
  bool to_filtered =
      false;  // matching lines go to filtered_stdout.log or filtered_stderr.log of the attempt
  bool has_prefix = false;  // on the console
  friend bool operator==(const StreamRoute&, const StreamRoute&) = default;
};

// What the rule needs to know besides LogSpec.
struct ConsoleFacts {
  bool is_terminal = false;
  bool has_role = false;  // --role was given
  // Workers may be kept over into rounds in which they have other ranks: their streams must be fit
  // for whatever a route can become.
  bool ranks_may_change = false;
};

// The routes of `stream` for all local workers of an attempt. Shapes: result[workers.size()].
//
// A teed stream goes to file and console, a redirected one to its file only, any other to the
// console. The console takes what --console and --local_ranks_filter let through. Filters apply to
// teed streams, or to all if none is teed. A teed stream is a pipe also on a terminal, so that its
// file holds what it holds under torchrun.
std::vector<StreamRoute> DecideRoutes(const LogSpec& logs, ConsoleStream stream,
                                      const std::vector<PumpedWorker>& workers,
                                      const ConsoleFacts& facts = {});

// The route of a stream of a kept worker, which was `started` in its way and is to have `wanted`
// from now on. The way stays; what a worker writes to its file itself reaches nothing else.
StreamRoute ContinueRoute(const StreamRoute& started, StreamRoute wanted);

// The prefix of a worker's lines, also in the filtered files: the template that was given;
// torchrun's for a teed stream or a role that was given; else host and rank.
absl::string_view PrefixTemplate(const LogSpec& logs, ConsoleStream stream,
                                 const PumpedWorker& worker, const ConsoleFacts& facts);

}  // namespace muster::agent
