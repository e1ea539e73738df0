#include "launcher/line/flag_values.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Expected;
using command_line::ParseChoice;

bool ReadInteger(absl::string_view text, int& out) {
  const absl::StatusOr<int> value = command_line::ParseInteger(std::string(text));
  if (value.ok()) out = *value;
  return value.ok();
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
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a signal that can be handled; expected ", absl::StrJoin(names, ", ")));
}

bool ReadStreamSet(absl::string_view text, StreamSet& out) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return false;
  out = static_cast<StreamSet>(text[0] - '0');
  return true;
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
  if (text == "xpu") {
    return absl::InvalidArgumentError(
        "Intel's GPUs are not counted in this version; give the number of workers "
        "(torch.xpu.device_count() is that of the GPUs)");
  }
  absl::StatusOr<Kind> kind =
      ParseChoice<Kind>(text, {{"auto", Kind::kAuto}, {"cpu", Kind::kCpu}, {"gpu", Kind::kGpu}});
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
  return ParseChoice<RendezvousBackend>(text, {{"static", RendezvousBackend::kStatic},
                                               {"c10d", RendezvousBackend::kC10d},
                                               {"muster", RendezvousBackend::kMuster}});
}

absl::StatusOr<ScaleUp> ParseScaleUp(const std::string& text) {
  return ParseChoice<ScaleUp>(
      text,
      {{"now", ScaleUp::kNow}, {"checkpoint", ScaleUp::kCheckpoint}, {"never", ScaleUp::kNever}});
}

absl::StatusOr<NetworkUse> ParseNetworkUse(const std::string& text) {
  constexpr size_t kInterfaceNameMax = 15;  // IFNAMSIZ, less its end
  if (text == "auto") return NetworkUse{};
  if (text == "off") return NetworkUse{.kind = NetworkUse::Kind::kOff};
  if (text == "require") return NetworkUse{.kind = NetworkUse::Kind::kRequire};
  const bool is_name = !text.empty() && text.size() <= kInterfaceNameMax &&
                       text.find_first_of("/ ,=^") == std::string::npos;
  if (is_name) return NetworkUse{.kind = NetworkUse::Kind::kNamed, .interface = text};
  return absl::InvalidArgumentError("expected auto, off, require or the name of one interface");
}

absl::StatusOr<StoreClients> ParseStoreClients(const std::string& text) {
  return ParseChoice<StoreClients>(text,
                                   {{"all", StoreClients::kAll}, {"nodes", StoreClients::kNodes}});
}

absl::StatusOr<WatchMode> ParseWatchMode(const std::string& text) {
  return ParseChoice<WatchMode>(text, {{"auto", WatchMode::kAuto},
                                       {"off", WatchMode::kOff},
                                       {"report", WatchMode::kReport},
                                       {"restart", WatchMode::kRestart},
                                       {"replace", WatchMode::kReplace}});
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

absl::StatusOr<std::vector<std::string>> ParseModules(const std::string& text) {
  std::vector<std::string> modules;
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    for (absl::string_view part : absl::StrSplit(name, '.')) {
      const bool is_name = !part.empty() && !absl::ascii_isdigit(part.front()) &&
                           std::all_of(part.begin(), part.end(), [](unsigned char c) {
                             return absl::ascii_isalnum(c) || c == '_' || c >= 0x80;
                           });
      if (!is_name) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", name,
                         "\" is not the name of a Python module; expected auto, or a list "
                         "such as torch,numpy"));
      }
    }
    if (std::find(modules.begin(), modules.end(), name) == modules.end()) {
      modules.emplace_back(name);
    }
  }
  if (modules.size() > 1 && std::find(modules.begin(), modules.end(), "auto") != modules.end()) {
    return absl::InvalidArgumentError("auto cannot be combined with names of modules");
  }
  return modules;
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
  return ParseChoice<NumaBinding>(text, {{"node", NumaBinding::kNode},
                                         {"socket", NumaBinding::kSocket},
                                         {"exclusive", NumaBinding::kExclusive},
                                         {"core-complex", NumaBinding::kCoreComplex},
                                         {"core_complex", NumaBinding::kCoreComplex},
                                         {"none", NumaBinding::kNone}});
}

absl::StatusOr<OmpThreads> ParseOmpThreads(const std::string& text) {
  if (text == "auto") return OmpThreads{.kind = OmpThreads::Kind::kShare};
  if (text == "none") return OmpThreads{.kind = OmpThreads::Kind::kUntouched};
  int count = 0;
  if (absl::SimpleAtoi(text, &count) && count >= 1) {
    return OmpThreads{.kind = OmpThreads::Kind::kCount, .count = count};
  }
  return absl::InvalidArgumentError("expected a number of threads from 1, auto, or none");
}

absl::StatusOr<ConsoleMode> ParseConsoleMode(const std::string& text) {
  return ParseChoice<ConsoleMode>(text, {{"auto", ConsoleMode::kAuto},
                                         {"raw", ConsoleMode::kRaw},
                                         {"prefix", ConsoleMode::kPrefix},
                                         {"rank0", ConsoleMode::kRank0},
                                         {"none", ConsoleMode::kNone}});
}

}  // namespace muster::launcher
