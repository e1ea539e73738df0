#include "launcher/config/instructlab_config.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"
#include "proto/dialects/instructlab.h"

namespace muster::launcher {
namespace {

constexpr char kSection[] = "train";
constexpr size_t kNamedKeys = 3;

absl::Status Wrong(int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

absl::Status Bad(absl::string_view key, const PythonValue& value, absl::string_view why) {
  return Wrong(value.line, absl::StrCat(kSection, ".", key, ": ", value.text, ": ", why));
}

absl::Status CheckSections(const PythonSection& section) {
  if (!section.is_there) {
    return absl::InvalidArgumentError(absl::StrCat("the section ", kSection, " is missing"));
  }
  for (const auto& [name, line] : section.others) {
    if (FindKey(InstructLabKeys(), "", name) != nullptr) continue;
    return Wrong(line, UnknownKey(InstructLabKeys(), "", name));
  }
  return absl::OkStatus();
}

// A number of workers, or torchrun's words for one.
absl::Status CheckWorkers(const std::string& key, const PythonValue& value) {
  int number = 0;
  const bool is_number = absl::SimpleAtoi(value.text, &number);
  if (is_number ? number >= 1 : value.text == "gpu" || value.text == "auto") {
    return absl::OkStatus();
  }
  return Bad(key, value, "expected a number of GPUs of 1 or more, or gpu");
}

std::string NoteOnTheRest(const std::vector<std::string>& keys) {
  const size_t named = std::min(keys.size(), kNamedKeys);
  const std::string names = absl::StrJoin(keys.begin(), keys.begin() + named, ", ");
  return absl::StrCat(keys.size(), keys.size() == 1 ? " key" : " keys", " of ", kSection, " (",
                      names, keys.size() > named ? ", ..." : "",
                      ") say what is trained and how: that is for the program to read");
}

}  // namespace

absl::StatusOr<LaunchConfig> ReadInstructLabConfig(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const PythonSection section, ReadPythonYamlSection(text, kSection));
  MUSTER_RETURN_IF_ERROR(CheckSections(section));
  LaunchConfig config{.notes = section.notes};
  std::map<std::string, std::string> sources;  // by option
  std::vector<std::string> rest;
  PythonValue distributed{PythonValue::Kind::kBool, "True"};
  for (const auto& [key, value] : section.values) {
    const std::string path = absl::StrCat(kSection, ".", key);
    const std::string prefix = path.substr(0, path.rfind('.') + 1);
    const std::string name = path.substr(prefix.size());
    const ConfigKey* const row = FindKey(InstructLabKeys(), prefix, name);
    if (row == nullptr) return Wrong(value.line, UnknownKey(InstructLabKeys(), prefix, name));
    if (key == "distributed") {
      if (value.kind != PythonValue::Kind::kBool) return Bad(key, value, "expected true or false");
      distributed = value;
    } else if (row->launch.use != LaunchUse::Use::kOption) {
      if (row->training.use == TrainingUse::Use::kSection && !value.is_none()) {
        return Bad(key, value, "expected a map of keys and values");
      }
      rest.push_back(key);
    } else if (!value.is_none()) {
      const std::string option = row->launch.word;
      if (!sources.emplace(option, key).second) {
        return Bad(key, value, absl::StrCat("says the same as ", sources[option]));
      }
      if (option == "nproc_per_node") MUSTER_RETURN_IF_ERROR(CheckWorkers(key, value));
      config.options.push_back({option, value.text, path});
    }
  }
  for (const TakenOption& taken : config.options) {
    if (distributed.is_true() || taken.option != "nproc_per_node" || taken.value == "1") continue;
    return Bad("distributed", distributed,
               absl::StrCat("one process, but ", taken.source, " is ", taken.value));
  }
  if (!rest.empty()) config.notes.push_back(NoteOnTheRest(rest));
  return config;
}

}  // namespace muster::launcher
