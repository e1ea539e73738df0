#include "worker_runtime/train/step_trace.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/io/read_file.h"

namespace muster::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLaneNames[] = {"compute", "network", "waiting"};

}  // namespace

std::string StepTrace::FileName() const {
  return absl::StrCat("steps_", rank_, "_", restart_count_, ".trace.json");
}

std::string StepTrace::ToJson() const {
  absl::Time began = absl::InfiniteFuture();
  for (const TimedAction& action : actions_) began = std::min(began, action.began);
  Json events = Json::array();
  const auto name = [&](int lane, const char* what, const std::string& text) {
    events.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", rank_}, {"tid", lane}, {"args", {{"name", text}}}});
  };
  name(0, "process_name", absl::StrCat("rank ", rank_, ", steps"));
  for (int lane = 0; lane < 3; ++lane) name(lane + 1, "thread_name", kLaneNames[lane]);
  for (const TimedAction& action : actions_) {
    events.push_back({{"ph", "X"},
                      {"name", action.what},
                      {"cat", "muster"},
                      {"pid", rank_},
                      {"tid", static_cast<int>(action.lane) + 1},
                      {"ts", absl::ToInt64Microseconds(action.began - began)},
                      {"dur", std::max<int64_t>(0, absl::ToInt64Microseconds(action.took))},
                      {"args", {{"step", action.step}}}});
  }
  const int64_t origin = actions_.empty() ? 0 : absl::ToUnixMicros(began);
  const Json trace = {{"displayTimeUnit", "ms"},
                      {"otherData", {{"rank", rank_}, {"began_unix_micros", origin}}},
                      {"traceEvents", std::move(events)}};
  return trace.dump() + "\n";
}

absl::Status StepTrace::Write(const std::string& directory) const {
  const std::string path = absl::StrCat(directory, "/", FileName());
  const int error = ReplaceFile(path, ToJson());
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

}  // namespace muster::train
