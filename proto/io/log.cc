#include "proto/io/log.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/base/mutex.h"
#include "proto/base/words.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/sink.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace muster::log {
namespace {

// spdlog's own sinks call back under their lock; a sink of ours may itself log.
class LineSink final : public spdlog::sinks::sink {
 public:
  explicit LineSink(std::function<void(const std::string&)> write) : write_(std::move(write)) {}
  void log(const spdlog::details::log_msg& message) override {
    write_(std::string(message.payload.data(), message.payload.size()));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  // Constant after construction.
  const std::function<void(const std::string&)> write_;
};

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

absl::string_view ToString(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      break;
  }
  return "error";
}

struct Output {
  Format format;
  bool with_fields;
  spdlog::logger logger;
};

std::shared_ptr<Output> MakeOutput(Options options) {
  std::shared_ptr<spdlog::sinks::sink> sink;
  if (options.sink) {
    sink = std::make_shared<LineSink>(std::move(options.sink));
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_pattern("%v");
  }
  auto output = std::make_shared<Output>(Output{options.format, options.level == Level::kDebug,
                                                spdlog::logger("muster", std::move(sink))});
  output->logger.set_level(ToSpdlog(options.level));
  output->logger.flush_on(spdlog::level::trace);
  return output;
}

class CurrentOutput {
 public:
  void Set(std::shared_ptr<Output> output) {
    base::MutexLock lock(mu_);
    output_ = std::move(output);
  }
  std::shared_ptr<Output> Get() {
    base::MutexLock lock(mu_);
    return output_;
  }

 private:
  base::Mutex mu_;
  std::shared_ptr<Output> output_ ABSL_GUARDED_BY(mu_) = MakeOutput({});
};

// The log is the process's, and lines may still come while it exits: never destroyed.
CurrentOutput& Current() {
  static auto* const current = new CurrentOutput;
  return *current;
}

std::string QuoteIfNeeded(absl::string_view value) {
  const bool plain =
      !value.empty() && value.find_first_of(" \"=\t\r\n\\") == absl::string_view::npos;
  return ForTerminal(plain ? std::string(value)
                           : absl::StrCat("\"", absl::Utf8SafeCEscape(value), "\""));
}

}  // namespace

void Configure(Options options) { Current().Set(MakeOutput(std::move(options))); }

void Write(Level level, absl::string_view event, absl::string_view text,
           std::initializer_list<Field> fields) {
  const std::shared_ptr<Output> output = Current().Get();
  if (!output->logger.should_log(ToSpdlog(level))) return;
  const Entry entry{level, event, text, fields};
  const std::string line = output->format == Format::kJson ? FormatJson(entry, absl::Now())
                                                           : FormatText(entry, output->with_fields);
  output->logger.log(ToSpdlog(level), spdlog::string_view_t(line));
}

std::string FormatText(const Entry& entry, bool with_fields) {
  std::string line = "muster: ";
  if (entry.level != Level::kInfo) absl::StrAppend(&line, ToString(entry.level), ": ");
  absl::StrAppend(&line, ShowInvisible(entry.text));
  if (!with_fields) return line;
  absl::StrAppend(&line, " event=", entry.event);
  for (const Field& field : entry.fields) {
    absl::StrAppend(&line, " ", field.key, "=", QuoteIfNeeded(field.value));
  }
  return line;
}

std::string FormatJson(const Entry& entry, absl::Time time) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
  line["level"] = std::string(ToString(entry.level));
  line["event"] = std::string(entry.event);
  line["text"] = std::string(entry.text);
  for (const Field& field : entry.fields) line.emplace(std::string(field.key), field.value);
  return ForTerminal(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace muster::log
