// Values to JSON and back, as all pages of this room do it. For their .cc files alone.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/base/bounded_json.h"

namespace muster::status {

// Bytes that are no UTF-8 are replaced.
template <typename Page>
std::string ToJsonText(const Page& page) {
  return nlohmann::json(page).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What is missing has its default, and what is not known is left out.
template <typename Page>
absl::StatusOr<Page> FromJsonText(absl::string_view text, absl::string_view what, int schema) {
  const nlohmann::json json = ParseJsonFromOutside(text);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(what, " is not JSON"));
  try {
    Page page = json.get<Page>();
    if (page.schema == schema) return page;
    return absl::InvalidArgumentError(absl::StrCat(what, " has schema ", page.schema,
                                                   ", and this version of muster knows ", schema,
                                                   ": install the same Muster on every node"));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(what, " cannot be read: ", error.what()));
  }
}

}  // namespace muster::status
