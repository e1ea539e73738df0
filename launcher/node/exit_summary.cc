#include "launcher/node/exit_summary.h"

#include <algorithm>
#include <csignal>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/base/last_traceback.h"
#include "proto/base/process_end.h"

namespace muster::launcher {
namespace {

constexpr size_t kWidth = 60;

void AppendRule(std::string& out, char c) { absl::StrAppend(&out, std::string(kWidth, c), "\n"); }

void AppendField(std::string& out, absl::string_view key, absl::string_view value) {
  absl::StrAppend(&out, "  ", key, std::string(10 - std::min<size_t>(10, key.size()), ' '), ": ",
                  value, "\n");
}

std::vector<std::string> Lines(const std::string& text) {
  const std::string plain = absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}});
  return absl::StrSplit(absl::StripTrailingAsciiWhitespace(plain), '\n');
}

// One line beside its key; several below it.
void AppendText(std::string& out, absl::string_view key, const std::string& text) {
  const std::vector<std::string> lines = Lines(text);
  if (lines.size() == 1) return AppendField(out, key, lines.front());
  AppendField(out, key, "");
  for (const std::string& line : lines) {
    absl::StrAppend(&out, line.empty() ? "" : "    ", line, "\n");
  }
}

// The last line that is not blank.
std::string LastLine(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t end = text.find_last_of("\r\n");
  return std::string(end == absl::string_view::npos ? text : text.substr(end + 1));
}

std::string Name(const WorkerFailure& failure) {
  return absl::StrCat("rank ", ToString(failure.rank), " on ", failure.node_name);
}

std::string OutOfMemoryInWords(const WorkerFailure& failure) {
  if (failure.signal == SIGKILL) return "probably killed by the kernel's out-of-memory killer";
  return "probably memory: the kernel's out-of-memory killer has killed a process of this node, "
         "such as one that the rank had started";
}

void AppendEnding(std::string& out, const WorkerFailure& failure) {
  if (failure.start_failed) {
    AppendField(out, "exitcode", absl::StrCat(ExitCodeOf(failure), " (never started)"));
    return;
  }
  const int code = failure.signal != 0 ? -failure.signal : ExitCodeOf(failure);
  AppendField(out, "exitcode", absl::StrCat(code, " (pid: ", failure.pid, ")"));
  if (failure.signal != 0) {
    AppendField(out, "signal", absl::StrCat(failure.signal, ", ", SignalInWords(failure.signal)));
  }
  if (failure.probably_out_of_memory) {
    AppendField(out, "cause", OutOfMemoryInWords(failure));
  }
}

// What another interpreter than the one that was meant leads to.
bool MayBeOfThePython(const WorkerFailure& failure) {
  for (const std::string* text : {&failure.message, &failure.last_output}) {
    for (const char* sign : {"ModuleNotFoundError", "ImportError", "No module named"}) {
      if (absl::StrContains(*text, sign)) return true;
    }
  }
  return failure.start_failed;
}

void AppendFailure(std::string& out, int index, const WorkerFailure& failure,
                   const SummaryOptions& options) {
  absl::StrAppend(&out, "[", index, "]:\n");
  AppendField(out, "time",
              absl::FormatTime("%Y-%m-%dT%H:%M:%E3S%Ez", absl::FromUnixMillis(failure.unix_millis),
                               options.time_zone));
  AppendField(out, "host", failure.node_name);
  AppendField(out, "rank",
              absl::StrCat(ToString(failure.rank), " (local_rank: ", ToString(failure.local_rank),
                           ", node_rank: ", ToString(failure.node_rank), ")"));
  AppendEnding(out, failure);
  if (!options.python.empty() && failure.node_name == options.this_node &&
      MayBeOfThePython(failure)) {
    AppendField(out, "python", absl::StrCat(options.python, "; PYTHON_EXEC chooses another"));
  }
  AppendField(out, "error_file", failure.error_file.empty() ? "<N/A>" : failure.error_file);
  // Our own words about it, which no console has shown.
  if (failure.error_file.empty() && !failure.message.empty()) {
    AppendText(out, "message", failure.message);
  }
  const bool was_shown = options.was_shown && options.was_shown(failure);
  const std::string& words = failure.error_file.empty() ? failure.last_output : failure.message;
  if (was_shown && !failure.start_failed && !words.empty()) {
    const std::string last = LastLine(words);
    const std::optional<LastTraceback> traceback = FindLastTraceback(words);
    if (traceback && traceback->exception != last) {
      AppendField(out, "exception", traceback->exception);
    }
    AppendField(out, "output", absl::StrCat("shown above, ending with: ", last));
    return;
  }
  if (!failure.error_file.empty() && !failure.message.empty()) {
    AppendText(out, "traceback", failure.message);
  }
  // What a worker said of its own failure in its error file makes the tail of its output
  // superfluous.
  if (failure.error_file.empty() && !failure.last_output.empty()) {
    AppendText(out, "output", absl::StrCat("(last lines)\n", failure.last_output));
  }
}

bool IsSameWorker(const WorkerFailure& a, const WorkerFailure& b) {
  return a.rank == b.rank && a.node_name == b.node_name && a.pid == b.pid;
}

void AppendOtherFailures(std::string& out, const JobOutcome& outcome,
                         const SummaryOptions& options) {
  int shown = 0;
  int hidden = 0;
  for (const WorkerFailure& failure : outcome.failures) {
    if (IsSameWorker(failure, *outcome.root_cause)) continue;
    if (shown == options.max_failures) {
      ++hidden;
      continue;
    }
    if (shown == 0) absl::StrAppend(&out, "Other failures:\n");
    AppendFailure(out, ++shown, failure, options);
  }
  if (hidden > 0) absl::StrAppend(&out, "and ", hidden, " more\n");
  if (shown + hidden == 0) absl::StrAppend(&out, "Other failures: none\n");
}

std::string ExitLine(const JobOutcome& outcome) {
  return absl::StrCat("exit code ", outcome.exit_code,
                      outcome.reason.empty() ? "" : absl::StrCat(": ", outcome.reason), "\n");
}

std::string FormatOutcome(const JobOutcome& outcome, const SummaryOptions& options) {
  if (!outcome.root_cause) {
    return absl::StrCat(options.program, " did not finish\n", ExitLine(outcome));
  }
  const WorkerFailure& root = *outcome.root_cause;
  const bool is_elsewhere = root.node_name != options.this_node;
  const std::string because =
      is_elsewhere
          ? absl::StrCat(options.this_node, " stopped because ", Name(root), " ", HowItEnded(root),
                         root.ended_by.empty() ? "" : ": ", root.ended_by, "\n")
          : "";
  if (is_elsewhere && options.shares_console) return because;
  std::string out;
  AppendRule(out, '=');
  absl::StrAppend(&out, options.program, " FAILED\n", because);
  AppendRule(out, '-');
  if (root.ended_by.empty()) {
    absl::StrAppend(&out, "Root Cause (first observed failure):\n");
  } else {
    absl::StrAppend(&out, "Root Cause:\n  ", root.ended_by, "\n");
    AppendRule(out, '-');
    absl::StrAppend(&out, "First observed failure, which is not at fault:\n");
  }
  AppendFailure(out, 0, root, options);
  AppendRule(out, '-');
  AppendOtherFailures(out, outcome, options);
  AppendRule(out, '=');
  absl::StrAppend(&out, ExitLine(outcome));
  return out;
}

}  // namespace

std::string FormatExitSummary(const JobOutcome& outcome, const SummaryOptions& options) {
  if (outcome.exit_code == 0) return "";
  std::string out;
  for (const std::string& fault : options.network_faults) {
    absl::StrAppend(&out, "network: ", fault, "\n");
  }
  return out + FormatOutcome(outcome, options);
}

}  // namespace muster::launcher
