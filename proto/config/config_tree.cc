#include "proto/config/config_tree.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kListShownMax = 60;

}  // namespace

const ConfigNode* ConfigNode::Find(const std::string& key) const {
  for (const ConfigMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

void ConfigNode::Put(const std::string& key, ConfigNode value) {
  kind = Kind::kMap;
  for (ConfigMember& member : members) {
    if (member.key != key) continue;
    member.value = std::move(value);
    return;
  }
  members.push_back({key, std::move(value)});
}

void ConfigNode::Erase(const std::string& key) {
  std::erase_if(members, [&](const ConfigMember& member) { return member.key == key; });
}

std::string ShownValue(const ConfigNode& node) {
  using Kind = ConfigNode::Kind;
  if (node.kind == Kind::kNull) return "null";
  if (node.kind == Kind::kMap) return node.members.empty() ? "{}" : "{...}";
  if (node.kind != Kind::kList) return absl::Utf8SafeCHexEscape(node.text.substr(0, kListShownMax));
  std::string shown = "[";
  for (const ConfigNode& item : node.items) {
    if (shown.size() > kListShownMax) return absl::StrCat(shown, ", ...]");
    absl::StrAppend(&shown, shown.size() > 1 ? ", " : "", ShownValue(item));
  }
  return shown + "]";
}

}  // namespace muster
