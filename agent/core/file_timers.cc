#include "agent/core/file_timers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/base/bounded_json.h"

namespace muster::agent {
namespace {

constexpr int kMaxSignal = 64;
constexpr size_t kScopeBytesMax = 256;

absl::Status NotARequest() {
  return absl::InvalidArgumentError("malformed request on the timer pipe");
}

bool IsInteger(const nlohmann::json& json, const char* key, int64_t low, int64_t high) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() && *found >= low && *found <= high;
}

}  // namespace

absl::Status FileTimers::Take(absl::string_view line) {
  const nlohmann::json json = ParseJsonFromOutside(line);
  if (!json.is_object() || !IsInteger(json, "pid", 1, INT32_MAX)) return NotARequest();
  const auto scope = json.find("scope_id");
  const auto expires = json.find("expiration_time");
  if (scope == json.end() || !scope->is_string() || expires == json.end() ||
      !expires->is_number() || !std::isfinite(expires->get<double>())) {
    return NotARequest();
  }
  const std::pair<int, std::string> key = {json["pid"].get<int>(),
                                           scope->get<std::string>().substr(0, kScopeBytesMax)};
  const double seconds = expires->get<double>();
  if (seconds < 0) {
    timers_.erase(key);
    return absl::OkStatus();
  }
  if (timers_.size() >= kTimersMax && !timers_.contains(key)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are more than ", kTimersMax, " timers; further ones are not watched"));
  }
  // As PyTorch has it, no signal or one that there is not means to leave the process alone.
  const int signal = IsInteger(json, "signal", 1, kMaxSignal) ? json["signal"].get<int>() : 0;
  timers_[key] = {.expires = absl::UnixEpoch() + absl::Seconds(seconds), .signal = signal};
  return absl::OkStatus();
}

std::vector<FileTimers::Expired> FileTimers::Expire(absl::Time now) {
  std::vector<Expired> expired;
  std::map<int, absl::Time> chosen;  // when the one that stands in `expired` ran out, by pid
  for (const auto& [key, timer] : timers_) {
    const auto& [pid, scope] = key;
    if (timer.expires > now) continue;
    const bool is_first = !chosen.contains(pid);
    if (is_first) expired.push_back({.pid = pid});
    Expired& own = expired.back();
    const bool is_better = is_first || (own.signal == 0 && timer.signal != 0) ||
                           (timer.signal != 0 && timer.expires < chosen[pid]);
    if (!is_better) continue;
    own.scope = scope;
    own.signal = timer.signal;
    chosen[pid] = timer.expires;
  }
  std::erase_if(timers_, [&](const auto& entry) { return chosen.contains(entry.first.first); });
  return expired;
}

absl::Time FileTimers::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, timer] : timers_) next = std::min(next, timer.expires);
  return next;
}

}  // namespace muster::agent
