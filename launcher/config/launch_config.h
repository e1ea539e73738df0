// What a file or the options of another launcher say to `muster run`.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/base/environment.h"
#include "proto/config/config_tree.h"

namespace muster::launcher {

struct LaunchConfig {
  std::vector<TakenOption> options;  // of `muster run`; the source is the file's line and key
  EnvironmentMap environment;        // set over what workers inherit
  std::vector<std::string> notes;    // worth a line each
};

// A file of another launcher's.
struct ConfigFile {
  std::string source;  // what named it: "--config_file=a.yaml"; empty: there is none
  ConfigNode root;
  std::vector<std::string> notes;  // worth a line each

  // "--config_file=a.yaml: line 3: TEXT"; of line 0, which no file has, TEXT alone.
  std::string At(int line, absl::string_view text) const;
  // "--config_file=a.yaml: TEXT"
  std::string OfAll(absl::string_view text) const;
  absl::Status Refusal(int line, absl::string_view why) const;

  // The value of a key of the top level that is neither null nor a map; null if there is none.
  const ConfigNode* Find(const std::string& key) const;
};

// Reads YAML as ReadYamlTree does. Errors: its, behind `source`.
absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& text, std::string source,
                                          const std::string& section = "");

// What Python's str() writes so that a variable or an option can have it.
bool IsPlain(const ConfigNode& node);
inline constexpr char kExpectedPlain[] = "expected a plain value or a list of plain ones";

}  // namespace muster::launcher
