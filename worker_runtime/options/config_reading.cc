#include "worker_runtime/options/config_reading.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"

namespace muster::plan {
namespace {

using Kind = ConfigNode::Kind;
using Type = ConfigKey::Type;
using Use = TrainingUse::Use;

constexpr double kMostWhole = 9.2e18;

bool SaysAuto(const ConfigNode& node) { return node.kind == Kind::kText && node.text == "auto"; }

// Numbers as the option reads them: 1e8 as 100000000.
std::string OptionText(const ConfigKey& row, const ConfigNode& node) {
  if (row.type != Type::kWhole) return node.text;
  return absl::StrCat(WholeNumber(node).value_or(0));
}

// Why a key is refused, and what works instead.
std::string WithAdvice(absl::string_view why) {
  return absl::StrCat(why, absl::StrContains(why, ';') ? "" : "; leave it out");
}

bool IsSameValue(const ConfigNode& node, const std::string& word) {
  double value = 0;
  double expected = 0;
  if (node.kind == Kind::kNumber && absl::SimpleAtod(node.text, &value) &&
      absl::SimpleAtod(word, &expected)) {
    return value == expected;
  }
  return node.text == word && node.kind != Kind::kMap && node.kind != Kind::kList;
}

}  // namespace

absl::StatusOr<int64_t> WholeNumber(const ConfigNode& node) {
  int64_t whole = 0;
  double number = 0;
  if (node.kind != Kind::kNumber && node.kind != Kind::kText) {
    return absl::InvalidArgumentError("expected a whole number");
  }
  if (absl::SimpleAtoi(node.text, &whole)) return whole;
  if (!absl::SimpleAtod(node.text, &number) || !std::isfinite(number)) {
    return absl::InvalidArgumentError("expected a whole number");
  }
  if (number != std::floor(number) || std::fabs(number) > kMostWhole) {
    return absl::InvalidArgumentError("expected a whole number, not a fraction");
  }
  return static_cast<int64_t>(number);
}

absl::StatusOr<ConfigNode> ConfigReading::ReadYaml(const std::string& text) {
  std::vector<std::string> notes;
  absl::StatusOr<ConfigNode> root = ReadYamlTree(text, notes);
  if (!root.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", root.status().message()));
  }
  for (const std::string& note : notes) Warn(absl::StrCat(file_, ": ", note));
  return root;
}

absl::Status ConfigReading::Walk(const ConfigNode& root) {
  if (root.kind != Kind::kMap) {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": expected a map of keys and values"));
  }
  return WalkMap(root, "");
}

const ConfigNode* ConfigReading::Find(absl::string_view path) const {
  for (const auto& [name, node] : values_) {
    if (name == path) return &node;
  }
  return nullptr;
}

bool ConfigReading::IsAuto(absl::string_view path) const {
  const ConfigNode* const node = Find(path);
  return node != nullptr && SaysAuto(*node);
}

int64_t ConfigReading::Whole(absl::string_view path, int64_t otherwise) const {
  const ConfigNode* const node = Find(path);
  return node == nullptr ? otherwise : WholeNumber(*node).value_or(otherwise);
}

std::string ConfigReading::Text(absl::string_view path, const std::string& otherwise) const {
  const ConfigNode* const node = Find(path);
  return node == nullptr || SaysAuto(*node) ? otherwise : node->text;
}

bool ConfigReading::Bool(absl::string_view path) const { return Text(path, "") == "true"; }

std::string ConfigReading::SourceOf(absl::string_view path) const {
  const ConfigNode* const node = Find(path);
  return node == nullptr ? absl::StrCat(file_, ": ", path)
                         : absl::StrCat(file_, ":", node->line, ": ", path);
}

void ConfigReading::Set(const std::string& option, std::string value, absl::string_view path,
                        const std::string& only_in_dtype) {
  const ConfigNode* const node = Find(path);
  contents_.settings.push_back({.option = option,
                                .value = std::move(value),
                                .source = SourceOf(path),
                                .shown = node == nullptr ? "" : ShownValue(*node),
                                .only_in_dtype = only_in_dtype});
}

void ConfigReading::SetDefault(const std::string& option, std::string value,
                               absl::string_view section, absl::string_view why) {
  contents_.settings.push_back({.option = option,
                                .value = value,
                                .source = absl::StrCat(SourceOf(section), " (", why, ")"),
                                .shown = value});
}

void ConfigReading::NoEffect(absl::string_view path, absl::string_view why) {
  const ConfigNode* const node = Find(path);
  contents_.without_effect.push_back(
      absl::StrCat(SourceOf(path), "=", node == nullptr ? "" : ShownValue(*node), ": ", why));
}

absl::Status ConfigReading::Bad(absl::string_view path, absl::string_view why) const {
  const ConfigNode* const node = Find(path);
  return absl::InvalidArgumentError(absl::StrCat(
      SourceOf(path), node == nullptr ? "" : absl::StrCat("=", ShownValue(*node)), ": ", why));
}

absl::Status ConfigReading::CheckChoice(absl::string_view path, const std::string& text,
                                        const std::vector<std::string>& known) const {
  if (std::find(known.begin(), known.end(), text) != known.end()) return absl::OkStatus();
  const absl::Span<const std::string> all = known;
  return Bad(path, absl::StrCat("expected ", absl::StrJoin(all.first(all.size() - 1), ", "), " or ",
                                known.back(), DidYouMean(text, known)));
}

absl::StatusOr<std::string> ConfigReading::SetPrecision(absl::string_view path,
                                                        absl::string_view says) {
  const absl::StatusOr<std::string> precision = MixedPrecision(says);
  if (!precision.ok()) return Bad(path, precision.status().message());
  Set("dtype", *precision == "no" ? "f32" : *precision == "fp16" ? "f16" : "bf16", path);
  return precision;
}

absl::Status ConfigReading::Refuse(absl::string_view path, absl::string_view why) {
  const absl::Status refusal = Bad(path, why);
  if (compat_ == ConfigCompat::kStrict) return refusal;
  Warn(absl::StrCat(refusal.message(), "; ignored because of --config_compat=deepspeed"));
  return absl::OkStatus();
}

absl::Status ConfigReading::WalkMap(const ConfigNode& map, const std::string& prefix) {
  for (const auto& [key, node] : map.members) {
    const ConfigKey* const row = FindKey(keys_, prefix, key);
    if (row == nullptr) {
      MUSTER_RETURN_IF_ERROR(UnknownKey(prefix, key, node));
      continue;
    }
    MUSTER_RETURN_IF_ERROR(Take(*row, node));
  }
  return absl::OkStatus();
}

absl::Status ConfigReading::Take(const ConfigKey& row, const ConfigNode& node) {
  if (node.kind == Kind::kNull) {
    contents_.without_effect.push_back(
        absl::StrCat(file_, ":", node.line, ": ", row.path, "=null: the same as leaving it out"));
    return absl::OkStatus();
  }
  if (row.training.use == Use::kDisabled) return TakeDisabled(row, node);
  if (row.training.use == Use::kSection) {
    values_.emplace_back(row.path, node);
    if (node.kind != Kind::kMap) return Bad(row.path, "expected a map of keys and values");
    if (node.members.empty()) NoEffect(row.path, "an empty map sets nothing");
    return WalkMap(node, absl::StrCat(row.path, "."));
  }
  values_.emplace_back(row.path, node);
  MUSTER_RETURN_IF_ERROR(CheckType(row, node));
  switch (row.training.use) {
    case Use::kOption:
      Set(row.training.word, SaysAuto(node) ? "" : OptionText(row, node), row.path);
      break;
    case Use::kWithoutEffect:
      NoEffect(row.path, row.training.why);
      break;
    case Use::kOnly:
      if (IsSameValue(node, row.training.word)) {
        NoEffect(row.path, "always the case here");
        break;
      }
      {
        const absl::Status refused = Refuse(row.path, WithAdvice(row.training.why));
        values_.pop_back();
        return refused;
      }
    case Use::kHandled:
    case Use::kSection:
    case Use::kDisabled:
      break;
  }
  return absl::OkStatus();
}

absl::Status ConfigReading::TakeDisabled(const ConfigKey& row, const ConfigNode& node) {
  const ConfigNode* const enabled = node.Find("enabled");
  const bool is_off =
      (node.kind == Kind::kBool && node.text == "false") ||
      (node.kind == Kind::kMap && node.members.empty()) ||
      (node.kind == Kind::kList && node.items.empty()) ||
      (enabled != nullptr && enabled->kind == Kind::kBool && enabled->text == "false");
  if (!is_off) return RefuseNode(row.path, node, WithAdvice(row.training.why));
  contents_.without_effect.push_back(absl::StrCat(file_, ":", node.line, ": ", row.path, "=",
                                                  ShownValue(node), ": it is not enabled"));
  return absl::OkStatus();
}

absl::Status ConfigReading::CheckType(const ConfigKey& row, const ConfigNode& node) const {
  if (SaysAuto(node) && (row.training.use == Use::kOption || row.training.use == Use::kHandled)) {
    return absl::OkStatus();
  }
  double number = 0;
  switch (row.type) {
    case Type::kBool:
      if (node.kind == Kind::kBool) return absl::OkStatus();
      return Bad(row.path, "expected true or false");
    case Type::kWhole: {
      const absl::StatusOr<int64_t> whole = WholeNumber(node);
      return whole.ok() ? absl::OkStatus() : Bad(row.path, whole.status().message());
    }
    case Type::kNumber:
      if ((node.kind == Kind::kNumber || node.kind == Kind::kText) &&
          absl::SimpleAtod(node.text, &number) && std::isfinite(number)) {
        return absl::OkStatus();
      }
      return Bad(row.path, "expected a number");
    case Type::kText:
      if (node.kind == Kind::kText) return absl::OkStatus();
      return Bad(row.path, "expected a text");
    case Type::kList:
      if (node.kind == Kind::kList) return absl::OkStatus();
      return Bad(row.path, "expected a list");
    case Type::kAny:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status ConfigReading::RefuseNode(absl::string_view path, const ConfigNode& node,
                                       absl::string_view why) {
  values_.emplace_back(path, node);
  const absl::Status refused = Refuse(path, why);
  values_.pop_back();
  return refused;
}

absl::Status ConfigReading::UnknownKey(const std::string& prefix, const std::string& key,
                                       const ConfigNode& node) {
  const std::string path = absl::StrCat(prefix, absl::Utf8SafeCHexEscape(key.substr(0, 100)));
  return RefuseNode(path, node, absl::StrCat("this key is not known", KeyHint(keys_, prefix, key)));
}

}  // namespace muster::plan
