#include "launcher/config/launch_config.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "proto/config/python_yaml.h"

namespace muster::launcher {

std::string ConfigFile::At(int line, absl::string_view text) const {
  return line == 0 ? std::string(text) : OfAll(absl::StrCat("line ", line, ": ", text));
}

std::string ConfigFile::OfAll(absl::string_view text) const {
  return absl::StrCat(source, source.empty() ? "" : ": ", text);
}

absl::Status ConfigFile::Refusal(int line, absl::string_view why) const {
  return absl::InvalidArgumentError(At(line, why));
}

const ConfigNode* ConfigFile::Find(const std::string& key) const {
  const ConfigNode* const node = root.Find(key);
  const bool is_value = node != nullptr && node->kind != ConfigNode::Kind::kNull &&
                        node->kind != ConfigNode::Kind::kMap;
  return is_value ? node : nullptr;
}

absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& text, std::string source,
                                          const std::string& section) {
  ConfigFile file{.source = std::move(source)};
  absl::StatusOr<ConfigNode> root = ReadYamlTree(text, file.notes, section);
  if (!root.ok()) return absl::InvalidArgumentError(file.OfAll(root.status().message()));
  file.root = *std::move(root);
  for (std::string& note : file.notes) note = file.OfAll(note);
  return file;
}

bool IsPlain(const ConfigNode& node) {
  const auto has_parts = [](const ConfigNode& part) {
    return part.kind == ConfigNode::Kind::kMap || part.kind == ConfigNode::Kind::kList;
  };
  return node.kind == ConfigNode::Kind::kList ? absl::c_none_of(node.items, has_parts)
                                              : !has_parts(node);
}

}  // namespace muster::launcher
