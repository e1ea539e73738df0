#include "launcher/schedulers/node_list.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Expected;
using Names = std::vector<std::string>;

constexpr size_t kMaxDigits = 18;  // fit into an int64

absl::Status TooMany() {
  return absl::InvalidArgumentError(
      absl::StrCat("names more than ", kMaxListedNodes, " nodes; is a range mistyped?"));
}

// Digits only: "007".
bool ReadDigits(absl::string_view text, int64_t& out) {
  const bool all_digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return !text.empty() && text.size() <= kMaxDigits && all_digits && absl::SimpleAtoi(text, &out);
}

// "001-004" or "7"; a leading zero of the first number gives the width of all.
absl::Status AppendRange(absl::string_view range, Names& out) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(range, absl::MaxSplits('-', 1));
  int64_t first = 0;
  if (!ReadDigits(ends.first, first)) {
    return Expected(absl::StrCat("numbers in the brackets of a node list, not '", range, "'"));
  }
  if (ends.first.size() == range.size()) {
    out.emplace_back(range);
    return out.size() > static_cast<size_t>(kMaxListedNodes) ? TooMany() : absl::OkStatus();
  }
  int64_t last = 0;
  if (!ReadDigits(ends.second, last) || last < first) {
    return Expected(
        absl::StrCat("a rising range such as 001-004 in a node list, not '", range, "'"));
  }
  if (last - first >= kMaxListedNodes) return TooMany();
  for (int64_t number = first; number <= last; ++number) {
    const std::string digits = absl::StrCat(number);
    const size_t width = std::max(ends.first.size(), digits.size());
    out.push_back(std::string(width - digits.size(), '0') + digits);
    if (out.size() > static_cast<size_t>(kMaxListedNodes)) return TooMany();
  }
  return absl::OkStatus();
}

// Every name of `names` with every ending of `endings`.
absl::Status Multiply(Names& names, const Names& endings) {
  if (names.size() * endings.size() > static_cast<size_t>(kMaxListedNodes)) return TooMany();
  Names product;
  product.reserve(names.size() * endings.size());
  for (const std::string& name : names) {
    for (const std::string& ending : endings) product.push_back(name + ending);
  }
  names = std::move(product);
  return absl::OkStatus();
}

// One entry of the list, "rack[1-2]n[0-1]".
absl::StatusOr<Names> ExpandEntry(absl::string_view entry) {
  Names names = {""};
  while (!entry.empty()) {
    const size_t open = std::min(entry.find('['), entry.size());
    for (std::string& name : names) absl::StrAppend(&name, entry.substr(0, open));
    if (open == entry.size()) break;
    const size_t close = entry.find(']', open);
    if (close == absl::string_view::npos) return Expected("a ']' for each '[' in a node list");
    Names endings;
    for (absl::string_view range : absl::StrSplit(entry.substr(open + 1, close - open - 1), ',')) {
      MUSTER_RETURN_IF_ERROR(AppendRange(range, endings));
    }
    MUSTER_RETURN_IF_ERROR(Multiply(names, endings));
    entry.remove_prefix(close + 1);
  }
  for (const std::string& name : names) {
    if (name.empty() || !IsHost(name)) {
      return Expected("names of nodes with commas between them, such as gpu[001-004,7],login1");
    }
  }
  return names;
}

// Splits `text` at the commas outside of brackets.
std::vector<absl::string_view> SplitEntries(absl::string_view text) {
  std::vector<absl::string_view> entries;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] != ',' || depth > 0) continue;
    entries.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  entries.push_back(text.substr(begin));
  return entries;
}

std::vector<absl::string_view> SplitWords(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
}

absl::Status CheckHostName(absl::string_view host) {
  if (IsHost(std::string(host))) return absl::OkStatus();
  return Expected(absl::StrCat("names of hosts, not '", host, "'"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(const std::string& text) {
  Names nodes;
  for (absl::string_view entry : SplitEntries(text)) {
    MUSTER_ASSIGN_OR_RETURN(Names names, ExpandEntry(absl::StripAsciiWhitespace(entry)));
    if (nodes.size() + names.size() > static_cast<size_t>(kMaxListedNodes)) return TooMany();
    std::move(names.begin(), names.end(), std::back_inserter(nodes));
  }
  return nodes;
}

absl::StatusOr<std::vector<int>> ExpandCounts(const std::string& text) {
  std::vector<int> counts;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int64_t times = 1;
    const size_t open = entry.find("(x");
    if (open != absl::string_view::npos) {
      const bool closes = entry.back() == ')';
      if (!closes || !ReadDigits(entry.substr(open + 2, entry.size() - open - 3), times)) {
        return Expected("counts such as 2(x3),1");
      }
    }
    int64_t count = 0;
    if (!ReadDigits(entry.substr(0, std::min(open, entry.size())), count) ||
        count > kMaxListedNodes || times < 1) {
      return Expected("counts such as 2(x3),1");
    }
    if (static_cast<int64_t>(counts.size()) + times > kMaxListedNodes) return TooMany();
    counts.insert(counts.end(), static_cast<size_t>(times), static_cast<int>(count));
  }
  return counts;
}

absl::StatusOr<std::vector<HostSlots>> ReadHostPerSlot(const std::string& text) {
  std::vector<HostSlots> hosts;
  absl::btree_map<absl::string_view, size_t> places;
  for (absl::string_view word : SplitWords(text)) {
    const auto [place, is_new] = places.emplace(word, hosts.size());
    if (is_new) {
      MUSTER_RETURN_IF_ERROR(CheckHostName(word));
      if (hosts.size() == static_cast<size_t>(kMaxListedNodes)) return TooMany();
      hosts.push_back({.host = std::string(word)});
    }
    ++hosts[place->second].slots;
  }
  if (hosts.empty()) return Expected("names of hosts, one per slot");
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ReadHostsWithCounts(const std::string& text) {
  const std::vector<absl::string_view> words = SplitWords(text);
  if (words.empty() || words.size() % 2 != 0) {
    return Expected("hosts with their numbers of slots, such as 'h1 8 h2 8'");
  }
  std::vector<HostSlots> hosts;
  for (size_t i = 0; i < words.size(); i += 2) {
    MUSTER_RETURN_IF_ERROR(CheckHostName(words[i]));
    int64_t slots = 0;
    if (!ReadDigits(words[i + 1], slots) || slots < 1 || slots > kMaxListedNodes) {
      return Expected(
          absl::StrCat("a number of slots behind ", words[i], ", not '", words[i + 1], "'"));
    }
    if (hosts.size() == static_cast<size_t>(kMaxListedNodes)) return TooMany();
    hosts.push_back({.host = std::string(words[i]), .slots = static_cast<int>(slots)});
  }
  return hosts;
}

}  // namespace muster::launcher
