#include "proto/dialects/config_key.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/nearest_name.h"

namespace muster {
namespace {

// The keys directly below `prefix`.
std::vector<std::string> KeysBelow(absl::Span<const ConfigKey> keys, const std::string& prefix) {
  std::vector<std::string> names;
  for (const ConfigKey& key : keys) {
    absl::string_view rest = key.path;
    if (absl::ConsumePrefix(&rest, prefix) && !absl::StrContains(rest, '.')) {
      names.emplace_back(rest);
    }
  }
  return names;
}

}  // namespace

const ConfigKey* FindKey(absl::Span<const ConfigKey> keys, absl::string_view prefix,
                         absl::string_view key) {
  if (absl::StrContains(key, '.')) return nullptr;  // a name of its own, not a path
  const std::string path = absl::StrCat(prefix, key);
  for (const ConfigKey& row : keys) {
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, row.path)) continue;
    const bool is_whole = row.training.use == TrainingUse::Use::kDisabled;
    if (rest.empty() || (is_whole && rest[0] == '.')) return &row;
  }
  return nullptr;
}

std::string KeyHint(absl::Span<const ConfigKey> keys, const std::string& prefix,
                    absl::string_view key) {
  const std::vector<std::string> names = KeysBelow(keys, prefix);
  if (std::string hint = DidYouMean(key, names); !hint.empty()) return hint;
  for (const ConfigKey& row : keys) {
    const absl::string_view path = row.path;
    if (path.substr(path.rfind('.') + 1) == key) return absl::StrCat("; did you mean ", path, "?");
  }
  // Keys of fsdp_config begin with fsdp_, which some leave out.
  return DidYouMean(absl::StrCat(prefix.substr(0, prefix.find('_') + 1), key), names);
}

std::string UnknownKey(absl::Span<const ConfigKey> keys, const std::string& prefix,
                       absl::string_view key) {
  return absl::StrCat("unknown key '", key, "'", prefix.empty() ? "" : " in ",
                      absl::StripSuffix(prefix, "."), KeyHint(keys, prefix, key));
}

absl::StatusOr<std::string> MixedPrecision(absl::string_view text) {
  std::string precision = absl::AsciiStrToLower(text);
  if (precision == "false") precision = "no";  // an unquoted `no` is that in YAML
  if (precision == "no" || precision == "fp16" || precision == "bf16") return precision;
  return absl::InvalidArgumentError(precision == "fp8" ? "FP8 is not in this version; use bf16"
                                                       : "expected no, fp16 or bf16");
}

}  // namespace muster
