// What the readers of configuration files share: the walk over a file by a table of keys, and what
// comes of that as settings of options.
//
// Every key of a file ends as one of three things: the setting of an option, a line that says why
// it changes nothing, or a refusal with the reason and what works instead. A refusal is an error,
// or with ConfigCompat::kDeepSpeed a warning.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/config/config_tree.h"
#include "proto/dialects/config_key.h"

namespace muster::plan {

// What becomes of keys that are not known, or cannot be honoured.
enum class ConfigCompat : uint8_t {
  kStrict,     // they are errors
  kDeepSpeed,  // one warning each, as DeepSpeed passes over them
};

// One value of a file as the value of an option.
struct ConfigSetting {
  std::string option;  // command_line::Option::name
  std::string value;   // as the option reads it; empty: "auto", what holds without the file
  std::string source;  // "ds.json:12: zero_optimization.stage"
  std::string shown;   // the file's own value
  // The setting holds only where --dtype ends as this one; empty: always.
  std::string only_in_dtype = {};
};

struct ConfigContents {
  std::vector<ConfigSetting> settings;
  std::vector<std::string> without_effect;  // "ds.json:9: wall_clock_breakdown=false: ..."
  std::vector<std::string> warnings;
};

class ConfigReading {
 public:
  // `file`: its name for messages. `keys` outlive it.
  ConfigReading(std::string file, absl::Span<const ConfigKey> keys, ConfigCompat compat)
      : file_(std::move(file)), keys_(keys), compat_(compat) {}

  // The tree of a YAML file, with a warning for each key that stands twice.
  absl::StatusOr<ConfigNode> ReadYaml(const std::string& text);

  // Does with each key of `root` what the table says. Errors: kInvalidArgument naming file, line,
  // path, value and what was expected.
  absl::Status Walk(const ConfigNode& root);

  // --- for kHandled keys, after Walk
  // The value at a path; null if it is not there, is null, or was passed over.
  const ConfigNode* Find(absl::string_view path) const;
  bool IsAuto(absl::string_view path) const;
  // The value at a path that Walk has checked; `otherwise` if it is not there or "auto".
  int64_t Whole(absl::string_view path, int64_t otherwise) const;
  std::string Text(absl::string_view path, const std::string& otherwise) const;
  bool Bool(absl::string_view path) const;

  // `value` in place of the file's own: "true" at fp16.enabled becomes --dtype=f16.
  void Set(const std::string& option, std::string value, absl::string_view path,
           const std::string& only_in_dtype = "");
  // A value that follows from a section without standing in it.
  void SetDefault(const std::string& option, std::string value, absl::string_view section,
                  absl::string_view why);
  void NoEffect(absl::string_view path, absl::string_view why);
  void Warn(std::string warning) { contents_.warnings.push_back(std::move(warning)); }
  absl::Status Bad(absl::string_view path, absl::string_view why) const;
  // Bad, unless `text` is one of `known`.
  absl::Status CheckChoice(absl::string_view path, const std::string& text,
                           const std::vector<std::string>& known) const;
  // The type that `path` asks for, as MixedPrecision reads `says`.
  absl::StatusOr<std::string> SetPrecision(absl::string_view path, absl::string_view says);
  // Bad, or a warning.
  absl::Status Refuse(absl::string_view path, absl::string_view why);
  // "ds.json:12: zero_optimization.stage"
  std::string SourceOf(absl::string_view path) const;

  ConfigContents Finish() { return std::move(contents_); }

 private:
  absl::Status WalkMap(const ConfigNode& map, const std::string& prefix);
  absl::Status Take(const ConfigKey& row, const ConfigNode& node);
  absl::Status TakeDisabled(const ConfigKey& row, const ConfigNode& node);
  absl::Status CheckType(const ConfigKey& row, const ConfigNode& node) const;
  absl::Status UnknownKey(const std::string& prefix, const std::string& key,
                          const ConfigNode& node);
  absl::Status RefuseNode(absl::string_view path, const ConfigNode& node, absl::string_view why);

  const std::string file_;
  const absl::Span<const ConfigKey> keys_;
  const ConfigCompat compat_;
  ConfigContents contents_;
  std::vector<std::pair<std::string, ConfigNode>> values_;  // by path, that Walk has accepted
};

// A whole number as people write them: 200000000, 2e8, 2.0e8. Errors: kInvalidArgument: a fraction,
// or none at all.
absl::StatusOr<int64_t> WholeNumber(const ConfigNode& node);

}  // namespace muster::plan
