#include "agent/watch/torch_watch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/watch/python_stack.h"
#include "agent/watch/torch_hook.h"
#include "agent/watch/torch_socket.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kAskInterval = absl::Seconds(2);
constexpr absl::Duration kAskTime = absl::Milliseconds(1500);
// An answer costs a rank 5 ms: one that has answered the same so often is asked more rarely, with
// twice the time between two questions after each more.
constexpr int kSameAnswersMax = 8;
constexpr absl::Duration kAskIntervalMax = absl::Seconds(10);
// The time between two readings of when ranks came to their collectives.
constexpr absl::Duration kArrivalWindow = absl::Seconds(10);
constexpr absl::Duration kStackTime = absl::Seconds(1);
// A lane that takes longer than its questions may is stuck.
constexpr absl::Duration kLaneTime = absl::Seconds(1);
// A Python that does not let go of its lock answers nothing, however often it is asked: after so
// many misses in a row its stack is read from outside, and it is asked again after a while.
constexpr int kStacksMissedMax = 3;
constexpr absl::Duration kStacksMissedPause = absl::Seconds(10);

std::vector<absl::StatusOr<TorchAnswer>> AskAll(const std::vector<std::string>& sockets,
                                                const char* handler, absl::Duration time) {
  std::vector<TorchQuestion> questions;
  for (const std::string& socket : sockets) questions.push_back({socket, handler});
  return AskTorch(questions, MonoNow() + time);
}

struct Recorders {
  pid_t pid = 0;
  TorchDumps dumps;
};

// Returns what each socket's recorders say. NCCL has a recorder of its own, and versions of PyTorch
// differ in which handler they have, so one answer of the two is enough.
//
// Errors: AskTorch's, for a socket that answers neither.
std::vector<absl::StatusOr<Recorders>> AskRecorders(const std::vector<std::string>& sockets,
                                                    absl::Duration time) {
  constexpr std::array<const char*, 2> kHandlers = {"fr_trace_json", "dump_nccl_trace_json"};
  std::vector<TorchQuestion> questions;
  for (const std::string& socket : sockets) {
    for (const char* handler : kHandlers) questions.push_back({socket, handler});
  }
  std::vector<absl::StatusOr<TorchAnswer>> answers = AskTorch(questions, MonoNow() + time);
  std::vector<absl::StatusOr<Recorders>> out;
  for (size_t i = 0; i < answers.size(); i += kHandlers.size()) {
    Recorders recorders;
    for (size_t of = i; of < i + kHandlers.size(); ++of) {
      if (!answers[of].ok()) continue;
      recorders.pid = answers[of]->pid;
      recorders.dumps.push_back(std::move(answers[of]->body));
    }
    if (recorders.dumps.empty()) {
      out.push_back(answers[i].status());
    } else {
      out.push_back(std::move(recorders));
    }
  }
  return out;
}

// Reads and writes that a process has called for, with sockets; proc(5). 0 if it cannot be read.
int64_t CountIo(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/io"));
  std::string name;
  int64_t value = 0;
  int64_t total = 0;
  while (file >> name >> value) {
    if (name == "syscr:" || name == "syscw:") total += value;
  }
  return total;
}

// How often the main thread has waited; proc(5). 0 if it cannot be read.
int64_t CountWaits(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string name;
  while (file >> name) {
    int64_t value = 0;
    if (name == "voluntary_ctxt_switches:" && file >> value) return value;
  }
  return 0;
}

}  // namespace

void TorchWatch::StartRound(int first_rank, std::vector<std::string> sockets) {
  ++round_;
  is_asking_ = false;
  next_ask_ = MonoTime();
  known_ = {.first_rank = first_rank};
  for (std::string& socket : sockets) known_.sources.push_back({.socket = std::move(socket)});
}

void TorchWatch::Tick(MonoTime now, bool is_somebody_silent) {
  if (is_asking_ || known_.sources.empty() || (now < next_ask_ && !is_somebody_silent)) return;
  is_asking_ = true;
  aside_.Run<Known>(
      2 * kAskTime + kStackTime + kLaneTime,
      [known = known_, is_somebody_silent, now]() mutable {
        Ask(known, is_somebody_silent, now);
        return std::move(known);
      },
      [this, round = round_, began = now](std::optional<Known> known) {
        if (round != round_) return;
        is_asking_ = false;
        next_ask_ = began + kAskInterval;
        if (known) {
          known_ = *std::move(known);
        } else {
          ForgetRanks();
        }
      });
}

void TorchWatch::ForgetRanks() {
  for (Source& source : known_.sources) source.rank.reset();
}

const TorchRank* TorchWatch::Find(int local_rank) const {
  if (local_rank < 0 || local_rank >= static_cast<int>(known_.sources.size())) return nullptr;
  const std::optional<TorchRank>& rank = known_.sources[local_rank].rank;
  return rank ? &*rank : nullptr;
}

std::vector<hangs::GroupArrivals> TorchWatch::ArrivalsBefore(MonoTime now) const {
  std::vector<hangs::GroupArrivals> groups = known_.arrivals.groups;
  const absl::Duration since = now - known_.arrivals.read_at;
  for (hangs::GroupArrivals& group : groups) {
    for (hangs::ArrivalRow& row : group.rows) {
      for (absl::Duration* ago : {&row.last_ago, &row.second_ago, &row.first_ago}) *ago += since;
    }
  }
  return groups;
}

TorchWatch::MoveCheck TorchWatch::MakeMoveCheck() const {
  std::vector<std::string> sockets;
  std::vector<uint64_t> before;
  for (const Source& source : known_.sources) {
    if (!source.rank) continue;
    sockets.push_back(source.socket);
    before.push_back(source.rank->records.fingerprint);
  }
  return [sockets, before] {
    const auto answers = AskRecorders(sockets, kAskTime);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (absl::IsUnavailable(answers[i].status())) return true;
      if (!answers[i].ok()) continue;
      if (FingerprintOfTorch(answers[i]->dumps) != before[i]) return true;
    }
    return false;
  };
}

void TorchWatch::AskIfMoved(MoveCheck check, absl::AnyInvocable<void(bool)> then) {
  aside_.Run<bool>(kAskTime + kLaneTime, std::move(check),
                   [then = std::move(then)](std::optional<bool> has_moved) mutable {
                     then(has_moved.value_or(false));
                   });
}

void TorchWatch::AskLastCalls(int first_rank, absl::Duration time,
                              absl::AnyInvocable<void(std::vector<hangs::RankCalls>)> then) {
  using Calls = std::vector<hangs::RankCalls>;
  auto ask = [sources = known_.sources, first_rank, time] {
    std::vector<std::string> sockets;
    for (const Source& source : sources) sockets.push_back(source.socket);
    const auto answers = AskRecorders(sockets, time);
    const MonoTime now = MonoNow();
    Calls ranks;
    for (size_t i = 0; i < sources.size(); ++i) {
      TorchDumps dumps;
      absl::Duration age;
      if (answers[i].ok()) {
        dumps = answers[i]->dumps;
      } else if (auto last_words = ReadAnswerFile(TorchLastWordsPath(sockets[i]))) {
        dumps.push_back(*std::move(last_words));
      } else if (sources[i].dumps != nullptr) {
        dumps = *sources[i].dumps;
        age = now - sources[i].dumps_read_at;
      }
      if (dumps.empty()) continue;
      absl::StatusOr<TorchRecords> records = ReadTorchRecorders(dumps);
      if (!records.ok()) continue;
      ranks.push_back({.rank = first_rank + static_cast<int>(i),
                       .age = age,
                       .calls = std::move(records->last_calls)});
    }
    return ranks;
  };
  aside_.Run<Calls>(time + kLaneTime, std::move(ask),
                    [then = std::move(then)](std::optional<Calls> calls) mutable {
                      then(calls ? *std::move(calls) : Calls());
                    });
}

bool TorchWatch::HasServed() const {
  return std::any_of(known_.sources.begin(), known_.sources.end(), [](const Source& source) {
    return !source.socket.empty() && access(source.socket.c_str(), F_OK) == 0;
  });
}

// --- On the lane

void TorchWatch::TakeRecords(Source& source, absl::string_view waits, bool in_full) {
  TorchRank& rank = *source.rank;
  if (in_full || rank.records.groups.empty()) {
    absl::StatusOr<TorchRecords> records = ReadTorchRecorders(*source.dumps);
    if (!records.ok()) return;
    rank.records = *std::move(records);
  } else {
    rank.records.fingerprint = FingerprintOfTorch(*source.dumps);
    rank.records.has_pending = false;
  }
  rank.answers = true;
  rank.waits = ReadTorchWaits(waits);
  rank.token = rank.records.fingerprint;
  const TorchGroup& new_groups = rank.waits.new_groups;
  rank.token += 2 * static_cast<uint64_t>(new_groups.num_issued);
  const bool waits_in_one =
      !new_groups.operations.empty() && new_groups.operations.back().is_pending();
  rank.token += waits_in_one ? 1 : 0;
  // What is not recorded shows by what it moves.
  if (rank.records.has_unrecorded) {
    rank.token += static_cast<uint64_t>(CountIo(rank.pid)) << 20;
  }
  if (source.has_rpc) rank.token += static_cast<uint64_t>(CountWaits(rank.pid)) << 20;
}

// Counts what `source` has answered, and says when it is asked again.
void TorchWatch::Schedule(Source& source, bool is_same, bool in_full, MonoTime now) {
  source.num_same = is_same && in_full ? source.num_same + 1 : 0;
  absl::Duration pause;
  for (int i = kSameAnswersMax; i < source.num_same && pause < kAskIntervalMax; ++i) {
    pause = std::min(std::max(2 * pause, 2 * hangs::kWatchInterval), kAskIntervalMax);
  }
  source.next_ask = now + pause;
}

void TorchWatch::Ask(Known& known, bool in_full, MonoTime due) {
  std::vector<std::string> sockets;
  for (const Source& source : known.sources) {
    const bool is_due = !in_full || due >= source.next_ask;
    sockets.push_back(is_due ? source.socket : "");
  }
  const std::vector<std::string> asked = sockets;
  const MonoTime asked_at = MonoNow();
  auto recorders = AskRecorders(sockets, kAskTime);
  const MonoTime now = MonoNow();
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (!recorders[i].ok()) sockets[i].clear();
  }
  const auto waits = AskAll(sockets, "wait_counter_values", kAskTime);
  std::vector<bool> is_still(known.sources.size(), false);
  for (size_t i = 0; i < known.sources.size(); ++i) {
    Source& source = known.sources[i];
    if (asked[i].empty()) continue;
    if (source.rank) source.rank->answers = false;
    // It ends, or never began.
    if (absl::IsUnavailable(recorders[i].status())) source.rank.reset();
    if (!recorders[i].ok()) continue;
    if (!source.rank) source.rank.emplace();
    source.rank->pid = recorders[i]->pid;
    source.rank->asked_at = asked_at;
    source.dumps = std::make_shared<const TorchDumps>(std::move(recorders[i]->dumps));
    source.dumps_read_at = now;
    const uint64_t before = source.rank->token;
    TakeRecords(source, waits[i].ok() ? waits[i]->body : "", in_full);
    is_still[i] = source.rank->token == before;
    Schedule(source, is_still[i], in_full, due);
    if (is_still[i]) continue;
    source.rank->python = {};
    source.rank->times_in_function = 0;
    source.function.clear();
  }
  if (in_full) AskStacks(known, is_still, now);
  TakeArrivals(known, now);
}

void TorchWatch::TakeArrivals(Known& known, MonoTime now) {
  if (now - known.arrivals.read_at < kArrivalWindow) return;
  const absl::Time wall = absl::Now();
  std::vector<RankRecords> ranks;
  for (size_t i = 0; i < known.sources.size(); ++i) {
    const Source& source = known.sources[i];
    if (!source.rank || !source.rank->answers || source.dumps == nullptr) continue;
    absl::StatusOr<TorchRecords> records = ReadTorchRecorders(*source.dumps);
    if (!records.ok()) continue;
    ranks.push_back({known.first_rank + static_cast<int>(i), *std::move(records)});
  }
  if (ranks.empty()) return;
  known.arrivals = {.num_windows = known.arrivals.num_windows + 1,
                    .read_at = MonoNow(),
                    .groups = FindArrivals(ranks, wall)};
}

// Asks for the stacks of those that stand still, each time: a stack alone tells that what no
// recorder has goes on, or a program that computes.
void TorchWatch::AskStacks(Known& known, const std::vector<bool>& is_still, MonoTime now) {
  std::vector<std::string> sockets;
  for (size_t i = 0; i < known.sources.size(); ++i) {
    const Source& source = known.sources[i];
    const bool is_asked = is_still[i] && source.rank->answers && now >= source.next_stack;
    sockets.push_back(is_asked ? TorchPythonPath(source.socket) : "");
  }
  const auto answers = AskAll(sockets, "python", kStackTime);
  for (size_t i = 0; i < sockets.size(); ++i) {
    Source& source = known.sources[i];
    if (!is_still[i] || !source.rank->answers) continue;
    if (answers[i].ok()) {
      source.stacks_missed = 0;
      TorchPython python = ReadTorchPython(answers[i]->body);
      source.has_rpc = python.has_rpc;
      for (const auto& [name, ranks] : python.members) known.members[name] = ranks;
      TakeStack(source, std::move(python));
      continue;
    }
    if (!sockets[i].empty() && ++source.stacks_missed < kStacksMissedMax) continue;
    if (!sockets[i].empty()) source.next_stack = now + kStacksMissedPause;
    absl::StatusOr<std::vector<std::string>> frames = ReadPythonStack(source.rank->pid);
    TakeStack(source, {.frames = std::move(frames).value_or(std::vector<std::string>())});
  }
}

void TorchWatch::TakeStack(Source& source, TorchPython python) {
  source.rank->python = std::move(python);
  const std::vector<std::string>& frames = source.rank->python.frames;
  std::string function;
  for (size_t i = 0; i < frames.size() && !absl::StartsWith(frames[i], hangs::kThreadFrame); ++i) {
    // A loop changes the line of the function itself.
    absl::StrAppend(&function, i == 0 ? frames[i].substr(0, frames[i].rfind(':')) : frames[i],
                    "\n");
  }
  const bool is_same = !function.empty() && function == source.function;
  source.rank->times_in_function = is_same ? source.rank->times_in_function + 1 : 1;
  source.function = std::move(function);
}

}  // namespace muster::agent
