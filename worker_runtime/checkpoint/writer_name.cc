#include "worker_runtime/checkpoint/writer_name.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/io/read_file.h"

namespace muster::checkpoint {
namespace {

constexpr char kUnknown[] = "unknown";

// The place where a pid means this process and no other: the boot of the machine, and the
// namespace. Empty: not known.
std::string PlaceOfPids() {
  std::string boot = TextOf("/proc/sys/kernel/random/boot_id");
  boot = absl::StrReplaceAll(boot, {{"-", ""}, {"\n", ""}});
  char link[64];
  const ssize_t length = readlink("/proc/self/ns/pid", link, sizeof(link));
  if (boot.empty() || length <= 0) return "";
  absl::string_view space(link, static_cast<size_t>(length));  // "pid:[4026531836]"
  if (!absl::ConsumePrefix(&space, "pid:[") || !absl::ConsumeSuffix(&space, "]")) return "";
  return absl::StrCat(boot, "-", space);
}

// The start in clock ticks since the boot; empty if the process is not there, or not to be seen.
std::string StartOf(pid_t pid) {
  const std::string stat = TextOf(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_ends = stat.rfind(')');  // a name may have anything in it
  if (name_ends == std::string::npos) return "";
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_ends + 1), ' ', absl::SkipEmpty());
  constexpr size_t kStart = 19;  // the 22nd of proc(5), counted from the state
  return fields.size() > kStart ? fields[kStart] : "";
}

}  // namespace

std::string WriterName() {
  const std::string place = PlaceOfPids();
  const std::string start = StartOf(getpid());
  if (place.empty() || start.empty()) return kUnknown;
  return absl::StrCat(place, "-", getpid(), "-", start);
}

bool HasWriterEnded(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  pid_t pid = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &pid) || pid <= 0) return false;
  if (absl::StrCat(parts[0], "-", parts[1]) != PlaceOfPids()) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  const std::string start = StartOf(pid);
  return !start.empty() && start != parts[3];
}

}  // namespace muster::checkpoint
