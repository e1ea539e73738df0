// The options of another launcher as a table: what each becomes here. Its grammar, and what is said
// of an option that is refused, follow from it.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {

// `To`: where an option goes, with To::kRefused and To::kRun among it.
template <typename To>
struct PeerOption {
  const char* name;
  bool takes_value;
  To to;
  const char* why = "";  // of a refusal, what to do; else what becomes of it
  char short_name = 0;
  const char* other_name = nullptr;
};

template <typename To, size_t kSize>
command_line::Grammar PeerGrammar(const std::string& program, const std::string& usage,
                                  const PeerOption<To> (&table)[kSize]) {
  command_line::Grammar grammar{.program = program, .usage = usage, .ends_at_script = true};
  for (const PeerOption<To>& row : table) {
    grammar.options.push_back({.name = row.name,
                               .value_name = row.takes_value ? "VALUE" : "",
                               .group = row.to == To::kRefused ? "Refused" : "Taken",
                               .help = row.why,
                               .read = [](const std::string&) { return absl::OkStatus(); },
                               .short_name = row.short_name});
    if (row.other_name != nullptr) grammar.options.back().other_names = {row.other_name};
  }
  return grammar;
}

// Errors: kInvalidArgument naming the first option of `line` that is refused, and what to do.
template <typename To, size_t kSize>
absl::Status RefuseOptions(const command_line::CommandLine& line,
                           const PeerOption<To> (&table)[kSize]) {
  for (const PeerOption<To>& row : table) {
    const command_line::Given* given = line.Find(row.name);
    if (given == nullptr || row.to != To::kRefused) continue;
    return absl::InvalidArgumentError(absl::StrCat(given->source, ": ", row.why));
  }
  return absl::OkStatus();
}

// Adds those that are options of `muster run`, under the same name.
template <typename To, size_t kSize>
void AppendRunOptions(const command_line::CommandLine& line, const PeerOption<To> (&table)[kSize],
                      std::vector<std::string>& args) {
  for (const PeerOption<To>& row : table) {
    const command_line::Given* given = row.to == To::kRun ? line.Find(row.name) : nullptr;
    if (given == nullptr) continue;
    args.push_back(row.takes_value ? absl::StrCat("--", row.name, "=", given->text())
                                   : absl::StrCat("--", row.name));
  }
}

// Adds the script and its arguments, in which their launcher replaces nothing: `muster run` makes $
// of $$.
inline void AppendLiteralScript(const command_line::CommandLine& line,
                                std::vector<std::string>& args) {
  args.insert(args.end(), {"--", line.script.front()});
  for (size_t i = 1; i < line.script.size(); ++i) {
    args.push_back(absl::StrReplaceAll(line.script[i], {{"$", "$$"}}));
  }
}

}  // namespace muster::launcher
