#include "worker_runtime/train/train_options.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/cuda_device.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"
#include "worker_runtime/comm/nccl/nccl_backend.h"
#include "worker_runtime/options/plan_flags.h"
#include "worker_runtime/plan/batch_equation.h"
#include "worker_runtime/train/files.h"

namespace muster::train {
namespace {

using command_line::AddTo;
using command_line::Grammar;
using command_line::Into;
using command_line::IntoBetween;
using command_line::Option;
using command_line::ParseBool;
using command_line::ParseName;
using command_line::ParseText;

constexpr int64_t kMaxCount = int64_t{1} << 48;

// The hang is between nodes: https://github.com/NVIDIA/nccl/issues/2389.
constexpr char kHangOfRegisteredBuffers[] =
    "NVIDIA/nccl issue 2389: large calls on network-registered buffers after small ones may hang "
    "until NCCL 2.32u1";

constexpr char kUsage[] =
    "usage: muster-train [options]\n"
    "       muster run --nproc_per_node=N muster-train [options]\n"
    "\n"
    "Trains a GPT, or a model that you have, on texts, byte by byte, or on files of tokens "
    "(llm.c's\n"
    "formats).\n"
    "Options are spelled with _ or -.\n";

constexpr char kFooter[] =
    "\n"
    "SIGTERM and SIGINT end training after the current step; with --save it is saved first. A\n"
    "second signal ends the program at once.\n"
    "Exit codes: 0; 1 a failure while training; 2 usage, configuration or data; 128+n signal n.\n";

// What training begins with and leaves behind.
std::vector<Option> StateRows(TrainOptions& out) {
  return {
      {.name = "data",
       .value_name = "FILE ...",
       .help = absl::StrCat("text or token files (default: the texts in ", kDefaultTexts, ")"),
       .read = AddTo(ParseName, out.data),
       .is_list = true,
       .may_differ = true},  // what the files hold may not
      {.name = "save",
       .value_name = "DIR",
       .help = "write a checkpoint to DIR at the end",
       .read = Into(ParseName, out.saving.directory)},
      {.name = "save_every",
       .value_name = "N",
       .help = "write a checkpoint every N steps, too",
       .read = IntoBetween(1, kMaxCount, out.saving.every)},
      {.name = "keep",
       .value_name = "N",
       .help = "remove older checkpoints of --save once N newer ones are written (all stay)",
       .read = IntoBetween(1, kMaxCount, out.saving.keep)},
      {.name = "resume",
       .value_name = "DIR",
       .help = "continue from the newest whole checkpoint in DIR, which may be empty if it is also "
               "--save",
       .read = Into(ParseName, out.resume)},
      {.name = "base",
       .value_name = "DIR",
       .help = "with --lora: the newest checkpoint in DIR is the model beneath the adapters, whose "
               "own checkpoints (--save, --resume) hold the adapters alone (drawn from --seed)",
       .read = Into(ParseName, out.base)},
      {.name = "survive",
       .value_name = "B",
       .help = "keep this process when other workers or nodes are lost, yes or no: training goes "
               "on from the newest state that the survivors have together, else from the newest "
               "checkpoint in --resume, else from the beginning (no)",
       .read = Into(ParseBool, out.survive)},
  };
}

std::vector<Option> ExecutionRows(TrainOptions& out) {
  return {
      {.name = "backend",
       .value_name = "NAME",
       .help = absl::StrCat("communication back end: gloo, nccl, or auto for nccl where each "
                            "worker of the job has its own GPU (",
                            out.backend, ")"),
       .read = Into(ParseName, out.backend)},
      {.name = "capture_steps",
       .value_name = "B",
       .help = absl::StrCat(
           "launch each step as one CUDA graph, yes or no; several workers need --backend=nccl for "
           "it, which has been seen on a single GPU (one worker on a GPU: yes, several: no). ",
           kHangOfRegisteredBuffers,
           "; captured steps between nodes are exposed too, since NCCL registers the buffers of "
           "captured calls itself"),
       .read = Into(ParseBool, out.capture_steps)},
      {.name = "register_buffers",
       .value_name = "B",
       .help = absl::StrCat("register the buffers of collectives with NCCL, yes or no; needs "
                            "--device=cuda and --backend=nccl (no). ",
                            kHangOfRegisteredBuffers),
       .read = Into(ParseBool, out.register_buffers)},
  };
}

std::vector<Option> OutputRows(TrainOptions& out) {
  return {
      {.name = "sample_tokens",
       .value_name = "N",
       .help = absl::StrCat("tokens to generate after training; 0: none (", out.sample_tokens, ")"),
       .read = IntoBetween(0, kMaxCount, out.sample_tokens)},
      {.name = "prompt",
       .value_name = "TEXT",
       .help = "prompt for the generated tokens",
       .read = Into(ParseText, out.prompt)},
      {.name = "log_every",
       .value_name = "N",
       .help = "steps per line (default: 20 to 40 lines)",
       .read = IntoBetween(1, kMaxCount, out.print.log_every),
       .may_differ = true},
      {.name = "trace",
       .value_name = "DIR",
       .help = "write what each rank did in its first steps as a time line for ui.perfetto.dev; "
               "where DIR is the job's --log_dir, muster report --trace puts all in one",
       .read = Into(ParseText, out.trace.directory),
       .may_differ = true},
      {.name = "trace_steps",
       .value_name = "N",
       .help = absl::StrCat("steps in the time line of --trace (", out.trace.steps, ")"),
       .read = IntoBetween(1, 1000, out.trace.steps),
       .may_differ = true},
      {.name = "quiet",
       .help = "print only failures, and the hash if asked for",
       .read = Into(ParseBool, out.print.quiet)},
      {.name = "hash",
       .help = "print hash=<sha256 of the parameters> as the last line, on rank 0",
       .read = Into(ParseBool, out.print.hash)},
  };
}

Grammar TrainGrammar(TrainOptions& out) {
  Grammar grammar{.program = "muster-train", .usage = kUsage, .footer = kFooter};
  for (const auto& rows : {StateRows(out), ExecutionRows(out), OutputRows(out)}) {
    for (Option option : rows) {
      option.group = "Training";
      grammar.options.push_back(std::move(option));
    }
  }
  for (Option& option : plan::PlanFlags(out.plan)) grammar.options.push_back(std::move(option));
  return grammar;
}

// Checks the batch for the ranks that there are now; those of a later round are looked at as it
// begins.
absl::Status CheckBatch(plan::PlanOptions options, const plan::ConfigView& files) {
  const auto fact = files.facts.find("world_size");
  int world_size = 0;
  if (fact == files.facts.end() || !absl::SimpleAtoi(fact->second, &world_size)) {
    return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(const int stages, NumStages(options.plan, world_size));
  return plan::SpreadBatch(options, world_size / stages);
}

// Which files a GPU's libraries would be, on this machine and in this environment.
std::string DescribeGpuLibraries() {
  std::vector<std::string> lines = DescribeCudaLibraries();
  const absl::StatusOr<std::string> nccl = comm::NameNccl();
  lines.push_back(nccl.ok() ? *nccl : std::string(nccl.status().message()));
  return absl::StrCat("on a GPU with\n  ", absl::StrJoin(lines, "\n  "), "\n");
}

}  // namespace

std::string TrainHelp(const std::vector<std::string>& args) {
  TrainOptions options;
  const auto line = command_line::Split(TrainGrammar(options), args, {});
  if (!line.ok()) return "";
  if (line->IsOn("help") || !line->IsOn("version")) return line->print;
  return absl::StrCat(line->print, DescribeGpuLibraries());
}

absl::StatusOr<TrainCommand> ParseTrainCommand(const std::vector<std::string>& args,
                                               const plan::ConfigView& files) {
  TrainCommand command;
  TrainOptions& options = command.options;
  const Grammar grammar = TrainGrammar(options);
  MUSTER_ASSIGN_OR_RETURN(command_line::CommandLine line, command_line::Split(grammar, args, {}));
  command.help = std::move(line.print);
  if (!command.help.empty()) return command;
  MUSTER_ASSIGN_OR_RETURN(plan::ConfigReport report,
                          plan::AddConfigFiles(grammar, options.plan, files, line));
  command.warnings = line.warnings;
  command.warnings.insert(command.warnings.end(), report.warnings.begin(), report.warnings.end());
  command.without_effect = std::move(report.without_effect);
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  options.line = line;
  options.model = std::move(report.model);
  if (!options.model.directory.empty() && !options.base.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--base=", options.base, " and --model=", options.model.directory,
                     " both name the model beneath the adapters; give one"));
  }
  for (const auto& [name, value] :
       {std::pair("save_every", options.saving.every), std::pair("keep", options.saving.keep)}) {
    if (value == 0 || !options.saving.directory.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, "=", value, " needs --save=DIR, which says where to save"));
  }
  const std::string& base = options.base;
  if (options.saving.keep > 0 && !base.empty() && LiesIn(base, options.saving.directory)) {
    return absl::InvalidArgumentError(absl::StrCat("--keep=", options.saving.keep,
                                                   " would remove the model beneath the adapters, "
                                                   "since --base=",
                                                   base, " is in --save; give another --save"));
  }
  if (!options.base.empty() && options.plan.adapters.rank == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--base=", options.base,
                     " is the model beneath adapters, and there are none; add --lora=RANK, or "
                     "continue its training with --resume=",
                     options.base));
  }
  if (options.capture_steps.value_or(false) && options.plan.device == "cpu") {
    return absl::InvalidArgumentError(
        "--capture_steps=yes makes CUDA graphs of steps and needs --device=cuda");
  }
  if (options.register_buffers && (options.plan.device == "cpu" || options.backend == "gloo")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--register_buffers=yes tells NCCL of the buffers of GPUs and needs "
                     "--device=cuda and --backend=nccl, not --device=",
                     options.plan.device, " and --backend=", options.backend));
  }
  MUSTER_RETURN_IF_ERROR(
      command_line::InWordsOf(grammar, line, plan::FinishPlanOptions(options.plan)));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, CheckBatch(options.plan, files)));
  return command;
}

std::string TextOfCommonValues(const TrainOptions& options) {
  TrainOptions unread;
  return command_line::TextOfCommonValues(TrainGrammar(unread), options.line);
}

absl::Status InWordsOf(const TrainOptions& options, const absl::Status& status) {
  if (FieldOf(status).empty()) return status;
  TrainOptions unread;
  return command_line::InWordsOf(TrainGrammar(unread), options.line,
                                 WithoutBeginning("plan: ", status));
}

absl::Status CheckCapture(const TrainOptions& options, int size, bool communicators_capture) {
  if (!options.capture_steps.value_or(false) || size == 1) return absl::OkStatus();
  if (!communicators_capture) {
    return absl::InvalidArgumentError(
        absl::StrCat("--capture_steps=yes cannot be done with ", size,
                     " workers over --backend=", options.backend,
                     ", which exchanges in the host's memory; choose --backend=nccl, or leave "
                     "--capture_steps out"));
  }
  if (options.plan.plan.mode == SumMode::kOrdered) {
    return absl::InvalidArgumentError(
        absl::StrCat("--capture_steps=yes cannot be done with ", size,
                     " workers and --mode=ordered, whose sums the host adds; choose --mode=fast, "
                     "or leave --capture_steps out"));
  }
  return absl::OkStatus();
}

}  // namespace muster::train
