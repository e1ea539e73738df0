// Carries what workers print: to files, to the console, through filters, and keeps the last lines
// of each worker for the failure report; and what is typed at our terminal to the only worker.
//
// Where a stream goes is decided by log_routing.h; how streams share a console (lines, prefixes,
// bars) by console_layout.h; both are pure. This class owns pipes, pseudo terminals, files and
// timers. What asks the file system of the logs is asked aside (aside.h), in the order of the
// calls, so that one that hangs never holds up the loop. Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/console/error_file.h"
#include "agent/console/log_routing.h"
#include "asio/io_context.hpp"
#include "proto/base/ids.h"
#include "proto/io/unique_fd.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

struct LogPumpOptions {
  LogSpec logs;                   // validated
  std::string run_directory;      // <log_dir>/<run_id>_<random>; exists
  std::string topmost_directory;  // the first on the way to it that is ours; empty: itself
  std::string host;               // for prefixes
  std::string role;
  bool has_hook = false;  // attempts have a file hook.log, too
  // CloseAttempt will be told to keep workers. Their streams are then such that all routes can
  // become theirs: also what goes to a file alone is read, if it would go to the console from rank
  // 0.
  bool keeps_workers = false;
  int console_stdin = 0;  // not owned
  int console_stdout = 1;
  int console_stderr = 2;
  bool cursor_moves = true;                             // of terminals; TERM=dumb has none that do
  absl::Duration partial_line_wait = absl::Seconds(1);  // see ConsoleOptions
  absl::Duration fold_window = absl::Milliseconds(50);
};

// What a worker's standard streams must be. Of a kept worker: the paths that it has had since it
// was started. The descriptors are there after LogPump::TakeDescriptors.
struct WorkerStreams {
  UniqueFd stdin_fd;  // none: inherit the agent's
  UniqueFd stdout_fd;
  UniqueFd stderr_fd;
  std::string directory;   // attempt_<n>/<local_rank>, exists
  std::string error_file;  // directory/error.json
};

// What a worker has left behind to say why it failed.
struct LastWords {
  // The last lines of its output, at most 2 KiB, whole lines. Not necessarily UTF-8.
  std::string output;
  std::optional<ErrorRecord> error;  // from its error file
  bool files_answered = true;        // else what is in files is missing
  // LogFolder::WhyFull, of the folder of what it writes to files itself.
  std::string why_full = "";
};

// SIGPIPE and SIGXFSZ must be ignored in the process: a reader that has gone and a file that may
// not grow are reported, and the job goes on.
class LogPump {
 public:
  LogPump(asio::io_context& loop, LogPumpOptions options);
  // Closes without draining: see CloseAttempt and FlushConsole.
  ~LogPump();
  LogPump(const LogPump&) = delete;
  LogPump& operator=(const LogPump&) = delete;

  // Makes attempt_<attempt>/<local_rank>/ for every worker and opens its streams; closes the
  // attempt before. `on_open` is called once, from the loop, unless the attempt is closed before.
  // Shapes: its argument [workers.size()]. Never removes or truncates what an earlier attempt
  // wrote.
  //
  // A worker that is kept (its streams must have been open ever since) goes on writing to the pipe,
  // terminal or file that its process was started with, and its output stays in the directory of
  // that attempt. When `on_open` is called with success, what it writes from then on has the prefix
  // and goes where its present rank's does, filtered files too; its terminal may then have another
  // size, so it must be sent SIGWINCH. On failure, and until then, nothing changes for it, but that
  // its error file, which tells of an earlier round, is called error_before_attempt_<attempt>.json
  // from then on.
  //
  // Errors: kInvalidArgument / kResourceExhausted with the path and errno in words;
  //         kDeadlineExceeded if the file system takes longer than `at_most`.
  using OnOpen = absl::AnyInvocable<void(absl::StatusOr<std::vector<WorkerStreams>>)>;
  void OpenAttempt(int attempt, const std::vector<PumpedWorker>& workers, absl::Duration at_most,
                   OnOpen on_open);

  // The descriptors of the workers of the attempt that are not kept, each once, in the workers'
  // order: hundreds of them would fill the table. The caller closes them once the worker has them,
  // or the end of its output is never seen.
  //
  // Errors: kResourceExhausted.
  absl::Status TakeDescriptors(WorkerStreams& streams);

  // What a worker of the last attempt, whose exit has just been seen, has said. `then` is called
  // once, from the loop, in the order of the calls, without what files hold if that takes longer
  // than `at_most`.
  void TakeLastWords(LocalRank local_rank, absl::Duration at_most,
                     absl::AnyInvocable<void(LastWords)> then);

  // The descriptor of attempt_<n>/hook.log, once; and its last lines behind what it held before.
  // Only with LogPumpOptions::has_hook, while the attempt is open.
  UniqueFd TakeHookOutput();
  void TakeHookWords(absl::Duration at_most, absl::AnyInvocable<void(std::string)> then);

  // Reads what the pipes hold now, also of a worker whose exit has just been seen. Does not wait
  // for descendants that keep a pipe open.
  void DrainNow(LocalRank local_rank);
  // Drains every stream, flushes unfinished lines and closes; not those of the workers in `kept`,
  // which are carried on as they are, and closed by the next OpenAttempt that does not keep them.
  void CloseAttempt(const std::vector<LocalRank>& kept = {});

  // Our terminal has another size: so have the workers'. They must be sent SIGWINCH.
  void OnWindowSize();
  // Around a stop by Ctrl-Z: while the shell has the terminal, it has the shell's modes.
  void LeaveTerminal();
  void ReturnToTerminal();

  // Prints one line of our own between the workers' lines, on standard error.
  void PrintLine(const std::string& line);
  // Writes what a slow console or file system has not taken yet, waiting at most `at_most`; false
  // if something is left. For the end of the program: until then the loop does it.
  bool FlushConsole(absl::Duration at_most);
  // Removes the run directory and the one above it, unless a worker has written to a log or error
  // file. `then` is called once, from the loop, after `at_most` at the latest.
  void RemoveRunIfUnused(absl::Duration at_most, absl::AnyInvocable<void()> then);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::agent
