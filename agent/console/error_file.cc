#include "agent/console/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/bounded_json.h"
#include "proto/base/process_end.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using Json = nlohmann::json;

std::string StringAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<int64_t> MillisAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  double seconds = 0;
  if (found->is_number()) {
    seconds = found->get<double>();
  } else if (!found->is_string() || !absl::SimpleAtod(found->get<std::string>(), &seconds)) {
    return std::nullopt;
  }
  const bool plausible = std::isfinite(seconds) && seconds > 0 && seconds < 1e12;
  return plausible ? std::optional<int64_t>(std::llround(seconds * 1000)) : std::nullopt;
}

// Discarded unless `bytes` is a JSON object.
Json ParseObject(absl::string_view bytes) {
  if (bytes.size() > kErrorFileBytesMax) return Json(Json::value_t::discarded);
  Json json = ParseJsonFromOutside(bytes);
  return json.is_object() ? json : Json(Json::value_t::discarded);
}

bool IsTorchForm(const Json& json) {
  return json.is_object() && json.contains("message") && json["message"].is_object();
}

// One byte more than the limit shows that the file is too long.
std::optional<std::string> ReadBytes(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info;
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::string bytes(kErrorFileBytesMax + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += got;
  }
  bytes.resize(size);
  return size > 0 ? std::optional<std::string>(std::move(bytes)) : std::nullopt;
}

Json MakeErrorObject(const std::string& message, const std::string& callstack, int64_t seconds) {
  Json extra = {{"py_callstack", callstack}, {"timestamp", absl::StrCat(seconds)}};
  return {{"message", {{"message", message}, {"extraInfo", std::move(extra)}}}};
}

Json ErrorObjectOf(const WorkerFailure& failure) {
  const std::optional<std::string> original =
      failure.error_file.empty() ? std::nullopt : ReadBytes(failure.error_file);
  Json json = original ? ParseObject(*original) : Json();
  if (!IsTorchForm(json)) {
    std::string message = failure.message;
    if (failure.error_file.empty()) {  // what there is are our own words
      message = absl::StrCat("rank ", ToString(failure.rank), " (pid ", failure.pid, ") ",
                             HowItEnded(failure), message.empty() ? "" : ": ", message);
    }
    json = MakeErrorObject(message, failure.last_output, failure.unix_millis / 1000);
  }
  json["message"]["errorCode"] = failure.signal != 0 ? -failure.signal : failure.exit_code;
  return json;
}

Json ErrorObjectOf(const JobOutcome& outcome, absl::Time now) {
  const bool has_culprit = outcome.root_cause && outcome.root_cause->ended_by.empty();
  if (has_culprit) return ErrorObjectOf(*outcome.root_cause);
  std::string message = outcome.root_cause ? outcome.root_cause->ended_by : outcome.reason;
  if (message.empty()) message = absl::StrCat("exit code ", outcome.exit_code);
  Json json = MakeErrorObject(message, "", absl::ToUnixSeconds(now));
  json["message"]["errorCode"] = outcome.exit_code;
  return json;
}

absl::Status FileError(const std::string& path, int error) {
  const auto code = error == ENOSPC || error == EDQUOT ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInvalidArgument;
  return absl::Status(code,
                      absl::StrCat("cannot write the error file ", path, ": ", std::strerror(error),
                                   "; its path comes from TORCHELASTIC_ERROR_FILE"));
}

}  // namespace

ErrorRecord ParseErrorRecord(absl::string_view bytes) {
  const Json json = ParseObject(bytes);
  if (IsTorchForm(json)) {
    const Json& message = json["message"];
    const Json extra = message.value("extraInfo", Json());
    if (message.contains("message") && message["message"].is_string()) {
      if (!extra.is_object()) return {.message = StringAt(message, "message")};
      return {StringAt(message, "message"), StringAt(extra, "py_callstack"),
              MillisAt(extra, "timestamp")};
    }
  } else if (json.is_object() && !StringAt(json, "message").empty()) {
    return {StringAt(json, "message"), "", MillisAt(json, "timestamp")};
  }
  return {.message = std::string(absl::StripAsciiWhitespace(bytes.substr(0, kErrorTextBytesMax)))};
}

std::optional<ErrorRecord> ReadErrorFile(const std::string& path) {
  const std::optional<std::string> bytes = ReadBytes(path);
  return bytes ? std::optional<ErrorRecord>(ParseErrorRecord(*bytes)) : std::nullopt;
}

absl::Status WriteErrorFile(const std::string& path, const JobOutcome& outcome, absl::Time now) {
  const int error = ReplaceFile(
      path, ErrorObjectOf(outcome, now).dump(-1, ' ', false, Json::error_handler_t::replace));
  return error == 0 ? absl::OkStatus() : FileError(path, error);
}

}  // namespace muster::agent
