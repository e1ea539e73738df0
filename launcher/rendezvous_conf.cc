#include "launcher/rendezvous_conf.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "launcher/flag_values.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using DurationField = std::optional<absl::Duration> RendezvousConf::*;
constexpr std::array<std::pair<const char*, DurationField>, 8> kDurations = {{
    {"timeout", &RendezvousConf::timeout},
    {"join_timeout", &RendezvousConf::join_timeout},
    {"last_call_timeout", &RendezvousConf::last_call_timeout},
    {"close_timeout", &RendezvousConf::close_timeout},
    {"read_timeout", &RendezvousConf::read_timeout},
    {"orphan_timeout", &RendezvousConf::orphan_timeout},
    {"lease", &RendezvousConf::lease},
    {"renew_interval", &RendezvousConf::renew_interval},
}};
constexpr std::array<const char*, 3> kWithoutEffect = {"heartbeat_timeout", "keep_alive_interval",
                                                       "keep_alive_max_attempt"};
constexpr std::array<const char*, 3> kOthers = {"is_host", "store_type", "rank"};

std::string Unquote(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.front() == text.back();
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

// Not `"a=1",b="2"`: those quotes do not belong together.
std::string UnquoteWhole(const std::string& text) {
  const std::string inner = Unquote(text);
  const bool one_pair = inner == text || inner.find(text.front()) == std::string::npos;
  return one_pair ? inner : text;
}

absl::Status UnknownKey(const std::string& key) {
  std::vector<std::string> known;
  for (const auto& [name, field] : kDurations) known.push_back(name);
  known.insert(known.end(), kWithoutEffect.begin(), kWithoutEffect.end());
  known.insert(known.end(), kOthers.begin(), kOthers.end());
  const std::string nearest = DidYouMean(key, known);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown key '", key, "'",
      nearest.empty() ? absl::StrCat("; known are ", absl::StrJoin(known, ", ")) : nearest));
}

template <typename Value>
absl::Status Store(absl::StatusOr<Value> value, std::optional<Value>& out) {
  if (!value.ok()) return value.status();
  out = *std::move(value);
  return absl::OkStatus();
}

absl::Status StoreType(const std::string& value) {
  if (value == "tcp") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "only tcp (the default) is accepted; a store in a file is not in this version");
}

absl::Status Apply(const std::string& key, const std::string& value, RendezvousConf& conf) {
  for (const auto& [name, field] : kDurations) {
    if (key == name) return Store(ParseDuration(value), conf.*field);
  }
  if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end()) {
    conf.without_effect.push_back(key);
    return ParseNumber(value).status();
  }
  if (key == "is_host") return Store(ParseBool(value), conf.is_host);
  if (key == "rank") return Store(ParseInteger(value), conf.rank);
  return StoreType(value);
}

bool IsKnown(const std::string& key) {
  const auto is_key = [&](const char* name) { return key == name; };
  return std::any_of(kDurations.begin(), kDurations.end(),
                     [&](const auto& entry) { return is_key(entry.first); }) ||
         std::any_of(kWithoutEffect.begin(), kWithoutEffect.end(), is_key) ||
         std::any_of(kOthers.begin(), kOthers.end(), is_key);
}

}  // namespace

absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text) {
  RendezvousConf conf;
  const std::string items = UnquoteWhole(text);
  if (absl::StripAsciiWhitespace(items).empty()) return conf;
  for (absl::string_view item : absl::StrSplit(items, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(parts.first));
    const std::string value = Unquote(parts.second);
    if (!key.empty() && !IsKnown(key)) return UnknownKey(key);
    if (key.empty() || value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' is no KEY=VALUE, such as join_timeout=600"));
    }
    if (absl::Status status = Apply(key, value, conf); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(key, "=", value, ": ", status.message()));
    }
  }
  return conf;
}

}  // namespace muster::launcher
