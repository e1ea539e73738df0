// The hang watch of a whole job in one thread on a virtual clock: a program of real length in steps
// and groups, the real SilenceMeter of each node and the real JobWatch over all of them. Ranks
// come late to the start or never, of which PyTorch's store tells and some of them nothing; they
// hang, differ and are stopped; boards are wrong; agents stop, do not answer and have clocks that
// jump; nodes are suspended; the server dies and is started again. All of it follows from the seed.
//
// Invariants:
//   W1: a verdict names nobody but ranks that never come, hang, differ, are stopped, or whose board
//       is wrong.
//   W2: a rank that never comes or hangs for ever is judged, once those who look can look again.
//   W3: a server that is started again without its state has back what was learned of silences,
//       once it has heard all nodes.
//   W4: nobody is replaced but nodes of ranks that hang, are stopped or whose board is wrong, once,
//       where the job can do without them and all of them allow it; and then no worker is ended.
//   W5: of an abort every node that is heard is told once, in time, what the ranks of all called
//       that have answered, whether the round is stopped meanwhile or not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/hangs/evidence/gatherings.h"
#include "rendezvous/hangs/judge/job_watch.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

// What happened: a test demands that all of it happens in some seed.
struct WatchCoverage {
  int hangs = 0;
  int mismatches = 0;
  int stops = 0;
  int absences = 0;
  int late_starts = 0;
  int wrong_boards = 0;
  int notices = 0;
  int verdicts = 0;
  int recoveries = 0;
  int unanswered = 0;
  int paused_agents = 0;
  int suspended_nodes = 0;
  int clock_jumps = 0;
  int long_phases = 0;
  int server_restarts = 0;
  int replacements = 0;
  int not_replaced = 0;  // although the node at fault allows it
  int aborts_told = 0;
  int aborts_told_late = 0;  // without the answers of some nodes
  int aborts_at_a_stop = 0;  // the round was stopped before it was told
};

class WatchSim {
 public:
  explicit WatchSim(uint64_t seed);

  // Empty, or the first thing that broke.
  std::string Run(WatchCoverage& coverage);

 private:
  enum class Fault { kNone, kHang, kMismatch, kStop, kAbsence };
  struct Rank {
    int node = 0;
    int64_t calls = 0;  // of its program, so far
    MonoTime comes_at;  // to the start
    bool has_come = false;
    bool tells_start = false;  // that it has come, itself
    MonoTime busy_until;
    bool waits = false;
    bool hangs = false;
    bool is_stopped = false;
    bool has_wrong_board = false;
    Phase phase = Phase::kForward;
    uint64_t token = 1;
    std::map<int, std::vector<hangs::Operation>> called;  // by group, by sequence
  };
  struct Node {
    Incarnation id;
    hangs::SilenceMeter silences;
    absl::Duration clock;      // ahead of the true time
    MonoTime paused_until;     // its agent
    MonoTime suspended_until;  // its agent and its ranks
    MonoTime mute_until;       // answers nothing
    MonoTime next_tick;
    int num_ticks = 0;
    std::optional<std::vector<uint64_t>> tokens_when_asked;
    hangs::GatheringWatch gatherings;  // of the first alone
    bool is_heard = false;             // by this life of the server
    bool may_replace = false;
    std::optional<MonoTime> answers_abort_at;
    bool has_answered_abort = false;
    int num_aborts_told = 0;
  };

  void DrawFaults();
  void RestartServer();
  void CheckWhatIsKnownAgain();
  void RunStart();
  bool IsMute(const Rank& rank) const;
  std::vector<hangs::Gathering> WhoIsMissing() const;
  void RunProgram();
  bool StepRank(int r);
  void FinishComplete(int group, int64_t sequence);
  int GroupOfCall(int rank, int64_t call) const;
  void RunAgents();
  bool IsAwake(const Node& node) const;
  hangs::NodeSummary SummaryOf(Node& node) const;
  hangs::Evidence EvidenceOf(int node);
  std::vector<uint64_t> TokensOf(int node) const;
  void Perform(const hangs::JobWatch::Orders& orders);
  void Obey(int node, const hangs::AskDetails& ask);
  void Obey(int node, const hangs::AskStacks& ask);
  void Obey(int node, const hangs::SayNotice& say);
  void Obey(int node, const hangs::SayRecovery& say);
  void Obey(int node, const hangs::SaySlow& say);
  void Obey(int node, const hangs::AskArrivals& ask);
  void Obey(int node, const hangs::AskLastCalls& ask);
  void Obey(int node, const hangs::SayAborts& say);
  void RunAbort();
  void AnswerAbort(int node);
  void Obey(int node, const hangs::SayVerdict& say);
  void Obey(const hangs::ReplaceNodes& replace);
  bool IsToBlame(int rank) const;

  SimRandom random_;
  const uint64_t seed_;
  MonoTime now_ = MonoTime::At(absl::Hours(1));
  MonoTime end_;
  std::vector<Rank> ranks_;
  std::vector<Node> nodes_;
  std::vector<hangs::Group> groups_;
  std::vector<hangs::WatchedNode> members_;
  hangs::JobWatch watch_;
  hangs::Spares spares_;
  // What the server's last life had learned, until this one is to know it.
  std::optional<hangs::LearnedSilences> learned_before_;
  Fault fault_ = Fault::kNone;
  int faulty_rank_ = -1;
  MonoTime fault_at_;
  bool has_happened_ = false;
  bool is_started_ = false;  // all have come
  bool is_judged_ = false;
  bool has_replaced_ = false;
  int aborted_rank_ = -1;
  MonoTime aborted_at_;
  WatchCoverage seen_;
  std::string last_notice_;
  std::string failure_;
};

}  // namespace muster::simulation
