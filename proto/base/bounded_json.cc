#include "proto/base/bounded_json.h"

namespace muster {
namespace {

// Looks at what is before the first error, if `text` is no JSON.
bool IsTooDeep(absl::string_view text) {
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      if (c == '"') is_in_string = false;
      continue;
    }
    if (c == '"') is_in_string = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kJsonDepthMax) return true;
  }
  return false;
}

}  // namespace

nlohmann::json ParseJsonFromOutside(absl::string_view text) {
  using Json = nlohmann::json;
  if (IsTooDeep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace muster
