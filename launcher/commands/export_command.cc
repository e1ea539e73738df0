// `muster export`: what a checkpoint holds, as files of whole arrays.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/sight.h"
#include "muster/dtype.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"
#include "proto/command_line/values.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/export.h"
#include "worker_runtime/models/export_model.h"

namespace muster::launcher {
namespace {

constexpr char kExport[] = "muster export";
constexpr char kExportUsage[] =
    "usage: muster export [options] CHECKPOINT DIR\n"
    "\n"
    "Writes a checkpoint as DIR, with its arrays whole: any reader of safetensors opens\n"
    "model.safetensors and optimizer.safetensors in DIR, and training goes on from DIR as from "
    "any\n"
    "checkpoint. CHECKPOINT may be a directory of checkpoints, too: the newest that is whole is\n"
    "taken. A checkpoint that DIR is already is replaced; anything else is left alone.\n"
    "With --form=transformers, DIR gets the model alone, as from_pretrained of transformers loads\n"
    "it; files of a tokenizer in DIR stay.\n";

struct ExportFlags {
  bool of_transformers = false;
  std::optional<DType> dtype;
};

absl::StatusOr<bool> IsTransformers(const std::string& form) {
  return command_line::ParseChoice<bool>(form, {{"muster", false}, {"transformers", true}});
}

std::vector<command_line::Option> Rows(ExportFlags& flags) {
  const auto read_dtype = [&flags](const std::string& text) -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(
        flags.dtype,
        command_line::ParseChoice<DType>(
            text, {{"f32", DType::kF32}, {"bf16", DType::kBf16}, {"f16", DType::kF16}}));
    return absl::OkStatus();
  };
  return {{.name = "form",
           .value_name = "F",
           .help = "muster, a checkpoint, or transformers, a model (muster)",
           .read = command_line::Into(IsTransformers, flags.of_transformers)},
          {.name = "dtype",
           .value_name = "T",
           .help = "with --form=transformers: f32, bf16 or f16 (what the model was trained in)",
           .read = read_dtype}};
}

std::string Exported(const checkpoint::Checkpoint& from, const std::string& place,
                     const ExportFlags& flags) {
  int64_t num_arrays = 0;
  int64_t bytes = 0;
  if (flags.of_transformers) {
    return absl::StrCat("exported the model of ", from.path(), " to ", place,
                        ": put the files of its tokenizer there, too\n");
  }
  for (const checkpoint::SlicedArrays* arrays :
       {&from.manifest().model, &from.manifest().optimizer}) {
    for (const auto& [name, array] : *arrays) {
      ++num_arrays;
      bytes += array.num_elements() * static_cast<int64_t>(SizeOf(array.dtype));
    }
  }
  return absl::StrCat("exported ", from.path(), " to ", place, ": ", num_arrays,
                      num_arrays == 1 ? " array, " : " arrays, ", bytes, " bytes\n");
}

absl::Status Write(const checkpoint::Checkpoint& from, const std::string& place,
                   const ExportFlags& flags) {
  if (flags.of_transformers) return models::ExportModel(from, place, flags.dtype);
  return checkpoint::ExportWhole(from, place);
}

absl::StatusOr<std::string> Export(const std::string& directory, const std::string& place,
                                   const ExportFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(auto search, checkpoint::CheckpointSearch::In(directory));
  for (;;) {
    MUSTER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint from, search.Next());
    const absl::Status written = Write(from, place, flags);
    if (absl::IsInvalidArgument(written)) {
      search.PassOver(written.message());
      continue;
    }
    MUSTER_RETURN_IF_ERROR(written);
    for (const std::string& why : search.passed_over()) {
      std::fprintf(stderr, "%s: passed over: %s\n", kExport, LinesForTerminal(why).c_str());
    }
    return Exported(from, place, flags);
  }
}

}  // namespace

int ExportCommand(const Invocation& invocation) {
  ExportFlags flags;
  const command_line::Grammar grammar{
      .program = kExport, .usage = kExportUsage, .options = Rows(flags), .has_words = true};
  const auto words = ReadWords(grammar, invocation, 2,
                               "a checkpoint and a directory (muster export CHECKPOINT DIR)");
  if (!words.ok()) return PrintRefusal(kExport, words.status());
  if (!*words) return 0;
  if ((*words)->back().empty()) {
    return PrintRefusal(kExport, absl::InvalidArgumentError("the name of DIR is empty"));
  }
  if (flags.dtype.has_value() && !flags.of_transformers) {
    return PrintRefusal(kExport, absl::InvalidArgumentError(
                                     "--dtype goes with --form=transformers: a checkpoint keeps "
                                     "the types that it has"));
  }
  const absl::StatusOr<std::string> exported = Export((*words)->front(), (*words)->back(), flags);
  if (exported.ok()) return PrintText(*exported, 0);
  PrintRefusal(kExport, exported.status());
  return kExitFailure;
}

}  // namespace muster::launcher
