#include "launcher/flag_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

absl::Status Expected(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

// Digits with an optional minus, nothing else: no blanks, no plus.
bool ReadInteger(absl::string_view text, int& out) {
  const absl::string_view digits = absl::StripPrefix(text, "-");
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, &out);
}

// One of `choices` by name; an error lists them.
template <typename Value, size_t kSize>
absl::StatusOr<Value> Choose(const std::string& text,
                             const std::array<std::pair<const char*, Value>, kSize>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names.push_back(name);
  }
  return Expected(absl::StrCat("one of ", absl::StrJoin(names, ", "), DidYouMean(text, names)));
}

struct Signal {
  const char* name;
  int number;
};
constexpr std::array<Signal, 19> kSignals = {{
    {"SIGTERM", SIGTERM},   {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},       {"SIGQUIT", SIGQUIT},
    {"SIGUSR1", SIGUSR1},   {"SIGUSR2", SIGUSR2}, {"SIGALRM", SIGALRM},     {"SIGCONT", SIGCONT},
    {"SIGTSTP", SIGTSTP},   {"SIGTTIN", SIGTTIN}, {"SIGTTOU", SIGTTOU},     {"SIGXCPU", SIGXCPU},
    {"SIGXFSZ", SIGXFSZ},   {"SIGPWR", SIGPWR},   {"SIGVTALRM", SIGVTALRM}, {"SIGPROF", SIGPROF},
    {"SIGWINCH", SIGWINCH}, {"SIGIO", SIGIO},     {"SIGURG", SIGURG},
}};

absl::StatusOr<int> ParseSignal(absl::string_view text) {
  const std::string upper = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(text));
  const std::string name = absl::StartsWith(upper, "SIG") ? upper : "SIG" + upper;
  if (name == "SIGKILL" || name == "SIGSTOP") {
    return absl::InvalidArgumentError(absl::StrCat(name, " cannot be handled by any process"));
  }
  std::vector<std::string> names;
  for (const Signal& signal : kSignals) {
    if (name == signal.name) return signal.number;
    names.push_back(signal.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no signal to handle; expected ", absl::StrJoin(names, ", ")));
}

bool ReadStreamSet(absl::string_view text, StreamSet& out) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return false;
  out = static_cast<StreamSet>(text[0] - '0');
  return true;
}

absl::StatusOr<int> ParsePort(absl::string_view text) {
  int port = 0;
  if (!ReadInteger(text, port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no port; expected 1 to 65535"));
  }
  return port;
}

absl::StatusOr<Endpoint> MakeEndpoint(absl::string_view host, absl::string_view port_text) {
  MUSTER_ASSIGN_OR_RETURN(std::string name, ParseHost(std::string(host)));
  MUSTER_ASSIGN_OR_RETURN(int port, ParsePort(port_text));
  return Endpoint{.host = std::move(name), .port = port};
}

}  // namespace

absl::StatusOr<NodeCount> ParseNodeCount(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  NodeCount nodes;
  const bool good = parts.size() <= 2 && ReadInteger(parts.front(), nodes.min) &&
                    ReadInteger(parts.back(), nodes.max) && 0 < nodes.min && nodes.min <= nodes.max;
  if (!good) return Expected("N or MIN:MAX with 0 < MIN <= MAX, such as 4 or 2:4");
  return nodes;
}

absl::StatusOr<ProcessesPerNode> ParseProcessesPerNode(const std::string& text) {
  using Kind = ProcessesPerNode::Kind;
  ProcessesPerNode nproc;
  if (ReadInteger(text, nproc.count)) return nproc;
  nproc.count = 1;
  if (absl::StartsWith(text, "gpu:")) {
    nproc.kind = Kind::kGpuList;
    for (absl::string_view gpu : absl::StrSplit(text.substr(4), ',')) {
      nproc.gpus.emplace_back(absl::StripAsciiWhitespace(gpu));
      const std::string& id = nproc.gpus.back();
      const bool is_uuid = absl::StartsWith(id, "GPU-") || absl::StartsWith(id, "MIG-");
      if (int index = 0; !is_uuid && (!ReadInteger(id, index) || index < 0)) {
        return Expected("GPU ids or UUIDs after gpu:, such as gpu:1,3");
      }
    }
    return nproc;
  }
  constexpr std::array<std::pair<const char*, Kind>, 3> kKinds = {
      {{"auto", Kind::kAuto}, {"cpu", Kind::kCpu}, {"gpu", Kind::kGpu}}};
  absl::StatusOr<Kind> kind = Choose(text, kKinds);
  if (!kind.ok()) return Expected("a number, auto, cpu, gpu, or chosen GPUs such as gpu:1,3");
  nproc.kind = *kind;
  return nproc;
}

absl::StatusOr<RendezvousBackend> ParseBackend(const std::string& text) {
  if (text == "etcd-v2") {
    return absl::InvalidArgumentError(
        "the version 2 interface of etcd is gone; use c10d, or musterd for many jobs");
  }
  if (text == "etcd") {
    return absl::InvalidArgumentError("not in this version; use c10d, or musterd for many jobs");
  }
  constexpr std::array<std::pair<const char*, RendezvousBackend>, 3> kBackends = {
      {{"static", RendezvousBackend::kStatic},
       {"c10d", RendezvousBackend::kC10d},
       {"muster", RendezvousBackend::kMuster}}};
  return Choose(text, kBackends);
}

absl::StatusOr<std::string> ParseHost(const std::string& text) {
  std::string host = text;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (!IsHost(host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text), "' is no host name and no address"));
  }
  return host;
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text, int default_port) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  constexpr char kExpected[] = "HOST[:PORT], such as node1:29400 or [::1]:29400";
  if (text.find('/') != std::string::npos) return Expected(kExpected);
  if (absl::StartsWith(text, "[")) {
    const size_t close = text.find(']');
    if (close == std::string::npos || first > close ||
        (close + 1 < text.size() && text[close + 1] != ':')) {
      return Expected("[IPv6 address]:port");
    }
    const std::string port =
        close + 1 == text.size() ? absl::StrCat(default_port) : text.substr(close + 2);
    return MakeEndpoint(text.substr(1, close - 1), port);
  }
  if (first == std::string::npos) return MakeEndpoint(text, absl::StrCat(default_port));
  if (first == last) return MakeEndpoint(text.substr(0, first), text.substr(first + 1));
  if (IsHost(text)) return Endpoint{.host = text, .port = default_port};
  if (IsHost(text.substr(0, last))) {
    return Expected(absl::StrCat("brackets around an IPv6 address with a port: [",
                                 text.substr(0, last), "]", text.substr(last)));
  }
  return Expected(kExpected);
}

absl::StatusOr<StreamSelection> ParseStreamSelection(const std::string& text) {
  constexpr char kExpected[] =
      "0 (none), 1 (stdout), 2 (stderr), 3 (both), or one of these for each local rank, such as "
      "0:3,11:1";
  StreamSelection selection;
  if (ReadStreamSet(text, selection.all)) return selection;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int local_rank = 0;
    StreamSet streams = StreamSet::kNone;
    if (!ReadInteger(parts.first, local_rank) || local_rank < 0 ||
        !ReadStreamSet(parts.second, streams)) {
      return Expected(kExpected);
    }
    if (!selection.by_local_rank.emplace(local_rank, streams).second) {
      return absl::InvalidArgumentError(absl::StrCat("names local rank ", local_rank, " twice"));
    }
  }
  return selection;
}

absl::StatusOr<std::vector<int>> ParseLocalRanks(const std::string& text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    int rank = 0;
    if (!ReadInteger(absl::StripAsciiWhitespace(item), rank) || rank < 0) {
      return Expected("local ranks with commas between them, such as 0,3");
    }
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::StatusOr<std::vector<std::string>> ParseFilters(const std::string& text) {
  std::vector<std::string> filters;
  if (text.empty()) return filters;
  filters.emplace_back();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back().push_back(text[i]);
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back().push_back(',');
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text) {
  std::vector<int> signals;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    MUSTER_ASSIGN_OR_RETURN(int signal, ParseSignal(item));
    if (std::find(signals.begin(), signals.end(), signal) == signals.end()) {
      signals.push_back(signal);
    }
  }
  return signals;
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return Expected("seconds, or a time with its unit such as 500ms, 30s or 10m");
  }
  if (std::isnan(seconds) || duration == absl::InfiniteDuration() ||
      duration == -absl::InfiniteDuration()) {
    return Expected("a time with an end, such as 30, 500ms or 10m");
  }
  return absl::Trunc(duration, absl::Microseconds(1));
}

absl::StatusOr<int> ParseInteger(const std::string& text) {
  int value = 0;
  if (!ReadInteger(text, value)) return Expected("a whole number");
  return value;
}

absl::StatusOr<double> ParseNumber(const std::string& text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return Expected("a number");
  return value;
}

absl::StatusOr<std::string> ParseText(const std::string& text) { return text; }

absl::StatusOr<bool> ParseBool(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (lower == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (lower == no) return false;
  }
  return Expected("1 or 0 (true, false, yes, no, on and off are understood too)");
}

absl::StatusOr<PortRange> ParsePortRange(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  PortRange ports;
  if (parts.size() != 2 || !ReadInteger(parts[0], ports.first) ||
      !ReadInteger(parts[1], ports.last) || ports.first < 1) {
    return Expected("A-B with 1 <= A <= B <= 65535, such as 30000-30100");
  }
  return ports;
}

absl::StatusOr<NumaBinding> ParseNumaBinding(const std::string& text) {
  constexpr std::array<std::pair<const char*, NumaBinding>, 6> kBindings = {
      {{"node", NumaBinding::kNode},
       {"socket", NumaBinding::kSocket},
       {"exclusive", NumaBinding::kExclusive},
       {"core-complex", NumaBinding::kCoreComplex},
       {"core_complex", NumaBinding::kCoreComplex},
       {"none", NumaBinding::kNone}}};
  return Choose(text, kBindings);
}

absl::StatusOr<ConsoleMode> ParseConsoleMode(const std::string& text) {
  constexpr std::array<std::pair<const char*, ConsoleMode>, 3> kModes = {
      {{"all", ConsoleMode::kAll}, {"rank0", ConsoleMode::kRank0}, {"none", ConsoleMode::kNone}}};
  return Choose(text, kModes);
}

}  // namespace muster::launcher
