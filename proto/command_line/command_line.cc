#include "proto/command_line/command_line.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "proto/base/field_error.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/base/version.h"
#include "proto/command_line/help.h"
#include "proto/command_line/values.h"

namespace muster::command_line {
namespace {

using Args = std::vector<std::string>;

std::string Underscored(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

std::string NameOf(const std::string& arg) { return arg.substr(0, arg.find('=')); }

std::string Quoted(absl::string_view text) { return absl::Utf8SafeCHexEscape(text); }

// One pass over the arguments.
class Reader {
 public:
  Reader(const Grammar& grammar, const Args& args)
      : grammar_(grammar), options_(AllOptions(grammar)), args_(args) {}

  absl::StatusOr<CommandLine> Read() {
    while (next_ < args_.size()) {
      const std::string& arg = args_[next_];
      if (arg == "--" && (grammar_.ends_at_script || grammar_.has_words)) {
        line_.script.insert(line_.script.end(), args_.begin() + static_cast<ptrdiff_t>(next_) + 1,
                            args_.end());
        break;
      }
      if (absl::StartsWith(arg, "--")) {
        MUSTER_RETURN_IF_ERROR(TakeLong(arg));
      } else if (arg.size() > 1 && arg[0] == '-') {
        MUSTER_RETURN_IF_ERROR(TakeShort(arg));
      } else if (grammar_.ends_at_script) {
        TakeScript();
        break;
      } else if (grammar_.has_words) {
        line_.script.push_back(arg);
        ++next_;
      } else {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", Quoted(arg), "' belongs to no option; a value comes after its option's name"));
      }
    }
    return std::move(line_);
  }

  absl::Status ReadEnvironment(const EnvironmentMap& environment, CommandLine& line) const {
    for (const Option& option : options_) {
      if (line.Find(option.name) != nullptr) continue;
      for (const std::string& variable : option.variables) {
        std::string text = VariableOrEmpty(environment, variable);
        if (text.empty()) continue;
        if (option.value_name.empty()) {
          const absl::StatusOr<bool> on = ParseBool(text);
          MUSTER_RETURN_IF_ERROR(At(variable, text, on.status()));
          text = *on ? "1" : "0";
        }
        line.values[option.name] = {.texts = {std::move(text)}, .source = variable};
        break;
      }
    }
    return absl::OkStatus();
  }

 private:
  // As argparse has it, the first `--` ends the options even right behind the script.
  void TakeScript() {
    line_.script.assign(args_.begin() + static_cast<ptrdiff_t>(next_), args_.end());
    if (line_.script.size() > 1 && line_.script[1] == "--") {
      line_.script.erase(line_.script.begin() + 1);
    }
  }

  // The option that is spelled so in full; nullptr if none is.
  const Option* FindExactly(const std::string& spelling) const {
    if (!absl::StartsWith(spelling, "--")) return nullptr;
    const std::string name = Underscored(spelling.substr(2));
    const auto found = std::find_if(options_.begin(), options_.end(), [&](const Option& option) {
      return name == option.name ||
             std::count(option.other_names.begin(), option.other_names.end(), name) > 0;
    });
    return found == options_.end() ? nullptr : &*found;
  }

  // The options that have a name which begins so.
  std::vector<const Option*> FindByBeginning(const std::string& spelling) const {
    const std::string beginning = Underscored(spelling.substr(2));
    std::vector<const Option*> found;
    if (beginning.empty()) return found;
    for (const Option& option : options_) {
      const bool fits =
          absl::StartsWith(option.name, beginning) ||
          std::any_of(option.other_names.begin(), option.other_names.end(),
                      [&](const std::string& other) { return absl::StartsWith(other, beginning); });
      if (fits) found.push_back(&option);
    }
    return found;
  }

  absl::StatusOr<const Option*> Find(const std::string& arg) {
    const std::string spelling = NameOf(arg);
    if (const Option* exact = FindExactly(spelling)) return exact;
    const std::vector<const Option*> found = FindByBeginning(spelling);
    if (found.empty()) return UnknownOption(arg);
    if (found.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(spelling, " could be ",
                       absl::StrJoin(found, ", ",
                                     [](std::string* out, const Option* option) {
                                       absl::StrAppend(out, "--", option->name);
                                     }),
                       "; write the option in full"));
    }
    line_.warnings.push_back(
        absl::StrCat(spelling, " is taken for --", found.front()->name, "; write it in full"));
    return found.front();
  }

  absl::Status UnknownOption(const std::string& arg) const {
    const bool may_be_the_scripts =
        grammar_.ends_at_script && (!absl::StartsWith(arg, "--") || absl::StartsWith(arg, "---"));
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option ", Quoted(arg), DidYouMean(NameOf(arg), Spellings(grammar_)),
                     may_be_the_scripts ? " (arguments of the script come after the script)" : ""));
  }

  absl::Status TakeLong(const std::string& arg) {
    MUSTER_ASSIGN_OR_RETURN(const Option* option, Find(arg));
    const Option* exact = FindExactly(NameOf(arg));
    const std::string source =
        absl::StrCat("--", exact != nullptr ? Underscored(NameOf(arg).substr(2)) : option->name);
    const size_t equals = arg.find('=');
    std::optional<std::string> value;
    if (equals != std::string::npos) value = arg.substr(equals + 1);
    ++next_;
    if (option->value_name.empty()) {
      if (!value) return Store(*option, source, "1");
      return absl::InvalidArgumentError(
          absl::StrCat(source, " takes no value, but was given '", Quoted(*value), "'"));
    }
    return TakeValue(*option, source, std::move(value));
  }

  // "-r3", "-r=3", "-r 3", and flags before it: "-mr3".
  absl::Status TakeShort(const std::string& arg) {
    ++next_;
    for (size_t i = 1; i < arg.size(); ++i) {
      const auto option = std::find_if(options_.begin(), options_.end(), [&](const Option& each) {
        return each.short_name != 0 && each.short_name == arg[i];
      });
      if (option == options_.end()) return UnknownOption(arg);
      const std::string source = "--" + option->name;
      if (option->value_name.empty()) {
        MUSTER_RETURN_IF_ERROR(Store(*option, source, "1"));
        continue;
      }
      std::optional<std::string> value;
      if (i + 1 < arg.size()) value = arg.substr(arg[i + 1] == '=' ? i + 2 : i + 1);
      return TakeValue(*option, source, std::move(value));
    }
    return absl::OkStatus();
  }

  absl::Status TakeValue(const Option& option, const std::string& source,
                         std::optional<std::string> value) {
    if (value) {
      MUSTER_RETURN_IF_ERROR(Store(option, source, *std::move(value)));
    } else {
      if (next_ == args_.size() || args_[next_] == "--") {
        return absl::InvalidArgumentError(absl::StrCat(source, " needs a value"));
      }
      // `--rdzv_id --standalone`: the value was forgotten.
      if (FindExactly(NameOf(args_[next_])) != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            source, " needs a value, but is followed by the option ", NameOf(args_[next_])));
      }
      MUSTER_RETURN_IF_ERROR(Store(option, source, args_[next_++]));
    }
    while (option.is_list && next_ < args_.size() && !absl::StartsWith(args_[next_], "-")) {
      MUSTER_RETURN_IF_ERROR(Store(option, source, args_[next_++]));
    }
    return absl::OkStatus();
  }

  absl::Status Store(const Option& option, const std::string& source, std::string text) {
    Given& given = line_.values[option.name];
    if (!option.is_list) given.texts.clear();
    given.texts.push_back(std::move(text));
    given.source = source;
    given.is_typed = true;
    return absl::OkStatus();
  }

  const Grammar& grammar_;
  const std::vector<Option> options_;
  const Args& args_;
  size_t next_ = 0;
  CommandLine line_;
};

absl::Status FillPrint(const Grammar& grammar, CommandLine& line) {
  if (line.IsOn("help")) {
    line.print = HelpText(grammar);
  } else if (line.IsOn("version")) {
    line.print = absl::StrCat(NameOf(grammar.program.substr(0, grammar.program.find(' '))), " ",
                              Version(), "\n", BuildDetails());
  } else if (const Given* shell = line.Find("print_completion")) {
    absl::StatusOr<std::string> text = CompletionText(grammar, shell->text());
    MUSTER_RETURN_IF_ERROR(At(shell->source, shell->text(), text.status()));
    line.print = *std::move(text);
  }
  return absl::OkStatus();
}

}  // namespace

const Given* CommandLine::Find(absl::string_view name) const {
  const auto it = values.find(std::string(name));
  return it == values.end() ? nullptr : &it->second;
}

bool CommandLine::IsOn(absl::string_view flag) const {
  const Given* given = Find(flag);
  return given != nullptr && given->text() == "1";
}

std::vector<Option> AllOptions(const Grammar& grammar) {
  std::vector<Option> all = grammar.options;
  const auto ignore = [](const std::string&) { return absl::OkStatus(); };
  all.push_back({.name = "help",
                 .group = "Help",
                 .help = "print this text",
                 .read = ignore,
                 .short_name = 'h'});
  all.push_back({.name = "version", .group = "Help", .help = "print the version", .read = ignore});
  all.push_back({.name = "print_completion",
                 .value_name = "SHELL",
                 .group = "Help",
                 .help = "print a completion script for bash, zsh, fish or tcsh",
                 .read = ignore});
  return all;
}

std::vector<std::string> Spellings(const Grammar& grammar) {
  std::vector<std::string> spellings;
  const auto add = [&](const std::string& name) {
    spellings.push_back("--" + name);
    const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
    if (dashed != name) spellings.push_back("--" + dashed);
  };
  for (const Option& option : AllOptions(grammar)) {
    add(option.name);
    for (const std::string& other : option.other_names) add(other);
  }
  return spellings;
}

absl::StatusOr<CommandLine> Split(const Grammar& grammar, const std::vector<std::string>& args,
                                  const EnvironmentMap& environment) {
  Reader reader(grammar, args);
  MUSTER_ASSIGN_OR_RETURN(CommandLine line, reader.Read());
  MUSTER_RETURN_IF_ERROR(FillPrint(grammar, line));
  if (!line.print.empty()) return line;
  MUSTER_RETURN_IF_ERROR(reader.ReadEnvironment(environment, line));
  return line;
}

absl::Status ReadValues(const Grammar& grammar, const CommandLine& line) {
  for (const Option& option : grammar.options) {
    const Given* given = line.Find(option.name);
    if (given == nullptr) continue;
    for (const std::string& text : given->texts) {
      MUSTER_RETURN_IF_ERROR(At(given->source, text, option.read(text)));
    }
  }
  return absl::OkStatus();
}

std::string TextOfCommonValues(const Grammar& grammar, const CommandLine& line) {
  std::string out;
  for (const Option& option : grammar.options) {
    if (option.may_differ) continue;
    const Given* const given = line.Find(option.name);
    absl::StrAppend(&out, "--", option.name, "=",
                    given == nullptr ? "not given" : absl::StrJoin(given->texts, " "), "\n");
  }
  return out;
}

absl::Status InWordsOf(const Grammar& grammar, const CommandLine& line,
                       const absl::Status& status) {
  const std::string field = FieldOf(status);
  absl::string_view rest = status.message();
  if (field.empty() || !absl::ConsumePrefix(&rest, field)) return status;
  // The option of the field; where several set it, the last that was given.
  const Option* of_field = nullptr;
  for (const Option& option : grammar.options) {
    if ((option.field.empty() ? option.name : option.field) != field) continue;
    if (of_field == nullptr || line.Find(option.name) != nullptr) of_field = &option;
  }
  if (of_field != nullptr) {
    const Given* const given = line.Find(of_field->name);
    return FieldError(given != nullptr ? given->source : absl::StrCat("--", of_field->name), rest,
                      status.code());
  }
  absl::string_view name = field;
  const Given* const given = absl::ConsumePrefix(&name, "--") ? line.Find(name) : nullptr;
  if (given == nullptr || given->is_typed) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), " (from ", given->source, ")"));
}

std::string InWords(absl::string_view source, absl::string_view value) {
  return absl::StrCat(source, "=", Quoted(value));
}

absl::Status At(absl::string_view source, absl::string_view value, const absl::Status& why) {
  if (why.ok()) return why;
  return FieldError(source, absl::StrCat("=", Quoted(value), ": ", why.message()), why.code());
}

}  // namespace muster::command_line
