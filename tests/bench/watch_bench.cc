// What the hang watch costs where nothing hangs, and what one question costs a large job:
//
//   watch_bench [nodes] [ranks of a node]
//
// Agent: looking at the boards of a node and the summary of it, as it is done every second. Wire:
// bytes that a heartbeat carries for it. Server: the summaries of all nodes, and one question to
// all with a rank that hangs.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/watch/board_evidence.h"
#include "proto/watch.pb.h"
#include "rendezvous/hangs/judge/job_watch.h"
#include "rendezvous/hangs/wire/watch_wire.h"

namespace muster::hangs {
namespace {

constexpr Round kRound(1);

size_t BytesOf(const NodeWord& word) {
  proto::WatchWord message;
  rendezvous::Encode(word, &message);
  return message.ByteSizeLong();
}

double Seconds(MonoTime since) { return absl::ToDoubleSeconds(MonoNow() - since); }

NodeSummary SummaryOf(const SilenceMeter& meter) {
  return {.round = kRound,
          .hang_timeout = absl::Minutes(10),
          .silent = Summarize(meter.Silences()),
          .learned = meter.Learned()};
}

// Ranks that do 1000 steps a second, for an hour.
void RunAgent(int num_ranks) {
  constexpr int kTicks = 3600;
  std::vector<std::unique_ptr<ProgressBoard>> boards;
  for (int r = 0; r < num_ranks; ++r) {
    boards.push_back(std::make_unique<ProgressBoard>());
    boards.back()->pid = 1000 + r;
  }
  SilenceMeter meter;
  MonoTime now = MonoTime::At(absl::Hours(1));
  size_t bytes = 0;
  const MonoTime begin = MonoNow();
  for (int i = 0; i < kTicks; ++i) {
    now = now + kWatchInterval;
    std::vector<Pulse> pulses;
    for (int r = 0; r < num_ranks; ++r) {
      boards[r]->num_steps += 1000;
      boards[r]->num_operations += 5000;
      boards[r]->progress = static_cast<uint64_t>(i + 1) << 8 | 1;
      pulses.push_back(agent::MakePulse(r, *boards[r], nullptr, now));
    }
    meter.Listen(pulses, now);
    bytes = BytesOf(SummaryOf(meter));
  }
  std::printf("agent at rest, %d ranks: %.4f %% of a core per rank; a heartbeat carries %d bytes\n",
              num_ranks, 100 * Seconds(begin) / kTicks / num_ranks, static_cast<int>(bytes));
  for (int i = 0; i < 30; ++i) meter.Listen(std::vector<Pulse>(), now = now + kWatchInterval);
  std::vector<RankSilence> silent;
  for (int r = 0; r < num_ranks; ++r) silent.push_back({r, WatchPhase::kStep, absl::Minutes(5)});
  NodeSummary hung = SummaryOf(meter);
  hung.silent = Summarize(silent);
  std::printf("while all of them are silent: %d bytes\n", static_cast<int>(BytesOf(hung)));
}

class Job {
 public:
  Job(int num_nodes, int per_node) : per_node_(per_node), num_ranks_(num_nodes * per_node) {
    std::vector<WatchedNode> nodes;
    for (int n = 0; n < num_nodes; ++n) {
      nodes.push_back({Incarnation(1 + n), absl::StrCat("node", n), n * per_node, per_node});
    }
    watch_.StartRound(kRound, std::move(nodes), now_);
  }

  NodeSummary SummaryOf(int node, bool is_silent) const {
    NodeSummary summary{.round = kRound, .hang_timeout = absl::Minutes(10)};
    summary.learned.counts = {{WatchPhase::kStep, 11, 1000}};
    if (is_silent) {
      summary.silent = {{node * per_node_, per_node_, WatchPhase::kStep, absl::Minutes(1)}};
    }
    return summary;
  }

  // Eight groups of all ranks; all but one wait in the last.
  NodeDetails DetailsOf(int node, uint64_t question) const {
    NodeDetails details{.question = question, .summary = SummaryOf(node, true)};
    details.evidence.round = kRound;
    for (int g = 0; g < 8; ++g) {
      Group group{.name = absl::StrCat("group", g), .members = std::vector<int>(num_ranks_)};
      for (int r = 0; r < num_ranks_; ++r) group.members[r] = r;
      details.evidence.groups.push_back(std::move(group));
    }
    for (int i = 0; i < per_node_; ++i) {
      RankEvidence rank{.rank = node * per_node_ + i,
                        .round = kRound,
                        .pid = 1000 + i,
                        .silent_for = absl::Minutes(1),
                        .tells_waits = true,
                        .doing = "waiting for a lock or for another thread (futex_do_wait)"};
      for (int g = 0; g < 8; ++g) {
        GroupRecord record{.group = g, .num_issued = 100};
        for (int64_t s = 92; s < 100; ++s) record.operations.push_back(Call(s));
        if (g == 7 && rank.rank != num_ranks_ / 3) {
          record.operations.push_back(Call(100));
          record.operations.back().state = OperationState::kStarted;
          record.operations.back().awaited = true;
          ++record.num_issued;
        }
        rank.groups.push_back(std::move(record));
      }
      details.evidence.ranks.push_back(std::move(rank));
    }
    return details;
  }

  void Run(int num_nodes) {
    std::vector<proto::WatchWord> words(num_nodes);
    for (int n = 0; n < num_nodes; ++n) rendezvous::Encode(SummaryOf(n, false), &words[n]);
    Hear(num_nodes, words);  // the first of all
    MonoTime begin = MonoNow();
    Hear(num_nodes, words);
    std::printf("server at rest, %d nodes: %.1f us for a summary\n", num_nodes,
                1e6 * Seconds(begin) / num_nodes);
    words[0].Clear();
    rendezvous::Encode(SummaryOf(0, true), &words[0]);
    now_ = now_ + absl::Seconds(2);
    Hear(1, words);
    size_t bytes = 0;
    for (int n = 0; n < num_nodes; ++n) {
      words[n].Clear();
      rendezvous::Encode(DetailsOf(n, question_), &words[n]);
      bytes += words[n].ByteSizeLong();
    }
    begin = MonoNow();
    Hear(num_nodes, words);
    std::printf("server, one question to %d ranks: %.0f ms; %d bytes of each node\n", num_ranks_,
                1e3 * Seconds(begin), static_cast<int>(bytes) / num_nodes);
    std::printf("  %s\n", said_.c_str());
  }

 private:
  static Operation Call(int64_t sequence) {
    return {.kind = OperationKind::kAllReduce,
            .state = OperationState::kDone,
            .sequence = sequence,
            .bytes = 1 << 20,
            .dtype = "bf16",
            .chain = 7 + static_cast<uint64_t>(sequence)};
  }

  void Hear(int num_nodes, const std::vector<proto::WatchWord>& words) {
    for (int n = 0; n < num_nodes; ++n) {
      for (const auto& each :
           watch_.OnWord(Incarnation(1 + n), *rendezvous::Decode(words[n]), now_)) {
        const WatchOrder& order = std::get<OrderTo>(each).order;
        if (const auto* ask = std::get_if<AskDetails>(&order)) question_ = ask->question;
        if (const auto* notice = std::get_if<SayNotice>(&order)) said_ = notice->text;
      }
    }
  }

  const int per_node_;
  const int num_ranks_;
  MonoTime now_ = MonoTime::At(absl::Hours(1));
  JobWatch watch_;
  uint64_t question_ = 0;
  std::string said_;
};

}  // namespace
}  // namespace muster::hangs

int main(int argc, char** argv) {
  const int num_nodes = argc > 1 ? std::atoi(argv[1]) : 2048;
  const int per_node = argc > 2 ? std::atoi(argv[2]) : 8;
  muster::hangs::RunAgent(per_node);
  muster::hangs::Job(num_nodes, per_node).Run(num_nodes);
  return 0;
}
