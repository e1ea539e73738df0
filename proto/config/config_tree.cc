#include "proto/config/config_tree.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kListShownMax = 60;

}  // namespace

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
