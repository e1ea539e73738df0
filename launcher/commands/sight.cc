#include "launcher/commands/sight.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"
#include "proto/io/descriptors.h"

namespace muster::launcher {

int PrintText(const std::string& text, int exit_code) {
  return PrintRaw(TextFor(STDOUT_FILENO, text), exit_code);
}

int PrintRaw(const std::string& text, int exit_code) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return is_written ? exit_code : kExitFailure;
}

int PrintRefusal(const std::string& program, const absl::Status& why) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), LinesForTerminal(why.message()).c_str());
  return ExitCodeOf(why);
}

absl::StatusOr<std::optional<std::vector<std::string>>> ReadWords(
    const command_line::Grammar& grammar, const Invocation& invocation, size_t count,
    const char* expected) {
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line,
                          command_line::Split(grammar, invocation.args, invocation.environment));
  if (!line.print.empty()) {
    PrintText(line.print, 0);
    return std::nullopt;
  }
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (line.script.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("expected ", expected));
  }
  return std::move(line.script);
}

int RunSight(SightKind kind, const Invocation& invocation,
             const std::function<absl::StatusOr<int>(const SightFlags&)>& look) {
  return RunParsed<SightFlags>(
      ProgramOf(kind), ParseSightFlags(kind, invocation.args, invocation.environment), look);
}

}  // namespace muster::launcher
