// The router carries what workers print, while an attempt runs, to their files, through filters and
// to the consoles, and lays those out for what they show.
//
// Loop thread only.
#pragma once

#include <array>
#include <functional>
#include <map>

#include "absl/strings/string_view.h"
#include "agent/console/attempt.h"
#include "agent/console/consoles.h"
#include "agent/console/log_pump.h"
#include "agent/console/log_routing.h"
#include "agent/console/pty.h"
#include "agent/console/worker_stream.h"
#include "asio/io_context.hpp"

namespace muster::agent {

using WorkerStreamsById = std::map<int, WorkerStream>;

class OutputRouter {
 public:
  // All outlive this. `on_drained` is called when a console has room again.
  OutputRouter(asio::io_context& loop, const LogPumpOptions& options, Attempt& attempt,
               WorkerStreamsById& streams, std::function<void()> on_drained);

  Consoles& consoles() { return consoles_; }
  // Shapes: [ConsoleStream].
  std::array<ConsoleFacts, 2> Facts();
  // The consoles as the routes of the attempt's workers have them now.
  void LayOut();
  // Workers' terminals get the size that their console has left for them.
  void ResizeTerminals();
  WindowSize WindowOf(const AttemptWorker& worker, ConsoleStream stream);

  // Hands on what a worker wrote. False if its console takes no more now.
  bool Deliver(WorkerStream& stream, absl::string_view bytes);
  bool IsCongested(const WorkerStream& stream);
  // The line that has begun is whole for the filters.
  void EndFilteredLine(WorkerStream& stream);
  void End(WorkerStream& stream);
  void WriteOut();

 private:
  bool IsOn(const Console& console, const WorkerStream& stream) {
    return &consoles_.of(stream.which) == &console;
  }
  void LayOut(Console& console, Console::Kind kind, int num_ranks);
  void Show(WorkerStream& stream);
  void Filter(const WorkerStream& stream, absl::string_view line);

  const LogPumpOptions& options_;
  Attempt& attempt_;
  WorkerStreamsById& streams_;
  Consoles consoles_;
};

}  // namespace muster::agent
