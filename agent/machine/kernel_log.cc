#include "agent/machine/kernel_log.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace muster::agent {
namespace {

constexpr size_t kLinesMax = 256;
constexpr size_t kSaidMax = 4;
constexpr size_t kLineBytesMax = 300;  // in words

// A record is "priority,sequence,time,flags;text", then lines of keys that begin with a space.
// Source: kernel documentation, ABI/testing/dev-kmsg.
std::string TextOf(absl::string_view record) {
  const size_t text = record.find(';');
  if (text == absl::string_view::npos) return "";
  record.remove_prefix(text + 1);
  return std::string(record.substr(0, record.find('\n')));
}

bool IsOneOf(int number, absl::Span<const int> numbers) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// "python[1234]: segfault at ...", "traps: python[1234] general protection fault ...",
// "Out of memory: Killed process 1234 (python) ...".
bool NamesProcess(absl::string_view line, int pid) {
  const std::string killed = absl::StrCat("Killed process ", pid, " ");
  if (absl::StrContains(line, killed)) return true;
  return absl::StrContains(line, absl::StrCat("[", pid, "]: segfault at")) ||
         (absl::StartsWith(line, "traps: ") &&
          absl::StrContains(line, absl::StrCat("[", pid, "]")));
}

std::string InWords(const Xid& xid) {
  const std::string text = xid.text.empty() ? "" : absl::StrCat(" (", xid.text, ")");
  return absl::StrCat("GPU ", xid.device, ": Xid ", xid.number, text, ": ", AdviceFor(xid));
}

}  // namespace

std::optional<Xid> ParseXid(absl::string_view line) {
  constexpr absl::string_view kBegin = "NVRM: Xid (";
  const size_t begin = line.find(kBegin);
  if (begin == absl::string_view::npos) return std::nullopt;
  line.remove_prefix(begin + kBegin.size());
  const size_t end = line.find("): ");
  if (end == absl::string_view::npos) return std::nullopt;
  Xid xid;
  xid.device = std::string(absl::StripPrefix(line.substr(0, end), "PCI:"));
  line.remove_prefix(end + 3);
  std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(',', 3));
  if (!absl::SimpleAtoi(parts.front(), &xid.number) || xid.number <= 0) return std::nullopt;
  parts.erase(parts.begin());
  std::vector<absl::string_view> rest;
  for (absl::string_view part : parts) {
    part = absl::StripAsciiWhitespace(part);
    if (absl::ConsumePrefix(&part, "pid=")) {
      // "'<unknown>'" where the driver does not know it.
      if (!absl::SimpleAtoi(part, &xid.pid)) xid.pid = 0;
    } else if (!absl::StartsWith(part, "name=")) {
      rest.push_back(part);
    }
  }
  for (const absl::string_view part : rest) {
    absl::StrAppend(&xid.text, xid.text.empty() ? "" : ", ", part);
  }
  xid.text = xid.text.substr(0, kLineBytesMax);
  return xid;
}

std::string AdviceFor(const Xid& xid) {
  constexpr std::array kOfTheProgram = {8, 11, 13, 25, 31, 32, 43, 68, 69, 94};
  constexpr std::array kNeedsReset = {46,  62,  64,  95,  109, 110, 119,
                                      120, 136, 140, 143, 155, 156, 158};
  constexpr std::array kNeedsNode = {48, 54, 74, 79, 144, 145, 146, 147, 148, 149, 150, 151};
  if (IsOneOf(xid.number, kOfTheProgram))
    return "most often a fault of the program, not of the GPU";
  if (IsOneOf(xid.number, kNeedsReset)) return "the GPU needs a reset before it is used again";
  if (IsOneOf(xid.number, kNeedsNode))
    return "the node needs a look: its GPU, its links or its power";
  if (xid.number == 154) return "the driver says what the GPU needs now";
  return "NVIDIA's catalog of Xids tells what it means";
}

std::string WhatTheKernelSays(const std::vector<std::string>& lines, int pid) {
  std::vector<std::string> said;
  for (const std::string& line : lines) {
    if (said.size() == kSaidMax) break;
    if (NamesProcess(line, pid)) {
      said.push_back(absl::StrCat("the kernel says: ", line.substr(0, kLineBytesMax)));
    } else if (const auto xid = ParseXid(line); xid && (xid->pid == pid || xid->pid == 0)) {
      said.push_back(InWords(*xid));
    }
  }
  return absl::StrJoin(said, "; ");
}

std::string XidsOf(const std::vector<std::string>& lines, int pid) {
  std::vector<std::string> said;
  for (const std::string& line : lines) {
    const auto xid = ParseXid(line);
    if (xid && xid->pid == pid && said.size() < kSaidMax) said.push_back(InWords(*xid));
  }
  return absl::StrJoin(said, "; ");
}

std::vector<std::string> AllXids(const std::vector<std::string>& lines) {
  std::vector<std::string> all;
  for (const std::string& line : lines) {
    const std::optional<Xid> xid = ParseXid(line);
    if (!xid) continue;
    std::string words = InWords(*xid);
    if (std::find(all.begin(), all.end(), words) == all.end()) all.push_back(std::move(words));
  }
  return all;
}

KernelLog KernelLog::Open(const std::string& path) {
  KernelLog log = OpenWithPast(path);
  if (log.fd_) ::lseek(log.fd_.get(), 0, SEEK_END);
  return log;
}

KernelLog KernelLog::OpenWithPast(const std::string& path) {
  return KernelLog(UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)));
}

const std::vector<std::string>& KernelLog::Lines() {
  // The kernel gives one whole record for each read, and EAGAIN at the end. EPIPE: some were
  // overwritten.
  constexpr int kReadsMax = 100000;
  std::array<char, 8192> record;
  for (int i = 0; fd_ && i < kReadsMax; ++i) {
    const ssize_t size = ::read(fd_.get(), record.data(), record.size());
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (size <= 0) break;
    std::string line = TextOf({record.data(), static_cast<size_t>(size)});
    if (!line.empty()) lines_.push_back(std::move(line));
    if (lines_.size() > 2 * kLinesMax) lines_.erase(lines_.begin(), lines_.end() - kLinesMax);
  }
  return lines_;
}

void KernelLog::Forget() {
  Lines();
  lines_.clear();
}

}  // namespace muster::agent
