#include "launcher/hosts/host_file.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"
#include "proto/base/words.h"

namespace muster::launcher {
namespace {

absl::Status InLine(int number, absl::string_view line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", number, ": '", line, "': ", why));
}

// A host may have an account for ssh in front: "me@node1". What ssh would take for an option is no
// host.
bool IsHostForSsh(absl::string_view text) {
  const size_t at = text.rfind('@');
  const std::string host(at == absl::string_view::npos ? text : text.substr(at + 1));
  const absl::string_view user = at == absl::string_view::npos ? "" : text.substr(0, at);
  const bool good_user = std::all_of(user.begin(), user.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  return IsHost(host) && good_user && text.front() != '-' && host.front() != '-';
}

// What Open MPI's host files say beside the slots, and has no meaning here, where nobody asks for
// more workers than slots.
bool IsMaxSlots(absl::string_view word) {
  int count = 0;
  return (absl::ConsumePrefix(&word, "max_slots=") || absl::ConsumePrefix(&word, "max-slots=")) &&
         absl::SimpleAtoi(word, &count);
}

// One host of --include or --exclude.
struct Chosen {
  std::string host;
  std::vector<int> slots;  // none given: all
};

absl::StatusOr<std::vector<Chosen>> ParseChoice(const std::string& text) {
  std::vector<Chosen> all;
  for (absl::string_view entry : absl::StrSplit(text, '@')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    Chosen chosen{.host = std::string(absl::StripAsciiWhitespace(parts.first))};
    if (chosen.host.empty()) {
      return absl::InvalidArgumentError("expected HOST[:SLOT,SLOT...] with @ between hosts");
    }
    auto known = std::find_if(all.begin(), all.end(),
                              [&](const Chosen& other) { return other.host == chosen.host; });
    if (known == all.end()) known = all.insert(all.end(), std::move(chosen));
    if (parts.first.size() == entry.size()) continue;
    for (absl::string_view slot : absl::StrSplit(parts.second, ',')) {
      int id = 0;
      if (!absl::SimpleAtoi(slot, &id) || id < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("expected numbers of slots behind ", known->host, ":, not '", slot, "'"));
      }
      known->slots.push_back(id);
    }
    std::sort(known->slots.begin(), known->slots.end());
    known->slots.erase(std::unique(known->slots.begin(), known->slots.end()), known->slots.end());
  }
  return all;
}

absl::Status CheckIsListed(const Chosen& chosen, const std::vector<HostEntry>& hosts) {
  const auto listed = std::find_if(hosts.begin(), hosts.end(),
                                   [&](const HostEntry& host) { return host.host == chosen.host; });
  if (listed == hosts.end()) {
    return absl::InvalidArgumentError(absl::StrCat(chosen.host, " is not in the host file"));
  }
  for (const int slot : chosen.slots) {
    if (std::binary_search(listed->slots.begin(), listed->slots.end(), slot)) continue;
    return absl::InvalidArgumentError(absl::StrCat(chosen.host, " has no slot ", slot, ", but ",
                                                   listed->slots.size(), " from 0"));
  }
  return absl::OkStatus();
}

const Chosen* FindIn(const std::vector<Chosen>& chosen, const std::string& host) {
  const auto found = std::find_if(chosen.begin(), chosen.end(),
                                  [&](const Chosen& entry) { return entry.host == host; });
  return found == chosen.end() ? nullptr : &*found;
}

// What of `host` is left; its slots are empty if nothing is.
void Narrow(HostEntry& host, const Chosen* chosen, bool includes) {
  const size_t before = host.slots.size();
  if (chosen == nullptr) {
    if (includes) host.slots.clear();
  } else if (chosen->slots.empty()) {
    if (!includes) host.slots.clear();
  } else if (includes) {
    host.slots = chosen->slots;
  } else {
    std::erase_if(host.slots, [&](int slot) {
      return std::binary_search(chosen->slots.begin(), chosen->slots.end(), slot);
    });
  }
  host.are_all_slots = host.are_all_slots && host.slots.size() == before;
}

absl::Status Filter(std::vector<HostEntry>& hosts, absl::string_view option,
                    const std::string& text) {
  const absl::StatusOr<std::vector<Chosen>> chosen = ParseChoice(text);
  absl::Status status = chosen.status();
  for (size_t i = 0; status.ok() && i < chosen->size(); ++i) {
    status = CheckIsListed((*chosen)[i], hosts);
  }
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(option, "=", text, ": ", status.message()));
  }
  for (HostEntry& host : hosts) Narrow(host, FindIn(*chosen, host.host), option == "--include");
  std::erase_if(hosts, [](const HostEntry& host) { return host.slots.empty(); });
  if (!hosts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, "=", text, ": leaves no host"));
}

absl::Status TakeFirst(std::vector<HostEntry>& hosts, int num_nodes) {
  if (num_nodes < 1 || num_nodes > static_cast<int>(hosts.size())) {
    return absl::InvalidArgumentError(absl::StrCat("--num_nodes=", num_nodes, ": expected 1 to ",
                                                   hosts.size(), ", the hosts of the file"));
  }
  hosts.resize(static_cast<size_t>(num_nodes));
  return absl::OkStatus();
}

absl::Status TakeFirstSlots(std::vector<HostEntry>& hosts, int num_gpus) {
  for (HostEntry& host : hosts) {
    if (num_gpus < 1 || num_gpus > static_cast<int>(host.slots.size())) {
      return absl::InvalidArgumentError(absl::StrCat("--num_gpus=", num_gpus, ": ", host.host,
                                                     " has ", host.slots.size(), " slots"));
    }
    host.are_all_slots = host.are_all_slots && num_gpus == static_cast<int>(host.slots.size());
    host.slots.resize(static_cast<size_t>(num_gpus));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostEntry>> ParseHostFile(const std::string& text) {
  std::vector<HostEntry> hosts;
  absl::btree_set<std::string> names;
  int number = 0;
  absl::string_view rest = text;
  absl::ConsumePrefix(&rest, kByteOrderMark);
  for (absl::string_view line : absl::StrSplit(rest, '\n')) {
    ++number;
    const absl::string_view content = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (content.empty()) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(content, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const bool is_of_two = words.size() == 2 || (words.size() == 3 && IsMaxSlots(words[2]));
    absl::string_view count = is_of_two ? words[1] : "";
    int slots = 0;
    if (!absl::ConsumePrefix(&count, "slots=") || !absl::SimpleAtoi(count, &slots) || slots < 1 ||
        slots > kMaxSlots) {
      return InLine(number, content,
                    absl::StrCat("expected 'HOST slots=N' with N from 1 to ", kMaxSlots));
    }
    if (!IsHostForSsh(words[0])) return InLine(number, content, "that is not the name of a host");
    HostEntry host{.host = std::string(words[0])};
    if (!names.insert(host.host).second) {
      return InLine(number, content, absl::StrCat(host.host, " is listed twice"));
    }
    for (int slot = 0; slot < slots; ++slot) host.slots.push_back(slot);
    hosts.push_back(std::move(host));
  }
  if (hosts.empty())
    return absl::InvalidArgumentError("lists no host; expected lines 'HOST slots=N'");
  return hosts;
}

absl::StatusOr<std::vector<HostEntry>> ChooseHosts(std::vector<HostEntry> hosts,
                                                   const HostChoice& choice) {
  if (!choice.include.empty() && !choice.exclude.empty()) {
    return absl::InvalidArgumentError("--include and --exclude cannot both be given");
  }
  const bool is_filtered = !choice.include.empty() || !choice.exclude.empty();
  if (is_filtered && (choice.num_nodes || choice.num_gpus)) {
    return absl::InvalidArgumentError(
        "--num_nodes and --num_gpus cannot be given beside --include or --exclude");
  }
  if (!choice.include.empty()) MUSTER_RETURN_IF_ERROR(Filter(hosts, "--include", choice.include));
  if (!choice.exclude.empty()) MUSTER_RETURN_IF_ERROR(Filter(hosts, "--exclude", choice.exclude));
  if (choice.num_nodes) MUSTER_RETURN_IF_ERROR(TakeFirst(hosts, *choice.num_nodes));
  if (choice.num_gpus) MUSTER_RETURN_IF_ERROR(TakeFirstSlots(hosts, *choice.num_gpus));
  return hosts;
}

}  // namespace muster::launcher
