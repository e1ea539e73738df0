#include "worker_runtime/checkpoint/array_checksums.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/header_reader.h"

namespace muster::checkpoint {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;

}  // namespace

std::string ChecksumOf(ConstBuffer elements) {
  const size_t bytes = static_cast<size_t>(elements.count) * SizeOf(elements.dtype);
  return Sha256().Add(elements.data, bytes).Finish();
}

absl::Status CheckNames(const SafetensorsFile& file, const ArrayChecksums& checksums) {
  for (const auto& [name, unused] : checksums) {
    if (file.arrays().count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " is damaged: it lacks ", Quoted(name)));
  }
  return absl::OkStatus();
}

absl::Status CheckArrays(const SafetensorsFile& file, const ArrayChecksums& checksums,
                         const Progress& progress) {
  MUSTER_RETURN_IF_ERROR(CheckNames(file, checksums));
  std::vector<char> block(kBlockBytes);
  for (const auto& [name, expected] : checksums) {
    const auto found = file.arrays().find(name);
    Sha256 hash;
    for (int64_t first = 0; first < found->second.bytes; first += kBlockBytes) {
      const int64_t bytes = std::min(kBlockBytes, found->second.bytes - first);
      MUSTER_RETURN_IF_ERROR(
          file.ReadBytes(found->second.offset + first, {block.data(), static_cast<size_t>(bytes)}));
      hash.Add(block.data(), static_cast<size_t>(bytes));
    }
    if (hash.Finish() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), " is damaged: ", Quoted(name),
                       " has other bytes than were written (its SHA-256 differs)"));
    }
    if (progress) progress();
  }
  return absl::OkStatus();
}

}  // namespace muster::checkpoint
