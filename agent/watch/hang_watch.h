// Watches the workers of this node for hangs: reads their progress boards every second, and what
// PyTorch tells of them (torch_watch.h), asks PyTorch's store who has not come
// (verdict/gatherings.h), gives notice of who is waited for, and at a verdict gathers evidence,
// writes the report and ends the workers at fault, if it may. What silence means is decided by
// rendezvous/verdict/hang_watch_core.h.
//
// In a round over several nodes the server decides, by the same core
// (rendezvous/verdict/job_watch.h): this node tells it who is silent, answers what it asks, and
// performs what it says (hang_watch_orders.cc). Where a rank has aborted all are asked what they
// called last (hang_watch_aborts.cc).
//
// Evidence comes before any signal, and is read aside, since looking into a process can block; the
// loop does not wait for it (rank_looks.h, torch_watch.h).
//
// One event loop, loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "agent/machine/kernel_log.h"
#include "agent/process/board_memory.h"
#include "agent/watch/board_evidence.h"
#include "agent/watch/hangs_said.h"
#include "agent/watch/incident.h"
#include "agent/watch/process_look.h"
#include "agent/watch/quiet_ranks.h"
#include "agent/watch/rank_looks.h"
#include "agent/watch/report_file.h"
#include "agent/watch/step_rate.h"
#include "agent/watch/torch_watch.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/verdict/gatherings.h"
#include "rendezvous/verdict/hang_watch_core.h"
#include "rendezvous/verdict/last_calls.h"
#include "rendezvous/verdict/late_ranks.h"
#include "rendezvous/verdict/stragglers.h"
#include "rendezvous/verdict/watch_messages.h"

namespace muster::agent {

struct HangWatchOptions {
  bool is_on = true;
  bool ends_workers = false;  // at a verdict; else it is only reported
  bool may_replace = false;   // the server may end this node's part in the job instead
  absl::Duration hang_timeout = absl::Minutes(10);
  absl::Duration grace = absl::Seconds(30);  // --shutdown_timeout
  std::string run_id;
  std::string node;
  std::string report_directory;
  // Told what it says, after it was said; empty: nobody is.
  std::function<void(WatchEvent event, const std::string& text)> on_said;
};

using StoreAnswer = std::function<void(std::vector<verdict::Gathering>)>;
using StoreQuestion = std::function<void(StoreAnswer)>;

// What is watched in one round.
struct WatchedRound {
  Round round;
  int restart_count = 0;
  int num_nodes = 1;
  int first_rank = 0;
  int world_size = 1;
  std::vector<std::optional<BoardMemory>> boards;  // by local rank; nothing: could not be made
  std::vector<std::string> torch_servers;          // by local rank; see torch_hook.h
  // Asks PyTorch's store; the answer comes on any thread, or never. Empty on nodes that do not
  // serve it.
  StoreQuestion ask_store;
  // Pairs of nodes that did not reach each other before the workers started; more may become known.
  // Empty: there are none.
  std::function<std::vector<std::string>()> network_faults;
};

class HangWatch {
 public:
  // `end_worker` ends a worker by SIGKILL; `why` is for its failure. `tell_server` is for rounds
  // over several nodes.
  HangWatch(asio::io_context& loop, HangWatchOptions options,
            std::function<void(int pid, const std::string& why)> end_worker,
            std::function<void(verdict::NodeWord)> tell_server);
  ~HangWatch();

  // The next round is agreed on; StartRound follows when its workers are being started.
  void OnReformed() { AddMilestone(kReformed); }
  void StartRound(WatchedRound round);
  void OnSpawned(int local_rank, int pid);
  // `is_well`: with 0.
  void OnEnded(int local_rank, bool is_well);
  // It has ended by SIGABRT, of its own accord: PyTorch of the others, on all nodes, is asked what
  // they called last, which they forget as they end, and it is said. Gloo aborts the rank that
  // receives another size than it expects, which need not be the one at fault.
  void OnAborted(int local_rank);
  // Calls `then`, at once or, while the workers here are asked, after it; in order. After a second
  // at most, with the usual grace (verdict::TimesForLastCalls).
  void BeforeSignal(std::function<void()> then);
  // The same, and where a worker here has aborted after it has been said what those of all nodes
  // called.
  void BeforeReport(std::function<void()> then);
  // Adds to the failure of a worker of this node what is known of whose call has ended it
  // (verdict::TellWhoEnded). To be asked when BeforeReport lets go.
  void TellWhoEnded(WorkerFailure& failure) const;
  // The workers are being stopped: from now on their silence means nothing.
  void OnStopping();
  // A closer look at the workers of this node, of one rank or of all, for people who ask: as at a
  // verdict, whether or not the watch is on. `then` is called once, from the loop, unless this
  // object goes before.
  void LookAtRanks(std::optional<int> rank,
                   absl::AnyInvocable<void(std::vector<verdict::RankReport>)> then);
  // What each worker of the round is doing now, without a closer look.
  std::vector<WatchedRank> WatchedRanks();
  // How far they are, by what they have marked.
  verdict::NodeProgress Progress() const;
  // The steps of the ranks by local rank; -1: not known.
  std::vector<int64_t> Steps() const;
  // A notice or a verdict stands.
  bool IsSomebodyAwaited() const { return saying_.standing != verdict::StandingKind::kNone; }
  // An order of the server.
  void OnOrder(const verdict::WatchOrder& order);
  // A report lies in the report directory.
  bool HasWritten() const { return reports_.HasNamed(); }

 private:
  // What the ranks here called last, asked once a round, where one has aborted.
  struct Aborts {
    std::vector<int> ranks;         // of this node, that have
    std::optional<MonoTime> until;  // nothing: nobody has waited yet
    bool is_asking = false;
    std::optional<std::vector<verdict::RankCalls>> calls;
    bool server_asks = false;    // for `calls`
    bool awaits_server = false;  // what those of all nodes called
    bool is_said = false;
    verdict::AbortReport report;  // what was said
  };
  struct Worker {
    int pid = 0;
    bool has_ended = false;
    std::optional<ProcessLook> look;  // the last one
    std::optional<ProcessLook> look_before;
    // What it has used as of the last look, and until when it counts as busy: what writes a
    // checkpoint pauses between two files.
    std::optional<ProcessUse> use;
    MonoTime busy_until;
  };
  // Who is slow in a job on one node; else the server knows it.
  struct SlowRanks {
    verdict::Stragglers by_marks;
    verdict::LateRanks by_calls;
    int64_t arrival_window = 0;  // the last that was judged
  };
  // How far all are that are known here, to be compared later.
  struct Position {
    std::vector<verdict::Pulse> pulses;
    std::vector<std::vector<int>> missing;  // at PyTorch's store
  };

  void Arm();
  void Tick();
  // One question at a time.
  void AskStore();
  std::vector<verdict::Pulse> TakePulses() const;
  // By rank; nothing if a debugger holds one of them, since time means nothing then.
  std::optional<std::vector<WatchedRank>> LookAtAll(MonoTime now);
  WatchedRank LookAt(int local_rank, Worker& worker, MonoTime now);
  static bool IsBusy(int pid, Worker& worker, MonoTime now);
  void LookForLateRanks(MonoTime now);
  void AddTorch(int local_rank, WatchedRank& out) const;
  bool IsQuietPossible(const verdict::Pulse& pulse) const;
  // Once per window.
  void LookForQuietRanks(const std::vector<verdict::Pulse>& pulses, MonoTime now);
  void Say(const QuietRanks::Change& change, const std::vector<RankReport>& quiet) const;
  void Perform(const verdict::Notice& notice, const std::vector<WatchedRank>& watched);
  void Perform(const verdict::Recovery& recovery, const std::vector<WatchedRank>& watched);
  void Perform(const verdict::Verdict& verdict, const std::vector<WatchedRank>& watched);
  static std::vector<RankReport> MakeReports(const std::vector<WatchedRank>& watched);
  // Evidence, and whether PyTorch of somebody has moved meanwhile.
  using OnCloserLook = absl::AnyInvocable<void(std::vector<RankReport> ranks, bool goes_on)>;
  void LookCloser(std::vector<RankReport> ranks, OnCloserLook then);
  // Both times ago.
  Incident MakeIncident(verdict::Diagnosis diagnosis, std::string reason,
                        absl::Duration since_detected, absl::Duration since_decided);
  void OnEvidence(Incident incident, bool has_moved);
  std::vector<int> PidsToEnd(const Incident& incident) const;
  std::vector<int> PidsOf(const std::vector<int>& ranks) const;
  // Prints and writes it, then ends the workers of `pids`. `ends_attempt`: here or elsewhere.
  void Report(Incident incident, const std::vector<int>& pids, bool ends_attempt);
  void AddMilestone(absl::string_view what);
  void WriteReport();

  // --- hang_watch_orders.cc
  verdict::NodeSummary MakeSummary();
  verdict::NodePaces MakePaces() const;
  void Stand(verdict::StandingKind kind, const std::string& text);
  void Obey(const verdict::AskDetails& order);
  void Obey(const verdict::AskStacks& order);
  void Obey(const verdict::SayNotice& order);
  void Obey(const verdict::SayRecovery& order);
  void Obey(const verdict::SayVerdict& order);
  void Obey(const verdict::SaySlow& order);
  void Obey(const verdict::AskArrivals& order);
  std::vector<int> PidsToEnd(const verdict::SayVerdict& order);
  Position WhereTheyAre();
  bool HaveMovedSince(const Position& before);
  void SayThatTheyWait(const std::string& text, verdict::Finding finding);
  void SayThatTheyGoOn(const std::string& text);
  void TellWhatWasSaid(WatchEvent event, const std::string& text) const;

  // --- hang_watch_aborts.cc
  void Obey(const verdict::AskLastCalls& order);
  void Obey(const verdict::SayAborts& order);
  void ForgetAborts();
  void ArmAbortTimer();
  void AskLastCalls();
  void OnLastCalls(std::vector<verdict::RankCalls> calls);
  void AnswerServer();
  // As far as this node knows it, unless the server is to say it.
  void SayOwnAborts();
  void SayAborts(verdict::AbortReport report);
  // What has waited, and need not any more.
  void LetGo();

  // Constant after construction.
  const HangWatchOptions options_;
  const std::function<void(int pid, const std::string& why)> end_worker_;
  const std::function<void(verdict::NodeWord)> tell_server_;

  // Loop thread only.
  const LoopMailbox mailbox_;
  asio::steady_timer timer_;
  asio::steady_timer abort_timer_;
  verdict::HangWatchCore core_;
  verdict::GatheringWatch gatherings_;
  bool is_asking_store_ = false;
  TorchWatch torch_;
  RankLooks looks_;
  KernelLog kernel_log_;  // since the round began
  QuietRanks quiet_ranks_;
  verdict::PaceMeter pace_meter_;
  SlowRanks slow_;
  WatchedRound round_;
  absl::btree_map<int, Worker> workers_;  // by local rank
  std::vector<std::string> interfaces_;   // that were connected when the round began
  bool is_watching_ = false;
  bool is_somebody_silent_ = false;
  Aborts aborts_;
  std::vector<std::function<void()>> before_signals_;
  std::vector<std::function<void()>> before_reports_;
  HangsSaid saying_;
  StepRate step_rate_;
  bool gathers_evidence_ = false;
  // The last AskStacks, and how far each rank was when it was asked.
  uint64_t asked_ = 0;
  Position when_asked_;
  uint64_t verdict_heard_ = 0;  // question of the last one
  // The last hang, until its ranks are back in a step.
  std::optional<Incident> incident_;
  MonoTime detected_at_;
  std::string report_path_;
  ReportWriter reports_;
};

}  // namespace muster::agent
