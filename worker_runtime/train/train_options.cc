#include "worker_runtime/train/train_options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/arguments.h"
#include "worker_runtime/plan/option_values.h"
#include "worker_runtime/train/default_texts.h"

namespace muster::train {
namespace {

constexpr char kUsage[] =
    "usage: muster-train [options]\n"
    "       muster run --nproc_per_node=N muster-train [options]\n"
    "\n"
    "Trains a GPT on texts, byte by byte, or on GPT-2 token files (llm.c's format). Options are\n"
    "spelled with _ or -.\n";

constexpr char kFooter[] =
    "\n"
    "SIGTERM and SIGINT end training after the step under way; with --save it is saved first. A\n"
    "second signal ends the program at once.\n"
    "Exit codes: 0; 1 a failure while training; 2 usage, configuration or data; 128+n signal n.\n";

// Texts as they were given; numbers are read afterwards, with sentences of our own.
struct Given {
  std::string save_every;
  std::string sample_tokens;
  std::string log_every;
  std::string prompt;
  bool help = false;
};

// One option that takes one value; a repeated option's last value wins.
void AddText(CLI::App& app, const std::string& name, const char* value, std::string& out,
             const std::string& help) {
  app.add_option(plan::Spellings(name), out, help)
      ->type_name(value)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void AddOptions(CLI::App& app, TrainOptions& options, Given& given) {
  const auto group = [&](const std::string& name) {
    for (CLI::Option* option : app.get_options()) {
      if (option->get_group() == "Options") option->group(name);
    }
  };
  app.set_help_flag("");  // CLI11's own throws
  app.add_flag("-h,--help", given.help, "print this");
  app.add_option("--data", options.data,
                 absl::StrCat("texts, or token files (default: the texts in ", kDefaultTexts, ")"))
      ->type_name("FILE ...")
      ->expected(1, 1 << 20)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  AddText(app, "save", "DIR", options.save, "write a checkpoint there at the end");
  AddText(app, "save_every", "N", given.save_every, "write one after every N steps too");
  AddText(app, "resume", "DIR", options.resume,
          "go on from the newest checkpoint there; may be empty yet if it is also --save");
  AddText(app, "backend", "NAME", options.backend, "communicator: gloo (default) or nccl");
  AddText(app, "sample_tokens", "N", given.sample_tokens,
          absl::StrCat("tokens to write when training is done (default ", options.sample_tokens,
                       ", 0: none)"));
  AddText(app, "prompt", "TEXT", given.prompt, "text that the sample continues");
  AddText(app, "log_every", "N", given.log_every, "steps per line (default: 20 to 40 lines)");
  app.add_flag("--quiet", options.quiet, "print nothing but failures, and the hash if asked for");
  app.add_flag("--hash", options.hash,
               "print hash=<sha256 of the parameters> as the last line, on rank 0");
  group("Training");
}

absl::Status ReadCount(const char* name, const std::string& text, int64_t smallest, int64_t& out) {
  if (text.empty()) return absl::OkStatus();
  int64_t value = 0;
  if (!plan::ReadInteger(text, value).ok() || value < smallest) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, "=", text, ": expected a whole number from ", smallest, " on"));
  }
  out = value;
  return absl::OkStatus();
}

absl::Status ReadGiven(const CLI::App& app, const Given& given, TrainOptions& options) {
  MUSTER_RETURN_IF_ERROR(ReadCount("save_every", given.save_every, 1, options.save_every));
  MUSTER_RETURN_IF_ERROR(ReadCount("sample_tokens", given.sample_tokens, 0, options.sample_tokens));
  MUSTER_RETURN_IF_ERROR(ReadCount("log_every", given.log_every, 1, options.log_every));
  if (app.get_option("--prompt")->count() > 0) options.prompt = given.prompt;
  if (options.save_every > 0 && options.save.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--save_every=", options.save_every,
                                                   " needs --save=DIR, which says where to save"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainCommand> ParseTrainCommand(const std::vector<std::string>& args) {
  CLI::App app;
  plan::SetHelpText(app, {.usage = kUsage, .footer = kFooter});
  TrainCommand command;
  Given given;
  AddOptions(app, command.options, given);
  const plan::PlanOptionsParser plan_parser(app);
  MUSTER_RETURN_IF_ERROR(plan::ParseArguments(app, args));
  if (given.help) {
    command.help = absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}});
    return command;
  }
  MUSTER_RETURN_IF_ERROR(ReadGiven(app, given, command.options));
  MUSTER_ASSIGN_OR_RETURN(command.options.plan, plan_parser.Finish());
  return command;
}

}  // namespace muster::train
