// The log of our own programs; worker output goes through agent/console/log_pump.h instead.
//
// A line is an event name, a sentence for people and ordered fields. Fields come in this order:
// run, round, node, rank, local_rank, then what is specific to the event. As text a person reads
// `muster: warning: <sentence>`, with the fields behind it when the level is debug; as JSON a
// program reads one object per line.
//
//   log::Write(log::Level::kInfo, "round_completed", "round 3 starts: 4 nodes, 32 workers",
//              {{"round", "3"}, {"nodes", "4"}, {"world_size", "32"}});
//
// A secret is never a field. This is the only user of spdlog.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::log {

enum class Level { kDebug, kInfo, kWarning, kError };

enum class Format {
  kText,  // for people
  kJson,  // --log_format=json
};

struct Field {
  absl::string_view key;  // not time, level, event or text
  std::string value;
};

// One event, ready to be rendered. The views live as long as the call that takes it.
struct Entry {
  Level level = Level::kInfo;
  absl::string_view event;
  absl::string_view text;
  std::initializer_list<Field> fields;
};

struct Options {
  Format format = Format::kText;
  Level level = Level::kInfo;  // what is below is dropped
  // Takes a finished line without its newline. Called on the thread that writes, under no lock,
  // also by several threads at once: an owner with a loop posts to it. Empty: standard error.
  std::function<void(const std::string& line)> sink;
};

// Replaces the options for all later lines. Until the first call: text, info, standard error.
//
// Threads: safe, also while others write.
void Configure(Options options);

// Threads: safe. Never fails; what cannot be written is lost.
void Write(Level level, absl::string_view event, absl::string_view text,
           std::initializer_list<Field> fields = {});

// The text form. `with_fields` appends `event=… key=value …`, values quoted where they need it.
//
// Threads: pure.
std::string FormatText(const Entry& entry, bool with_fields);

// The JSON form: time (RFC 3339 in UTC, milliseconds), level, event, text, then the fields. Bytes
// that are not UTF-8 are replaced.
//
// Threads: pure.
std::string FormatJson(const Entry& entry, absl::Time time);

}  // namespace muster::log
