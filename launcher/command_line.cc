#include "launcher/command_line.h"

#include <algorithm>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launcher/flag_values.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

// CLI11 takes `--name=` for `--name` and would eat the next argument; a mark keeps the empty value
// a value.
constexpr char kValueMark = '\x01';

std::string Dashed(const std::string& name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

// "--nnodes", and "--nproc_per_node,--nproc-per-node".
std::vector<std::string> Spellings(const Option& option) {
  std::vector<std::string> spellings = {"--" + option.name};
  if (Dashed(option.name) != option.name) spellings.push_back("--" + Dashed(option.name));
  return spellings;
}

std::vector<std::string> AllSpellings() {
  std::vector<std::string> all;
  for (const Option& option : RunOptions()) {
    for (const std::string& spelling : Spellings(option)) all.push_back(spelling);
  }
  return all;
}

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(46); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "usage: muster run [options] SCRIPT [arguments of the script]\n"
           "Options are spelled with _ or -. Each of torchrun's may come as a variable PET_<NAME> "
           "instead.\n";
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    const std::string name = "--" + option->get_lnames().front();
    return option->get_snames().empty()
               ? "    " + name
               : absl::StrCat("-", option->get_snames().front(), ", ", name);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_expected_max() == 0 ? "" : "=" + option->get_type_name();
  }
};

std::unique_ptr<CLI::App> MakeApp() {
  auto app = std::make_unique<CLI::App>();
  app->set_help_flag("");
  app->prefix_command();
  app->formatter(std::make_shared<HelpFormatter>());
  for (const Option& option : RunOptions()) {
    std::string names = absl::StrJoin(Spellings(option), ",");
    if (option.short_name != 0) absl::StrAppend(&names, ",-", std::string(1, option.short_name));
    CLI::Option* added =
        option.value_name.empty()
            ? app->add_flag(names, option.help)
            : app->add_option(names, CLI::callback_t(), option.help)->type_name(option.value_name);
    added->group(option.group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  return app;
}

std::vector<std::string> MarkValues(const std::vector<std::string>& args) {
  std::vector<std::string> marked = args;
  for (std::string& arg : marked) {
    const size_t equals = arg.find('=');
    if (absl::StartsWith(arg, "--") && equals != std::string::npos) {
      arg.insert(equals + 1, 1, kValueMark);
    }
  }
  return marked;
}

// Of one value, or of a whole `--name=value`.
std::string Unmarked(std::string text) {
  const size_t equals = absl::StartsWith(text, "--") ? text.find('=') : std::string::npos;
  const size_t mark = equals == std::string::npos ? 0 : equals + 1;
  if (mark < text.size() && text[mark] == kValueMark) text.erase(mark, 1);
  return text;
}

// What follows a short option may begin with `=`, as argparse has it: `-t=3`.
std::string ValueText(const Option& option, const std::string& value) {
  if (option.short_name != 0 && absl::StartsWith(value, "=")) return value.substr(1);
  return Unmarked(value);
}

absl::Status UnknownOption(const std::string& given) {
  const std::string name = given.substr(0, given.find('='));
  return absl::InvalidArgumentError(
      absl::StrCat("unknown option ", given, DidYouMean(name, AllSpellings()),
                   absl::StartsWith(given, "---") || !absl::StartsWith(given, "--")
                       ? " (arguments of the script come after the script)"
                       : ""));
}

absl::Status CheckFlag(const Option& option, const std::string& value) {
  if (value == "true") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", option.name, " takes no value, but was given '", Unmarked(value), "'"));
}

// `--rdzv_id --standalone`: the value was forgotten.
absl::Status CheckIsNoOption(const Option& option, const std::string& value) {
  const std::vector<std::string> known = AllSpellings();
  if (std::find(known.begin(), known.end(), value.substr(0, value.find('='))) == known.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", option.name, " needs a value, but is followed by the option ", Unmarked(value)));
}

absl::Status TakeOptions(const CLI::App& app, CommandLine& line) {
  for (const Option& option : RunOptions()) {
    const CLI::Option& parsed = *app.get_option("--" + option.name);
    if (parsed.count() == 0) continue;
    const std::string value = parsed.results().back();
    const std::string source = "--" + option.name;
    if (option.value_name.empty()) {
      MUSTER_RETURN_IF_ERROR(CheckFlag(option, value));
      line.values[option.name] = {.text = "1", .source = source};
    } else {
      MUSTER_RETURN_IF_ERROR(CheckIsNoOption(option, value));
      line.values[option.name] = {.text = ValueText(option, value), .source = source};
    }
  }
  return absl::OkStatus();
}

// What CLI11 left begins with an unknown option, with `--`, or with the script; from there on it is
// the caller's own text.
absl::Status TakeProgram(const std::vector<std::string>& args, const CLI::App& app,
                         CommandLine& line) {
  std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return absl::OkStatus();
  size_t length = rest.size();
  if (rest.front() == "--") {
    --length;
  } else if (absl::StartsWith(rest.front(), "-")) {
    return UnknownOption(Unmarked(rest.front()));
  }
  line.program.assign(args.end() - static_cast<ptrdiff_t>(length), args.end());
  return absl::OkStatus();
}

absl::Status TakeEnvironment(const EnvironmentMap& environment, CommandLine& line) {
  for (const Option& option : RunOptions()) {
    if (line.Find(option.name) != nullptr) continue;
    for (const std::string& variable : option.environment) {
      const auto it = environment.find(variable);
      if (it == environment.end() || it->second.empty()) continue;
      std::string text = it->second;
      if (option.value_name.empty()) {
        absl::StatusOr<bool> on = ParseBool(text);
        if (!on.ok()) {
          return absl::InvalidArgumentError(
              absl::StrCat(variable, "=", text, ": ", on.status().message()));
        }
        text = *on ? "1" : "0";
      }
      line.values[option.name] = {.text = std::move(text), .source = variable};
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Explain(const CLI::ParseError& error) {
  const absl::string_view text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    return absl::InvalidArgumentError(
        absl::StrCat(text.substr(0, text.find(':')), " needs a value"));
  }
  return absl::InvalidArgumentError(absl::StrCat("the command line cannot be read: ", text));
}

}  // namespace

const GivenValue* CommandLine::Find(absl::string_view name) const {
  const auto it = values.find(std::string(name));
  return it == values.end() ? nullptr : &it->second;
}

bool CommandLine::IsOn(absl::string_view flag) const {
  const GivenValue* given = Find(flag);
  return given != nullptr && given->text == "1";
}

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& args,
                                            const EnvironmentMap& environment) {
  const std::unique_ptr<CLI::App> app = MakeApp();
  std::vector<std::string> reversed = MarkValues(args);
  std::reverse(reversed.begin(), reversed.end());  // as CLI11 wants it
  try {
    app->parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return Explain(error);
  }
  CommandLine line;
  MUSTER_RETURN_IF_ERROR(TakeOptions(*app, line));
  MUSTER_RETURN_IF_ERROR(TakeProgram(args, *app, line));
  MUSTER_RETURN_IF_ERROR(TakeEnvironment(environment, line));
  return line;
}

std::string HelpText() { return absl::StrReplaceAll(MakeApp()->help(), {{"\n\n\n", "\n\n"}}); }

}  // namespace muster::launcher
