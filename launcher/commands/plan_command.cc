#include "launcher/commands/plan_command.h"

#include <cstdio>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/plan/arguments.h"
#include "worker_runtime/plan/canonical_text.h"
#include "worker_runtime/plan/gpt_parameters.h"
#include "worker_runtime/plan/option_values.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::launcher {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;

constexpr char kUsage[] =
    "usage: muster plan [options]\n"
    "Prints what muster-train would do with the same options on so many ranks, and what it takes.\n"
    "Options are spelled with _ or -.\n";

// Our own options as they were given.
struct Given {
  std::optional<std::string> world_size;
  std::optional<std::string> model;
  std::optional<std::string> vocabulary;
  bool help = false;
};

void AddText(CLI::App& app, const char* name, const char* value_name,
             std::optional<std::string>& out, const std::string& help) {
  app.add_option(plan::Spellings(name), out, help)
      ->type_name(value_name)
      ->group("Job")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void AddOptions(CLI::App& app, Given& given) {
  app.set_help_flag("");  // CLI11's own would throw
  app.add_flag("-h,--help", given.help, "show this")->group("Job");
  AddText(app, "world_size", "N", given.world_size, "ranks of the job (1)");
  AddText(app, "model", "NAME", given.model,
          absl::StrCat("sizes of a known model: ", absl::StrJoin(plan::NamedGpts(), ", ")));
  AddText(app, "vocabulary", "N", given.vocabulary, "different tokens (256: bytes)");
}

absl::StatusOr<GptConfig> ReadModel(const Given& given) {
  GptConfig model;
  if (given.model) {
    const absl::StatusOr<GptConfig> named = plan::NamedGpt(*given.model);
    MUSTER_RETURN_IF_ERROR(plan::AtOption("model", *given.model, named.status()));
    model = *named;
  }
  if (given.vocabulary) {
    MUSTER_RETURN_IF_ERROR(plan::AtOption("vocabulary", *given.vocabulary,
                                          plan::ReadInteger(*given.vocabulary, model.vocabulary)));
  }
  return model;
}

absl::StatusOr<int64_t> ReadWorldSize(const Given& given) {
  int64_t world_size = 1;
  if (!given.world_size) return world_size;
  absl::Status status = plan::ReadInteger(*given.world_size, world_size);
  if (!status.ok() || world_size < 1 || world_size > kMostRanks) {
    status = absl::InvalidArgumentError(
        absl::StrCat("expected a whole number between 1 and ", kMostRanks));
  }
  MUSTER_RETURN_IF_ERROR(plan::AtOption("world_size", *given.world_size, status));
  return world_size;
}

}  // namespace

absl::StatusOr<std::string> PlanCommandText(const std::vector<std::string>& args) {
  CLI::App app;
  plan::SetHelpText(app, {.usage = kUsage});
  Given given;
  AddOptions(app, given);
  const plan::PlanOptionsParser parser(app);
  MUSTER_RETURN_IF_ERROR(plan::ParseArguments(app, args));
  if (given.help) return absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}});

  MUSTER_ASSIGN_OR_RETURN(const int64_t world_size, ReadWorldSize(given));
  MUSTER_ASSIGN_OR_RETURN(const GptConfig model, ReadModel(given));
  MUSTER_ASSIGN_OR_RETURN(const plan::PlanOptions options, parser.Finish(model));
  const std::string text =
      plan::CanonicalText(options.plan, plan::GptParameters(options.model), options.dtype);
  return plan::FormatPlanPage(
      {.options = options, .world_size = world_size, .hash = Sha256().Add(text).Finish()});
}

int PlanCommand(const std::vector<std::string>& args) {
  const absl::StatusOr<std::string> text = PlanCommandText(args);
  if (!text.ok()) {
    std::fprintf(stderr, "muster plan: %s\n", std::string(text.status().message()).c_str());
    return kExitUsage;
  }
  const bool printed = std::fputs(text->c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return printed ? 0 : 1;
}

}  // namespace muster::launcher
