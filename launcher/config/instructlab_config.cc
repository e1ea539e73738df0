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

absl::Status Bad(const ConfigFile& file, absl::string_view path, const ConfigNode& node,
                 absl::string_view why) {
  return file.Refusal(node.line, absl::StrCat(path, ": ", PythonText(node), ": ", why));
}

// Adds what is below `map`, blocks within blocks too, by its path.
void Flatten(const std::string& path, const ConfigNode& map,
             std::vector<std::pair<std::string, const ConfigNode*>>& out) {
  for (const auto& [key, node] : map.members) {
    const std::string its_path = absl::StrCat(path, ".", key);
    if (node.kind == ConfigNode::Kind::kMap) {
      Flatten(its_path, node, out);
    } else {
      out.emplace_back(its_path, &node);
    }
  }
}

// The section's values.
absl::StatusOr<std::vector<std::pair<std::string, const ConfigNode*>>> ValuesOf(
    const ConfigFile& file) {
  std::vector<std::pair<std::string, const ConfigNode*>> values;
  const ConfigNode* const section = file.root.Find(kSection);
  if (section == nullptr) {
    return absl::InvalidArgumentError(
        file.OfAll(absl::StrCat("the section ", kSection, " is missing")));
  }
  for (const auto& [name, node] : file.root.members) {
    if (FindKey(InstructLabKeys(), "", name) != nullptr) continue;
    return file.Refusal(node.line, UnknownKey(InstructLabKeys(), "", name));
  }
  if (section->kind == ConfigNode::Kind::kMap) {
    Flatten(kSection, *section, values);
  } else if (section->kind != ConfigNode::Kind::kNull) {
    return Bad(file, kSection, *section, "expected a map of keys and values");
  }
  for (const auto& [path, node] : values) {
    if (!IsPlain(*node)) return file.Refusal(node->line, absl::StrCat(path, ": ", kExpectedPlain));
  }
  return values;
}

// A number of workers, or torchrun's words for one.
bool IsNumberOfWorkers(const std::string& text) {
  int number = 0;
  return absl::SimpleAtoi(text, &number) ? number >= 1 : text == "gpu" || text == "auto";
}

std::string NoteOnTheRest(const std::vector<std::string>& keys) {
  const size_t named = std::min(keys.size(), kNamedKeys);
  const std::string names = absl::StrJoin(keys.begin(), keys.begin() + named, ", ");
  return absl::StrCat(keys.size(), keys.size() == 1 ? " key" : " keys", " of ", kSection, " (",
                      names, keys.size() > named ? ", ..." : "",
                      ") say what is trained and how: that is for the program to read");
}

}  // namespace

absl::StatusOr<LaunchConfig> LaunchOfInstructLab(const std::string& text, std::string source) {
  MUSTER_ASSIGN_OR_RETURN(const ConfigFile file, ReadConfigFile(text, std::move(source), kSection));
  MUSTER_ASSIGN_OR_RETURN(const auto values, ValuesOf(file));
  LaunchConfig config{.notes = file.notes};
  std::map<std::string, std::string> sources;  // by option
  std::vector<std::string> rest;
  const ConfigNode* one_process = nullptr;  // where it says that it's not distributed
  for (const auto& [path, node] : values) {
    const std::string key = path.substr(sizeof(kSection));
    const std::string prefix = path.substr(0, path.rfind('.') + 1);
    const std::string name = path.substr(prefix.size());
    const ConfigKey* const row = FindKey(InstructLabKeys(), prefix, name);
    if (row == nullptr) {
      return file.Refusal(node->line, UnknownKey(InstructLabKeys(), prefix, name));
    }
    const bool is_null = node->kind == ConfigNode::Kind::kNull;
    if (key == "distributed") {
      if (node->kind != ConfigNode::Kind::kBool) {
        return Bad(file, path, *node, "expected true or false");
      }
      if (!node->IsTrue()) one_process = node;
    } else if (row->launch.use != LaunchUse::Use::kOption) {
      if (row->training.use == TrainingUse::Use::kSection && !is_null) {
        return Bad(file, path, *node, "expected a map of keys and values");
      }
      rest.push_back(key);
    } else if (!is_null) {
      const std::string option = row->launch.word;
      if (!sources.emplace(option, key).second) {
        return Bad(file, path, *node, absl::StrCat("says the same as ", sources[option]));
      }
      const std::string value = PythonText(*node);
      if (option == "nproc_per_node" && !IsNumberOfWorkers(value)) {
        return Bad(file, path, *node, "expected a number of GPUs of 1 or more, or gpu");
      }
      config.options.push_back({option, value, file.At(node->line, path), /*is_of_file=*/true});
    }
  }
  for (const TakenOption& taken : config.options) {
    if (one_process == nullptr || taken.option != "nproc_per_node" || taken.value == "1") continue;
    return Bad(file, "train.distributed", *one_process,
               absl::StrCat("one process, but ", kSection, ".", sources[taken.option], " is ",
                            taken.value));
  }
  if (!rest.empty()) config.notes.push_back(file.OfAll(NoteOnTheRest(rest)));
  return config;
}

}  // namespace muster::launcher
