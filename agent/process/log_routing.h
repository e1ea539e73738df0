// Decides where each stream of a worker goes: file, console, filtered file, or straight to the
// terminal.
//
// Pure. Performed by log_pump.h. Source: reference launcher 1.2 and 2.6; DESIGN section 4, console.
#pragma once

#include <vector>

#include "agent/process/line_format.h"
#include "proto/base/ids.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

// One worker of a round, as the pump needs it.
struct PumpedWorker {
  LocalRank local_rank;
  Rank rank;
};

struct StreamRoute {
  enum class Way {
    kInherit,  // the worker writes to the agent's own stream
    kFile,     // the worker writes to its file itself
    kPipe,     // the agent reads, and passes on as below
  };
  Way way = Way::kPipe;
  bool to_file = false;     // stdout.log or stderr.log of the worker
  bool to_console = false;  // with a prefix
  bool to_filtered =
      false;  // matching lines go to filtered_stdout.log or filtered_stderr.log of the attempt
  friend bool operator==(const StreamRoute&, const StreamRoute&) = default;
};

// The routes of `stream` for all local workers of an attempt. Shapes: result[workers.size()].
//
// A teed stream goes to file and console, a redirected one to its file only, any other to the
// console. The console takes what --console and --local_ranks_filter let through. Filters apply to
// teed streams, or to all if none is teed. The terminal is inherited by the only worker of a node
// whose stream nothing else wants.
std::vector<StreamRoute> DecideRoutes(const LogSpec& logs, ConsoleStream stream,
                                      const std::vector<PumpedWorker>& workers);

}  // namespace muster::agent
