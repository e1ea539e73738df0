// The diary of one node's part in a job: what its agent has done since it began, and what came of
// it, one JSON object a line. Written beside the logs (agent/sight/job_diary.h), read by
// `muster report` (launcher/sight/job_history.h). deploy/docs/incidents.md describes its form.
//
// Pure values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::status {

inline constexpr int kDiarySchema = 1;
inline constexpr char kDiaryName[] = "diary.jsonl";
// Lines beyond it are left out, and counted in the last.
inline constexpr size_t kDiaryLinesMax = 4096;
inline constexpr size_t kDiaryTextBytesMax = 1000;

// What a node's time is spent on. All of it is one of these.
enum class Spent {
  kForming,    // for the other nodes, and for the rendezvous
  kPreparing,  // a round is agreed on: log files, the network's check, the hook
  kRunning,    // its workers run
  kHung,       // they run, and a notice or a verdict says that somebody is waited for
  kWaiting,    // its workers have ended with 0, those of others run
  kStopping,   // its workers are being ended
  kEnding,     // the job ends
};
inline constexpr std::array kAllSpent = {Spent::kForming, Spent::kPreparing, Spent::kRunning,
                                         Spent::kHung,    Spent::kWaiting,   Spent::kStopping,
                                         Spent::kEnding};
// "forming", "preparing", "running", "hung", "waiting", "stopping", "ending".
absl::string_view ToString(Spent spent);
std::optional<Spent> ParseSpent(absl::string_view text);

// What an entry is about.
inline constexpr char kBegan[] = "began";      // the first: run id, node, nodes wanted
inline constexpr char kTurned[] = "turned";    // to another way to spend time, `spent`
inline constexpr char kRound[] = "round";      // agreed on: its number, ranks and nodes
inline constexpr char kStarted[] = "started";  // all workers of the round here run
inline constexpr char kFailure[] = "failure";  // of a worker here
inline constexpr char kNotice[] = "notice";    // who is waited for
inline constexpr char kVerdict[] = "verdict";  // it is a hang
inline constexpr char kGoesOn[] = "goes_on";   // it was none
inline constexpr char kSaid[] = "said";        // a line of the agent: why a round ends, above all
inline constexpr char kSlow[] = "slow";        // ranks that hold up the others, or do so no longer
inline constexpr char kAbort[] = "abort";      // what the ranks called last
inline constexpr char kSteps[] =
    "steps";                           // how far the ranks are: now and then, and as the round ends
inline constexpr char kEnd[] = "end";  // the last: how the job ended

struct StepOfRank {
  int rank = 0;
  int64_t step = -1;
};

// What a round is like, and which of its ranks are here.
struct RoundShape {
  int num_nodes = 0;
  int first_rank = -1;
  int num_ranks = 0;
  int world_size = 0;
};

// How the workers of a round got their processes.
struct WorkerStarts {
  int kept = 0;    // from the round before
  int forked = 0;  // by the warm process
  int fresh = 0;
  int sum() const { return kept + forked + fresh; }
};

struct DiaryEntry {
  std::string what;
  int64_t unix_millis = 0;
  double after_seconds = 0;  // since the agent began, by a clock that nobody sets
  std::string spent;         // of kTurned
  int64_t round = -1;
  int restart_count = -1;
  int rank = -1;
  int exit_code = -1;
  int signal = 0;
  std::string text;
  std::vector<StepOfRank> steps;
  std::string run_id;  // of kBegan, as the node
  std::string node;
  RoundShape shape;     // of kBegan, as far as it is known then, and of kRound
  WorkerStarts starts;  // of kStarted, whose text says why some are fresh
};

// One line with its end. What is not known, or does not belong to the entry, is left out.
std::string ToJsonLine(const DiaryEntry& entry);
// Lines that are no entries, such as the half of one where an agent was killed, are skipped.
//
// Errors: kInvalidArgument: a schema that this version does not know.
absl::StatusOr<std::vector<DiaryEntry>> ParseDiary(absl::string_view lines);

}  // namespace muster::status
