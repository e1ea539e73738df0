// `muster export`: what a checkpoint holds, as files of whole arrays.
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/sight.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/export.h"

namespace muster::launcher {
namespace {

constexpr char kExport[] = "muster export";
constexpr char kExportUsage[] =
    "usage: muster export CHECKPOINT DIR\n"
    "\n"
    "Writes a checkpoint as DIR, with its arrays whole: any reader of safetensors opens\n"
    "model.safetensors and optimizer.safetensors in DIR, and training goes on from DIR as from "
    "any\n"
    "checkpoint. CHECKPOINT may be a directory of checkpoints, too: the newest that is whole is\n"
    "taken. A checkpoint that DIR is already is replaced; anything else is left alone.\n";

std::string Exported(const checkpoint::Checkpoint& from, const std::string& place) {
  int64_t num_arrays = 0;
  int64_t bytes = 0;
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

absl::StatusOr<std::string> Export(const std::string& directory, const std::string& place) {
  MUSTER_ASSIGN_OR_RETURN(auto search, checkpoint::CheckpointSearch::In(directory));
  for (;;) {
    MUSTER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint from, search.Next());
    const absl::Status written = checkpoint::ExportWhole(from, place);
    if (absl::IsInvalidArgument(written)) {
      search.PassOver(written.message());
      continue;
    }
    MUSTER_RETURN_IF_ERROR(written);
    for (const std::string& why : search.passed_over()) {
      std::fprintf(stderr, "%s: passed over: %s\n", kExport, LinesForTerminal(why).c_str());
    }
    return Exported(from, place);
  }
}

}  // namespace

int ExportCommand(const Invocation& invocation) {
  const command_line::Grammar grammar{.program = kExport, .usage = kExportUsage, .has_words = true};
  const auto words = ReadWords(grammar, invocation, 2,
                               "a checkpoint and a directory (muster export CHECKPOINT DIR)");
  if (!words.ok()) return PrintRefusal(kExport, words.status());
  if (!*words) return 0;
  if ((*words)->back().empty()) {
    return PrintRefusal(kExport, absl::InvalidArgumentError("the name of DIR is empty"));
  }
  const absl::StatusOr<std::string> exported = Export((*words)->front(), (*words)->back());
  if (exported.ok()) return PrintText(*exported, 0);
  PrintRefusal(kExport, exported.status());
  return kExitFailure;
}

}  // namespace muster::launcher
