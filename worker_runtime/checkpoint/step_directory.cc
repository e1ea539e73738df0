#include "worker_runtime/checkpoint/step_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/publish.h"

namespace muster::checkpoint {
namespace {

constexpr absl::string_view kSlices = "slices_";
constexpr absl::string_view kSafetensors = ".safetensors";
constexpr absl::string_view kFiles[] = {kManifest, kDigests, kModel, kOptimizer};

}  // namespace

std::string NameOfStep(int64_t step) { return absl::StrFormat("step_%08d", step); }

std::string NameOfSlices(int rank) {
  return absl::StrFormat("%s%05d%s", kSlices, rank, kSafetensors);
}

bool IsFileOfCheckpoint(absl::string_view name) {
  if (absl::StartsWith(name, kSlices) && absl::EndsWith(name, kSafetensors)) return true;
  return std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles);
}

bool HasManifest(const std::string& path) {
  struct stat info = {};
  return stat(absl::StrCat(path, "/", kManifest).c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return FileError(error.value(), absl::StrCat("cannot list ", path));
  return names;
}

std::optional<StepDirectory> ParseStepDirectory(absl::string_view name) {
  StepDirectory parsed;
  parsed.in_place = !absl::ConsumePrefix(&name, ".");
  if (!absl::ConsumePrefix(&name, "step_")) return std::nullopt;
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const absl::string_view rest = name.substr(digits);
  const bool fits = parsed.in_place ? rest.empty() : absl::StartsWith(rest, kReplaced);
  if (!fits || !absl::SimpleAtoi(name.substr(0, digits), &parsed.step)) return std::nullopt;
  return parsed;
}

absl::string_view WriterOf(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  return parts.size() >= 4 ? parts[parts.size() - 2] : absl::string_view();
}

}  // namespace muster::checkpoint
