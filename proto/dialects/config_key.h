// A row of the table of keys of a configuration file that another program owns: how the key is
// written, what it does to a launch (`muster run`) and what it does to training (muster-train and
// `muster plan`). A key that is in no row is refused by both.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

struct LaunchUse {
  enum class Use : uint8_t {
    kHandled,   // read by the reader itself, or for the program alone
    kOption,    // the value of option `word` of `muster run`
    kVariable,  // the workers' variable `word`
    kIgnored,   // the file's owner does not read it, because of what the column of training says
    kRefused,   // because of `word`
  };
  enum class Form : uint8_t { kAsIs, kLower, kUpper };

  Use use = Use::kHandled;
  const char* word = "";
  const char* otherwise = nullptr;  // a variable's value without the key; null: it is not set
  Form form = Form::kAsIs;          // of a variable's value

  static constexpr LaunchUse Option(const char* name) { return {Use::kOption, name}; }
  static constexpr LaunchUse Variable(const char* name, const char* otherwise = nullptr,
                                      Form form = Form::kAsIs) {
    return {Use::kVariable, name, otherwise, form};
  }
  static constexpr LaunchUse Ignored() { return {Use::kIgnored}; }
  static constexpr LaunchUse Refused(const char* why) { return {Use::kRefused, why}; }
};

// A refusal says `why`, and to leave the key out unless `why` has other advice, behind a semicolon.
struct TrainingUse {
  enum class Use : uint8_t {
    kHandled,        // read by the reader itself
    kOption,         // the value of option `word`
    kSection,        // a map of further keys
    kWithoutEffect,  // `why` it changes nothing here
    kOnly,           // accepted as `word` alone; else refused because of `why`
    kDisabled,       // a map with "enabled": false; else refused because of `why`
  };
  Use use = Use::kHandled;
  const char* word = "";
  const char* why = "";

  static constexpr TrainingUse Handled() { return {}; }
  static constexpr TrainingUse Option(const char* name) { return {Use::kOption, name}; }
  static constexpr TrainingUse Section() { return {Use::kSection}; }
  static constexpr TrainingUse NoEffect(const char* why) { return {Use::kWithoutEffect, "", why}; }
  static constexpr TrainingUse Only(const char* word, const char* why) {
    return {Use::kOnly, word, why};
  }
  static constexpr TrainingUse Disabled(const char* why) { return {Use::kDisabled, "", why}; }
};

struct ConfigKey {
  enum class Type : uint8_t { kBool, kWhole, kNumber, kText, kList, kAny };
  const char* path;  // "zero_optimization.stage"
  Type type = Type::kAny;
  TrainingUse training = {};
  LaunchUse launch = {};
};

// The row of `key` in the map at `prefix` ("train.model.", "" for the top level), or of the map
// around it that is taken as a whole (kDisabled). Null if there is none.
const ConfigKey* FindKey(absl::Span<const ConfigKey> keys, absl::string_view prefix,
                         absl::string_view key);

// "; did you mean NAME?" of the key that was probably meant by `key`, which has no row in the map
// at `prefix`; or "". A key that is right elsewhere is told where.
std::string KeyHint(absl::Span<const ConfigKey> keys, const std::string& prefix,
                    absl::string_view key);

// "unknown key 'zero_stge' in train.deepspeed; did you mean zero_stage?"
std::string UnknownKey(absl::Span<const ConfigKey> keys, const std::string& prefix,
                       absl::string_view key);

// What `mixed_precision` says in the files of Accelerate and of InstructLab: no, fp16 or bf16.
//
// Errors: kInvalidArgument with what was expected.
absl::StatusOr<std::string> MixedPrecision(absl::string_view text);

}  // namespace muster
