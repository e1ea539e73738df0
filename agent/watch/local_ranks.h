// The workers of this node in a round, as the hang watch sees them: by their progress boards, by
// what PyTorch tells of them (torch_watch.h), by PyTorch's store, which tells who has not come
// (hangs/evidence/gatherings.h), and by a look at their processes.
//
// One event loop, loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "agent/machine/kernel_log.h"
#include "agent/watch/board_evidence.h"
#include "agent/watch/process_look.h"
#include "agent/watch/step_rate.h"
#include "agent/watch/torch_watch.h"
#include "agent/watch/watched_round.h"
#include "asio/io_context.hpp"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/hangs/evidence/silence_meter.h"
#include "rendezvous/hangs/judge/stragglers.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::agent {

class LocalRanks {
 public:
  // How far all are that are known here, to be compared later.
  struct Position {
    std::vector<hangs::Pulse> pulses;
    std::vector<std::vector<int>> missing;  // at PyTorch's store
  };

  // `node` is this node's name.
  LocalRanks(asio::io_context& loop, std::string node);
  ~LocalRanks();

  void StartRound(WatchedRound round);
  const WatchedRound& round() const { return round_; }
  int RankOf(int local_rank) const { return round_.first_rank + local_rank; }
  void OnSpawned(int local_rank, int pid);
  // `is_well`: with 0.
  void OnEnded(int local_rank, bool is_well);
  bool HaveAllStarted() const { return workers_.size() == round_.boards.size(); }
  bool HaveAllEnded() const;

  // Listens to all of them, once a second; how far each is that has a board.
  std::vector<hangs::Pulse> Tick(MonoTime now);
  const hangs::SilenceMeter& silences() const { return silences_; }
  TorchWatch& torch() { return torch_; }
  const TorchWatch& torch() const { return torch_; }
  // What is known of how far they are and for how long they are silent.
  hangs::NodeSummary Summarize(MonoTime now);
  hangs::NodeProgress Progress() const;
  // The steps they are at, by local rank; -1: not known.
  std::vector<int64_t> Steps() const;
  Position Where();
  bool HaveMovedSince(const Position& before);

  // What each is doing, with a look at its process. Two looks within a moment are one.
  std::vector<WatchedRank> LookAtEach(MonoTime now);
  // The same for evidence; nothing if a debugger holds one of them, since time means nothing then.
  std::optional<std::vector<WatchedRank>> LookAtAll(MonoTime now);
  void AddEvidence(MonoTime now, hangs::NodeDetails& out);
  // Rank, pid, and where its Python is as far as PyTorch tells it, of those of `ranks` that live.
  std::vector<hangs::RankReport> ReportsOf(const std::vector<int>& ranks) const;
  // The worker's process; nothing of one that has ended.
  std::optional<int> PidOf(int rank) const;

 private:
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

  // One question at a time.
  void AskStore();
  std::vector<hangs::Pulse> TakePulses(MonoTime now) const;
  hangs::NodePaces MakePaces() const;
  WatchedRank LookAt(int local_rank, Worker& worker, MonoTime now);
  static void Look(int pid, Worker& worker, MonoTime now);
  static void NoteUse(int pid, Worker& worker, MonoTime now);
  std::string FaultOf(int pid);
  void AddTorch(int local_rank, WatchedRank& out) const;

  const std::string node_;
  const LoopMailbox mailbox_;
  TorchWatch torch_;
  WatchedRound round_;
  absl::btree_map<int, Worker> workers_;  // by local rank
  int num_ended_well_ = 0;                // of these
  hangs::SilenceMeter silences_;
  hangs::GatheringWatch gatherings_;
  bool is_asking_store_ = false;
  hangs::PaceMeter pace_meter_;
  StepRate step_rate_;
  KernelLog kernel_log_;                 // since the round began
  std::vector<std::string> interfaces_;  // that were connected when the round began
};

std::vector<hangs::RankReport> MakeReports(const std::vector<WatchedRank>& watched);

}  // namespace muster::agent
