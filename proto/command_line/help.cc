#include "proto/command_line/help.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace muster::command_line {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kMaxIndent = 40;  // longer options have their help on the next line

// "  -r, --redirects=0-3|RANK:0-3,...".
std::string Shown(const Option& option) {
  return absl::StrCat(
      option.short_name == 0 ? "      "
                             : absl::StrCat("  -", std::string(1, option.short_name), ", "),
      "--", option.name, option.value_name.empty() ? "" : absl::StrCat("=", option.value_name));
}

size_t Indent(const std::vector<Option>& options) {
  size_t widest = 0;
  for (const Option& option : options) {
    const size_t width = Shown(option).size() + 2;
    if (width <= kMaxIndent) widest = std::max(widest, width);
  }
  return widest;
}

void AppendOption(const Option& option, size_t indent, std::string& text) {
  std::string line = Shown(option);
  if (line.size() + 2 > indent) {
    absl::StrAppend(&text, line, "\n");
    line.clear();
  }
  line.resize(indent, ' ');
  bool is_first = true;
  for (absl::string_view word : absl::StrSplit(option.help, ' ')) {
    if (!is_first && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&text, line, "\n");
      line.assign(indent, ' ');
      is_first = true;
    }
    absl::StrAppend(&line, is_first ? "" : " ", word);
    is_first = false;
  }
  absl::StrAppend(&text, line, "\n");
}

std::string Names(const Grammar& grammar, const char* prefix) {
  std::vector<std::string> names;
  for (const Option& option : AllOptions(grammar)) names.push_back(prefix + option.name);
  return absl::StrJoin(names, " ");
}

// `muster run` is completed by _muster_run, which _muster finds by the subcommand. So the scripts
// of two subcommands go together.
std::string BashCompletion(const Grammar& grammar) {
  const std::string command = grammar.program.substr(0, grammar.program.find(' '));
  const std::string own = "_" + absl::StrReplaceAll(grammar.program, {{" ", "_"}, {"-", "_"}});
  const std::string first = "_" + absl::StrReplaceAll(command, {{"-", "_"}});
  std::string text =
      absl::StrCat(own, "() {\n  local word=${COMP_WORDS[COMP_CWORD]}\n  COMPREPLY=()\n",
                   "  case $word in -*) COMPREPLY=($(compgen -W '", Names(grammar, "--"),
                   "' -- \"$word\")) ;; esac\n}\n");
  if (first != own) {
    absl::StrAppend(&text, first, "() {\n  local named=", first, "_${COMP_WORDS[1]}\n",
                    "  if declare -F \"$named\" > /dev/null; then \"$named\"; else ", first,
                    "_run; fi\n}\n");
  }
  absl::StrAppend(&text, "complete -o default -F ", first, " ", command, "\n");
  for (const std::string& other : grammar.also_called) {
    absl::StrAppend(&text, "complete -o default -F ", own, " ", other, "\n");
  }
  return text;
}

std::string TcshCompletion(const Grammar& grammar) {
  std::vector<std::string> commands = {grammar.program.substr(0, grammar.program.find(' '))};
  commands.insert(commands.end(), grammar.also_called.begin(), grammar.also_called.end());
  std::string text;
  for (const std::string& command : commands) {
    absl::StrAppend(&text, "complete ", command, " 'c/--/(", Names(grammar, ""), ")/' 'p/*/f/'\n");
  }
  return text;
}

// `muster run` is what `muster` alone means, so its options complete behind any word that is no
// other subcommand; those of `muster stop` behind that word.
std::string FishCompletion(const Grammar& grammar) {
  const std::vector<std::string> words = absl::StrSplit(grammar.program, ' ');
  std::string condition;
  if (words.size() > 1 && words[1] != "run") {
    condition = absl::StrCat(" -n '__fish_seen_subcommand_from ", words[1], "'");
  }
  std::vector<std::string> commands = {absl::StrCat(words[0], condition)};
  commands.insert(commands.end(), grammar.also_called.begin(), grammar.also_called.end());
  std::string text;
  for (const std::string& command : commands) {
    for (const Option& option : AllOptions(grammar)) {
      absl::StrAppend(
          &text, "complete -c ", command, " -l ", option.name,
          option.short_name == 0 ? "" : absl::StrCat(" -s ", std::string(1, option.short_name)),
          option.value_name.empty() ? "" : " -r", " -d '",
          absl::StrReplaceAll(option.help, {{"\\", "\\\\"}, {"'", "\\'"}}), "'\n");
    }
  }
  return text;
}

}  // namespace

std::string HelpText(const Grammar& grammar) {
  const std::vector<Option> options = AllOptions(grammar);
  const size_t indent = Indent(options);
  std::vector<std::string> groups;
  for (const Option& option : options) {
    if (std::count(groups.begin(), groups.end(), option.group) == 0) groups.push_back(option.group);
  }
  std::string text = grammar.usage;
  for (const std::string& group : groups) {
    absl::StrAppend(&text, "\n", group, ":\n");
    for (const Option& option : options) {
      if (option.group == group) AppendOption(option, indent, text);
    }
  }
  return absl::StrCat(text, grammar.footer);
}

absl::StatusOr<std::string> CompletionText(const Grammar& grammar, const std::string& shell) {
  if (shell == "bash") return BashCompletion(grammar);
  if (shell == "zsh") {
    return absl::StrCat("autoload -U +X bashcompinit && bashcompinit\n", BashCompletion(grammar));
  }
  if (shell == "fish") return FishCompletion(grammar);
  if (shell == "tcsh") return TcshCompletion(grammar);
  return absl::InvalidArgumentError("expected bash, zsh, fish or tcsh");
}

}  // namespace muster::command_line
