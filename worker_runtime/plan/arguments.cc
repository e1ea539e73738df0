#include "worker_runtime/plan/arguments.h"

#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(HelpText text) : text_(std::move(text)) { column_width(34); }
  std::string make_usage(const CLI::App*, std::string) const override { return text_.usage; }
  std::string make_footer(const CLI::App*) const override { return text_.footer; }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    const std::string name = "--" + option->get_lnames().front();
    return option->get_snames().empty()
               ? "    " + name
               : absl::StrCat("-", option->get_snames().front(), ", ", name);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_expected_max() == 0 ? "" : "=" + option->get_type_name();
  }

 private:
  const HelpText text_;
};

std::string NameOf(const std::string& arg) { return arg.substr(0, arg.find('=')); }

std::vector<std::string> AllSpellings(CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) all.push_back("--" + name);
  }
  return all;
}

// nullptr if `arg` is no option.
const CLI::Option* FindOption(CLI::App& app, const std::string& arg) {
  return absl::StartsWith(arg, "--") ? app.get_option_no_throw(NameOf(arg)) : nullptr;
}

// CLI11 would take what follows for the value: another option, or behind `--name=` anything.
absl::Status CheckValues(CLI::App& app, const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const CLI::Option* option = FindOption(app, args[i]);
    if (option == nullptr || option->get_expected_max() == 0) continue;
    const std::string name = NameOf(args[i]);
    if (args[i].size() == name.size() + 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, "= needs a value"));
    }
    if (args[i] != name) continue;
    if (i + 1 == args.size())
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
    if (FindOption(app, args[i + 1]) != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " needs a value, but is followed by the option ", NameOf(args[i + 1])));
    }
    ++i;
  }
  return absl::OkStatus();
}

absl::Status ExplainRest(CLI::App& app, const std::string& first) {
  if (!absl::StartsWith(first, "-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::Utf8SafeCHexEscape(first),
                     "' belongs to no option; values follow the name of theirs"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option ", absl::Utf8SafeCHexEscape(first),
                                                 DidYouMean(NameOf(first), AllSpellings(app))));
}

}  // namespace

std::string Spellings(absl::string_view name) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  const std::string underscored = absl::StrReplaceAll(name, {{"-", "_"}});
  return dashed == underscored ? absl::StrCat("--", dashed)
                               : absl::StrCat("--", underscored, ",--", dashed);
}

void SetHelpText(CLI::App& app, HelpText text) {
  app.formatter(std::make_shared<HelpFormatter>(std::move(text)));
}

absl::Status ParseArguments(CLI::App& app, const std::vector<std::string>& args) {
  MUSTER_RETURN_IF_ERROR(CheckValues(app, args));
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // as CLI11 wants it
  app.allow_extras();
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the command line cannot be read: ", error.what()));
  }
  const std::vector<std::string> rest = app.remaining();
  return rest.empty() ? absl::OkStatus() : ExplainRest(app, rest.front());
}

}  // namespace muster::plan
