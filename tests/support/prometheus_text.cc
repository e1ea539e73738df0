#include "tests/support/prometheus_text.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster::testing {
namespace {

bool IsName(absl::string_view name, bool is_label) {
  if (name.empty() || absl::ascii_isdigit(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && (is_label || c != ':')) return false;
  }
  return true;
}

// `{a="b",c="d"}`, taken off the front of `line`. False: it is none.
bool TakeLabels(absl::string_view& line) {
  if (!absl::StartsWith(line, "{")) return true;
  size_t at = 1;
  std::set<std::string> names;
  for (;;) {
    const size_t equals = line.find('=', at);
    if (equals == absl::string_view::npos) return false;
    const absl::string_view name = line.substr(at, equals - at);
    if (!IsName(name, /*is_label=*/true) || !names.insert(std::string(name)).second) return false;
    at = equals + 1;
    if (at >= line.size() || line[at++] != '"') return false;
    while (at < line.size() && line[at] != '"') {
      if (line[at] == '\\') {
        ++at;
        if (at >= line.size() || !absl::StrContains("\\\"n", line.substr(at, 1))) return false;
      }
      ++at;
    }
    if (++at >= line.size()) return false;
    const char next = line[at++];
    if (next == '}') break;
    if (next != ',') return false;
  }
  line.remove_prefix(at);
  return true;
}

struct Family {
  std::string type;
  bool has_help = false;
};

// Units are base units, but for those of the DCGM exporter, whose names are given.
std::string WrongName(const std::string& name, const std::string& type) {
  if (absl::StartsWith(name, "DCGM_")) return "";
  if (name != absl::AsciiStrToLower(name)) return "has upper case";
  const bool is_total = absl::EndsWith(name, "_total");
  if (is_total != (type == "counter")) return "is a counter without _total, or the reverse";
  for (const char* unit : {"_ms", "_millis", "_mib", "_percent", "_kib", "_minutes"}) {
    if (absl::StrContains(name, unit)) return "has no base unit";
  }
  return "";
}

}  // namespace

std::string WhatIsWrongWith(const std::string& text, Samples* samples) {
  std::map<std::string, Family> families;
  std::set<std::string> over;
  std::set<std::string> seen;
  std::string current;
  if (!text.empty() && text.back() != '\n') return "the last line has no end";
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::string whole(line);
    const auto wrong = [&](absl::string_view why) { return absl::StrCat(why, ": ", whole); };
    if (absl::StartsWith(line, "#")) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
      if (words.size() < 4 || (words[1] != "HELP" && words[1] != "TYPE")) return wrong("comment");
      Family& family = families[words[2]];
      if (words[1] == "HELP") {
        if (family.has_help || !family.type.empty()) return wrong("a family begun twice");
        family.has_help = true;
        continue;
      }
      if (!family.has_help) return wrong("a type without help");
      if (words[3] != "gauge" && words[3] != "counter") return wrong("type");
      family.type = words[3];
      if (const std::string why = WrongName(words[2], words[3]); !why.empty()) return wrong(why);
      over.insert(current);
      current = words[2];
      continue;
    }
    const std::string name(line.substr(0, line.find_first_of("{ ")));
    if (!IsName(name, /*is_label=*/false)) return wrong("name");
    if (name != current || over.contains(name)) return wrong("not with its family");
    line.remove_prefix(name.size());
    const absl::string_view labels = line;
    if (!TakeLabels(line)) return wrong("labels");
    const std::string key = absl::StrCat(name, labels.substr(0, labels.size() - line.size()));
    double value = 0;
    if (!absl::StartsWith(line, " ") || !absl::SimpleAtod(line.substr(1), &value)) {
      return wrong("value");
    }
    if (families[name].type == "counter" && value < 0) return wrong("a counter below zero");
    if (!seen.insert(key).second) return wrong("twice");
    if (samples != nullptr) (*samples)[key] = value;
  }
  return "";
}

}  // namespace muster::testing
