// What commands have in common that read a line of options and print: those that look at a job
// (status, stacks, logs, top), bench, and those that read files.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/line/flags.h"
#include "launcher/line/invocation.h"
#include "launcher/sight/sight_options.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {

// What an answer may take beyond the agents' own time.
inline constexpr absl::Duration kOfTheWay = absl::Seconds(3);

// Prints `text`, to a terminal without what would steer it (TextFor); `exit_code`, or that of a
// failure where it cannot be written.
int PrintText(const std::string& text, int exit_code);
// The same of a text that steers the terminal on purpose.
int PrintRaw(const std::string& text, int exit_code);
// Says in the name of `program` why it does not do what was asked; the exit code that follows.
int PrintRefusal(const std::string& program, const absl::Status& why);

// The words between the options of a line that has `count`, `expected` in a refusal. Nothing: the
// help has been printed. Errors: Split's, ReadValues'; kInvalidArgument: other than so many.
absl::StatusOr<std::optional<std::vector<std::string>>> ReadWords(
    const command_line::Grammar& grammar, const Invocation& invocation, size_t count,
    const char* expected);

// Does `act`, which returns the exit code, with what was parsed: options with `warnings`, or a text
// to be printed. Says why not in the name of `program`, otherwise.
template <typename Flags>
int RunParsed(const std::string& program,
              const absl::StatusOr<std::variant<Flags, PrintAndExit>>& parsed,
              const std::function<absl::StatusOr<int>(const Flags&)>& act) {
  if (!parsed.ok()) return PrintRefusal(program, parsed.status());
  if (const auto* print = std::get_if<PrintAndExit>(&*parsed)) return PrintText(print->text, 0);
  const Flags& flags = std::get<Flags>(*parsed);
  for (const std::string& warning : flags.warnings) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), warning.c_str());
  }
  const absl::StatusOr<int> exit_code = act(flags);
  return exit_code.ok() ? *exit_code : PrintRefusal(program, exit_code.status());
}

// Reads the command line and does `look`, which returns the exit code; prints why not, otherwise.
int RunSight(SightKind kind, const Invocation& invocation,
             const std::function<absl::StatusOr<int>(const SightFlags&)>& look);

}  // namespace muster::launcher
