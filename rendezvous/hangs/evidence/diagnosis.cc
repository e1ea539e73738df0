#include "rendezvous/hangs/evidence/diagnosis.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/cause.h"
#include "rendezvous/hangs/evidence/circles.h"
#include "rendezvous/hangs/evidence/evidence_index.h"
#include "rendezvous/hangs/evidence/stalls.h"
#include "rendezvous/hangs/evidence/wait_graph.h"

namespace muster::hangs {
namespace {

constexpr double kMinorityConfidence = 0.95;
constexpr double kTieConfidence = 0.5;
constexpr double kInferredConfidence = 0.5;
// From this share of unheard ranks on it is the network that has a fault, not the ranks.
constexpr double kPartitionShare = 0.5;

class Detective {
 public:
  explicit Detective(const Evidence& evidence) : index_(evidence), stalls_(FindStalls(index_)) {
    stall_of_group_.assign(index_.num_groups(), -1);
    for (size_t s = 0; s < stalls_.size(); ++s) {
      stall_of_group_[stalls_[s].group] = static_cast<int>(s);
    }
  }

  Diagnosis Solve() {
    if (stalls_.empty() && !index_.HasPendingTransfer()) return Silent();
    if (IsPartitioned()) return OutOfSight();
    mismatches_ = FindMismatches(index_, stalls_);
    BuildGraph();
    return Choose();
  }

 private:
  // Nodes of the graph: ranks by index, then stalls, then one for all that is out of sight, one for
  // the possible other end of a send or receive, and one for the answers of each rank to RPC.
  int NodeOfStall(int stall) const { return index_.num_ranks() + stall; }
  int NodeOfUnseen() const { return index_.num_ranks() + static_cast<int>(stalls_.size()); }

  int NodeOfAnybody() const { return NodeOfUnseen() + 1; }
  int NodeOfAnswers(int rank) const { return NodeOfAnybody() + 1 + rank; }

  const RankEvidence& rank(int index) const { return index_.rank(index); }

  // How far a rank has come in its program: by step, then by phase. What may come at any place of a
  // step counts as its beginning.
  static std::pair<int64_t, int> ProgressOf(const RankEvidence& rank) {
    const bool in_a_pass = (rank.phase >= Phase::kForward && rank.phase <= Phase::kUpdate) ||
                           rank.phase == Phase::kEnd;
    return {*rank.step, in_a_pass ? static_cast<int>(rank.phase) : 0};
  }

  // Judges ranks that do not tell us for whom they wait: at fault are those furthest behind in what
  // they have marked. None is at fault where one has marked nothing, or where all wait for work by
  // intention or are behind their last step.
  Diagnosis Silent() const {
    std::vector<int> behind;
    std::vector<int> others;
    bool all_idle = true;
    for (const auto& [number, i] : index_.indices()) {
      if (!rank(i).tells_waits || !rank(i).step || rank(i).life == Life::kEnded) return {};
      all_idle = all_idle && (rank(i).phase == Phase::kIdle || rank(i).phase == Phase::kEnd);
      if (!behind.empty() && ProgressOf(rank(i)) > ProgressOf(rank(behind.front()))) {
        others.push_back(i);
        continue;
      }
      if (!behind.empty() && ProgressOf(rank(i)) < ProgressOf(rank(behind.front()))) {
        others.insert(others.end(), behind.begin(), behind.end());
        behind.clear();
      }
      behind.push_back(i);
    }
    if (behind.empty() || all_idle) return {};
    return {.finding = Finding::kSilent,
            .culprits = index_.NumbersOf(behind),
            .waiting = index_.NumbersOf(others),
            .spoke_for_it = {"the marks of the program alone"},
            .confidence = ScoreOf(Finding::kSilent)};
  }

  bool IsPartitioned() const {
    int unseen = 0;
    for (const auto& [rank_number, i] : index_.indices()) {
      if (rank(i).life == Life::kUnreachable) ++unseen;
    }
    return unseen > 0 && unseen >= kPartitionShare * static_cast<double>(index_.indices().size());
  }

  void BuildGraph() {
    graph_.emplace(NodeOfAnswers(index_.num_ranks()));
    has_fact_.assign(index_.num_ranks(), false);
    for (size_t s = 0; s < stalls_.size(); ++s) AddStall(static_cast<int>(s));
    for (const auto& [number, i] : index_.indices()) AddWaits(i);
    AddAnybody();
  }

  // An operation that others have called leads to the rank.
  void Accuse(int from, int rank) {
    graph_->AddEdge(from, rank);
    has_fact_[rank] = true;
  }

  void AddStall(int s) {
    const Stall& stall = stalls_[s];
    const bool is_fact = stall.operation->name != kDestroy;
    for (const int m : stall.missing) {
      graph_->AddEdge(NodeOfStall(s), m);
      has_fact_[m] = has_fact_[m] || is_fact;
    }
    if (!stall.missing.empty()) return;
    if (stall.has_unseen_members) {
      graph_->AddEdge(NodeOfStall(s), NodeOfUnseen());
      return;
    }
    // All have called it: who has not started it is held up by another operation. If nobody has,
    // each waits for its turn, and that says nothing.
    if (stall.queued.size() < stall.waiting.size()) {
      for (const int m : stall.queued) {
        if (HasPendingElsewhere(m, stall.group)) Accuse(NodeOfStall(s), m);
      }
    }
  }

  bool HasPendingElsewhere(int i, int group) const {
    for (const GroupRecord& record : rank(i).groups) {
      if (record.group == group) continue;
      for (const Operation& op : record.operations) {
        if (op.is_pending()) return true;
      }
    }
    return false;
  }

  // The operations for which rank `i` waits: those that it says, or its oldest of each group.
  void AddWaits(int i) {
    const RankEvidence& from = rank(i);
    if (from.life != Life::kRunning) return;  // its waiters wait for it alone
    for (const GroupRecord& record : from.groups) {
      if (record.group < 0 || record.group >= index_.num_groups()) continue;
      const Operation* collective = nullptr;
      for (const Operation& op : record.operations) {
        if (!op.is_pending() || (from.tells_waits && !op.awaited)) continue;
        if (op.is_collective()) {
          if (collective == nullptr || op.sequence < collective->sequence) collective = &op;
        } else {
          AddTransfer(i, record, op);
        }
      }
      const int stall = collective == nullptr ? kNone : stall_of_group_[record.group];
      if (stall != kNone) graph_->AddEdge(i, NodeOfStall(stall));
    }
  }

  void AddTransfer(int i, const GroupRecord& record, const Operation& op) {
    const std::string& name = index_.group(record.group).name;
    const bool is_rpc = name == kRpcGroup;
    const auto wait_for = [&](int node) {
      graph_->AddEdge(i, node);
      transfers_.push_back({i, node, record.group, op});
    };
    const bool is_unseen = is_rpc || name == kStoreGroup;
    if (op.peer < 0) return wait_for(is_unseen ? NodeOfUnseen() : NodeOfAnybody());
    const std::vector<int>& members = index_.group(record.group).members;
    const int other = op.peer < static_cast<int>(members.size()) ? members[op.peer] : kUnknownRank;
    const auto found = index_.indices().find(other);
    if (found == index_.indices().end() || rank(found->second).life == Life::kUnreachable) {
      return wait_for(NodeOfUnseen());
    }
    const bool runs = rank(found->second).life == Life::kRunning;
    if (is_rpc && runs) return wait_for(NodeOfAnswers(found->second));
    const int own = RankInGroup(members, rank(i).rank);
    if (runs && HasAnswered(found->second, record, op, own)) return;  // under way between the two
    wait_for(found->second);
    has_fact_[found->second] = true;
  }

  bool IsWithAnybody(const Transfer& transfer) const { return transfer.to == NodeOfAnybody(); }

  // A send or receive with a rank that is not known may be with any of its group that waits for
  // nothing; where all wait, it is out of sight. NCCL's recorder has all that a rank does, so that
  // who waits for nothing has not called what the others have.
  void AddAnybody() {
    std::vector<bool> waits(index_.num_ranks(), false);
    std::vector<bool> may_be(index_.num_ranks(), false);
    bool is_recorded = true;
    bool is_any = false;
    for (const Transfer& transfer : transfers_) {
      waits[transfer.from] = true;
      if (!IsWithAnybody(transfer)) continue;
      const Group& group = index_.group(transfer.group);
      is_any = true;
      is_recorded = is_recorded && group.is_on_device;
      for (const int member : group.members) {
        const auto found = index_.indices().find(member);
        if (found != index_.indices().end()) may_be[found->second] = true;
      }
    }
    if (!is_any) return;
    for (const auto& [number, i] : index_.indices()) {
      const bool has_gone = rank(i).life == Life::kEnded || rank(i).life == Life::kUnreachable;
      if (waits[i] || !may_be[i] || has_gone || !graph_->edges_of(i).empty()) continue;
      graph_->AddEdge(NodeOfAnybody(), i);
      has_fact_[i] = has_fact_[i] || is_recorded;
    }
    if (graph_->edges_of(NodeOfAnybody()).empty()) {
      graph_->AddEdge(NodeOfAnybody(), NodeOfUnseen());
    }
  }

  static int RankInGroup(const std::vector<int>& members, int number) {
    const auto found = std::find(members.begin(), members.end(), number);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }

  // Whether the other end of a send or receive has called its side of it.
  bool HasAnswered(int other, const GroupRecord& record, const Operation& op, int own) const {
    const OperationKind answer =
        op.kind == OperationKind::kSend ? OperationKind::kRecv : OperationKind::kSend;
    for (const GroupRecord& theirs : rank(other).groups) {
      if (theirs.group != record.group) continue;
      for (const Operation& candidate : theirs.operations) {
        if (candidate.kind == answer && candidate.peer == own &&
            candidate.sequence >= op.sequence) {
          return true;
        }
      }
    }
    return false;
  }

  // --- Where the waiting ends

  Diagnosis OutOfSight() const {
    Diagnosis out{.finding = Finding::kOutOfSight};
    std::vector<int> waiting;
    for (const Stall& stall : stalls_) {
      waiting.insert(waiting.end(), stall.waiting.begin(), stall.waiting.end());
    }
    out.waiting = index_.NumbersOf(waiting);
    if (!stalls_.empty()) SetOperation(out, stalls_.front());
    out.spoke_for_it.push_back("nothing is heard of the ranks that are waited for");
    return out;
  }

  void SetOperation(Diagnosis& out, const Stall& stall) const {
    out.group = index_.group(stall.group).name;
    out.operation = stall.operation;
    // Another process of a worker that has ended may come.
    if (index_.group(stall.group).is_gathering) out.can_heal = true;
  }

  Diagnosis OfMismatch(const Mismatch& mismatch) const {
    Diagnosis out{.finding = Finding::kMismatch, .words = mismatch.words, .can_heal = false};
    out.culprits = index_.NumbersOf(mismatch.culprits);
    std::vector<bool> waits = graph_->Reach({NodeOfStall(stall_of_group_[mismatch.group])});
    out.waiting = WaitingAmong(waits, out.culprits);
    out.group = index_.group(mismatch.group).name;
    out.operation = mismatch.operation;
    out.cause = mismatch.same_but_for_size && !mismatch.is_earlier ? Cause::kOtherSize
                                                                   : Cause::kOtherOperation;
    out.confidence = mismatch.is_tie ? kTieConfidence : kMinorityConfidence;
    out.spoke_for_it.push_back(mismatch.is_tie ? "no side has a majority"
                                               : "the other ranks of the group agree");
    return out;
  }

  std::vector<int> WaitingAmong(const std::vector<bool>& reaches,
                                const std::vector<int>& culprits) const {
    std::vector<int> waiting;
    for (const auto& [number, i] : index_.indices()) {
      if (reaches[i] && !std::binary_search(culprits.begin(), culprits.end(), number)) {
        waiting.push_back(number);
      }
    }
    return waiting;
  }

  static Finding FindingOf(const RankEvidence& rank) {
    if (rank.life == Life::kEnded) return Finding::kEnded;
    if (rank.life == Life::kStopped) return Finding::kStopped;
    if (!rank.fault.empty()) return Finding::kFault;
    if (rank.life == Life::kNoReply) return Finding::kNoReply;
    return Finding::kNotCalled;
  }

  static double ScoreOf(Finding finding) {
    switch (finding) {
      case Finding::kEnded:
        return 1.0;
      case Finding::kStopped:
      case Finding::kFault:
        return 0.95;
      case Finding::kCircle:
        return 0.9;
      case Finding::kNoReply:
        return 0.85;
      case Finding::kNotCalled:
        return 0.8;
      default:
        return 0.3;
    }
  }

  Diagnosis Choose() const {
    if (!mismatches_.empty()) {
      const auto clear = std::find_if(mismatches_.begin(), mismatches_.end(),
                                      [](const Mismatch& mismatch) { return !mismatch.is_tie; });
      return OfMismatch(clear == mismatches_.end() ? mismatches_.front() : *clear);
    }
    End best;
    for (const std::vector<int>& nodes : graph_->Ends()) {
      End candidate = OfEnd(nodes);
      Diagnosis& found = best.diagnosis;
      const Diagnosis& other = candidate.diagnosis;
      if (other.confidence > found.confidence || found.finding == Finding::kNobodyWaits) {
        best = std::move(candidate);
      } else if (other.finding == found.finding && other.confidence == found.confidence &&
                 other.words.empty() && found.words.empty() && other.finding != Finding::kCircle) {
        found.culprits.insert(found.culprits.end(), other.culprits.begin(), other.culprits.end());
      }
    }
    // A rank may be one in the operations of several groups.
    std::vector<int>& culprits = best.diagnosis.culprits;
    std::sort(culprits.begin(), culprits.end());
    culprits.erase(std::unique(culprits.begin(), culprits.end()), culprits.end());
    AddWaiting(best);
    best.diagnosis.is_busy =
        Are(&RankEvidence::is_busy, best.diagnosis.culprits) || MayKeyBeSet(best.diagnosis);
    best.diagnosis.loop = Are(&RankEvidence::loops, best.diagnosis.culprits);
    return best.diagnosis;
  }

  // One that does not wait for the key works, and may set it.
  bool MayKeyBeSet(const Diagnosis& found) const {
    return found.group == kStoreGroup &&
           std::any_of(index_.indices().begin(), index_.indices().end(), [&](const auto& entry) {
             const bool waits =
                 std::binary_search(found.waiting.begin(), found.waiting.end(), entry.first);
             return !waits && rank(entry.second).is_busy;
           });
  }

  bool Are(bool RankEvidence::*what, const std::vector<int>& numbers) const {
    return !numbers.empty() && std::all_of(numbers.begin(), numbers.end(), [&](int number) {
      return rank(index_.indices().at(number)).*what;
    });
  }

  // The end of all waiting: what is to be said of it, and the stall it ends in, where it is none of
  // a rank.
  struct End {
    Diagnosis diagnosis;
    int stall = kNone;
    int answers = kNone;  // node of a rank's answers, where it ends there
  };

  End OfEnd(const std::vector<int>& nodes) const {
    const int num_ranks = index_.num_ranks();
    End out;
    Diagnosis& found = out.diagnosis;
    found.culprits = index_.NumbersOf(nodes);
    if (found.culprits.size() > 1) {
      OfCircle(nodes, out);
    } else if (nodes.front() < num_ranks) {
      found.finding = FindingOf(rank(nodes.front()));
      found.can_heal = found.finding != Finding::kEnded && found.finding != Finding::kStopped;
      found.is_inferred = !has_fact_[nodes.front()];
      if (found.is_inferred) found.confidence = kInferredConfidence;
    } else if (nodes.front() > NodeOfAnybody()) {
      out.answers = nodes.front();
      OfAnswers(nodes.front() - NodeOfAnswers(0), found);
    } else if (nodes.front() == NodeOfUnseen()) {
      found.finding = Finding::kOutOfSight;
      found.words = UnknownPeersInWords();
      if (found.words.empty()) found.words = UnsureNumbersInWords(index_, stalls_);
    } else {
      out.stall = nodes.front() - num_ranks;
      OfInside(stalls_[out.stall], found);
    }
    if (found.confidence == 0) found.confidence = ScoreOf(found.finding);
    return out;
  }

  // What the call is served by is not seen, and may itself wait for somebody.
  void OfAnswers(int i, Diagnosis& out) const {
    out.finding = Finding::kNotCalled;
    out.culprits = index_.NumbersOf({i});
    out.is_inferred = true;
    out.confidence = kInferredConfidence;
    std::vector<int> callers;
    const Transfer* first = nullptr;
    for (const Transfer& transfer : transfers_) {
      if (transfer.to != NodeOfAnswers(i)) continue;
      callers.push_back(transfer.from);
      if (first == nullptr) first = &transfer;
    }
    const std::vector<int> numbers = index_.NumbersOf(callers);
    out.words = absl::StrCat(RanksInWords(out.culprits), " has not answered ",
                             NameOf(first->operation), ", for which ", RanksInWords(numbers),
                             numbers.size() == 1 ? " waits" : " wait");
  }

  void OfCircle(const std::vector<int>& nodes, End& out) const {
    Circle circle{.nodes = nodes};
    for (const int node : nodes) {
      if (node < index_.num_ranks()) circle.ranks.push_back(node);
      const int stall = node - index_.num_ranks();
      if (stall >= 0 && stall < static_cast<int>(stalls_.size())) circle.stalls.push_back(stall);
    }
    Diagnosis& found = out.diagnosis;
    found.finding = Finding::kCircle;
    found.can_heal = !AllTellWaits(nodes);
    const CircleBreak closed_by = FindBreak(index_, stalls_, transfers_, *graph_, circle);
    if (closed_by.culprits.empty()) return;
    found.culprits = index_.NumbersOf(closed_by.culprits);
    found.words = closed_by.words;
    if (!closed_by.is_sure) found.confidence = kTieConfidence;
    out.stall = closed_by.stall;
    if (closed_by.stall == CircleBreak::kNothing && closed_by.transfer == CircleBreak::kNothing) {
      return;
    }
    // Another thread of theirs may still call it.
    found.finding = Finding::kNotCalled;
    found.can_heal = true;
    if (closed_by.transfer == CircleBreak::kNothing) return;
    // The other end may have called one too many.
    found.confidence = kTieConfidence;
    const Transfer& transfer = transfers_[closed_by.transfer];
    found.group = index_.group(transfer.group).name;
    found.operation = transfer.operation;
  }

  // "rank 1 waits in a send or receive (group g), with whom is not known; ranks 0 and 2 have gone
  // on to all_reduce #3 (group g)", or of a key of a store; or nothing.
  std::string UnknownPeersInWords() const {
    if (transfers_.empty()) return "";
    const auto key = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& transfer) {
      return index_.group(transfer.group).name == kStoreGroup;
    });
    const bool is_key = key != transfers_.end();
    const Transfer& first = is_key ? *key : transfers_.front();
    std::vector<int> in_transfers;
    for (const Transfer& transfer : transfers_) {
      if (!is_key && !IsWithAnybody(transfer)) return "";
      const bool is_same = !is_key || transfer.operation.name == first.operation.name;
      if (is_same) in_transfers.push_back(transfer.from);
    }
    const std::vector<int> numbers = index_.NumbersOf(in_transfers);
    std::string words = absl::StrCat(
        RanksInWords(numbers), numbers.size() == 1 ? " waits" : " wait", is_key ? " for " : " in ",
        InWords(first.operation, index_.group(first.group).name),
        is_key ? ", which has not been set" : ", with whom is not known");
    for (const Stall& stall : stalls_) {
      if (stall.missing.empty()) continue;
      const std::vector<int> gone_on = index_.NumbersOf(stall.waiting);
      absl::StrAppend(&words, "; ", RanksInWords(gone_on), gone_on.size() == 1 ? " has" : " have",
                      " gone on to ", InWords(*stall.operation, index_.group(stall.group).name));
    }
    return words;
  }

  bool AllTellWaits(const std::vector<int>& nodes) const {
    return std::all_of(nodes.begin(), nodes.end(), [this](int node) {
      return node >= index_.num_ranks() || rank(node).tells_waits;
    });
  }

  void OfInside(const Stall& stall, Diagnosis& out) const {
    out.finding = Finding::kInside;
    SetOperation(out, stall);
    std::vector<int> stopped, faulty;
    for (const auto& [i, record] : index_.records(stall.group)) {
      if (rank(i).life == Life::kStopped) stopped.push_back(i);
      if (!rank(i).fault.empty()) faulty.push_back(i);
    }
    if (stopped.empty() && faulty.empty()) return;
    out.finding = stopped.empty() ? Finding::kFault : Finding::kStopped;
    out.culprits = index_.NumbersOf(stopped.empty() ? faulty : stopped);
    if (!stopped.empty()) out.can_heal = false;
  }

  // Fills in who waits for the culprits, in what, and by which way.
  void AddWaiting(End& end) const {
    Diagnosis& out = end.diagnosis;
    if (out.finding == Finding::kNobodyWaits) return;
    std::vector<int> targets;
    for (const int culprit : out.culprits) targets.push_back(index_.indices().at(culprit));
    if (end.answers != kNone) targets = {end.answers};
    if (out.finding == Finding::kOutOfSight) targets.push_back(NodeOfUnseen());
    if (end.stall != kNone) {
      SetOperation(out, stalls_[end.stall]);
      targets.push_back(NodeOfStall(end.stall));
    }
    out.waiting = WaitingAmong(graph_->Reach(targets), out.culprits);
    if (out.finding == Finding::kInside) out.waiting = InsideOf(stalls_[end.stall]);
    if (!out.operation) SetDirectOperation(out, targets);
    DescribePath(out, targets);
    AddReasons(out);
  }

  // Those that are in the operation; others may be past it, and wait in a later one.
  std::vector<int> InsideOf(const Stall& stall) const {
    std::vector<int> inside;
    for (const auto& [i, record] : index_.records(stall.group)) {
      const Operation* op = FindCollective(*record, stall.operation->sequence);
      if (op != nullptr && op->is_pending()) inside.push_back(i);
    }
    return index_.NumbersOf(inside);
  }

  // One entry per node of the graph: whether it is among `nodes`.
  std::vector<bool> Marked(const std::vector<int>& nodes) const {
    std::vector<bool> marked(graph_->num_nodes(), false);
    for (const int node : nodes) marked[node] = true;
    return marked;
  }

  // The stall that waits for `targets` and for nobody else, or else one that waits for others, too;
  // kNone.
  int InnermostStall(const std::vector<int>& targets) const {
    const std::vector<bool> is_target = Marked(targets);
    int best = kNone;
    bool is_best_inner = false;
    for (size_t s = 0; s < stalls_.size(); ++s) {
      const std::vector<int>& edges = graph_->edges_of(NodeOfStall(static_cast<int>(s)));
      const auto num_targets =
          std::count_if(edges.begin(), edges.end(), [&](int to) { return is_target[to]; });
      if (num_targets == 0) continue;
      const bool is_inner = num_targets == static_cast<std::ptrdiff_t>(edges.size());
      if (best != kNone && (is_best_inner || !is_inner)) continue;
      best = static_cast<int>(s);
      is_best_inner = is_inner;
    }
    return is_best_inner || FirstTransferTo(targets) == nullptr ? best : kNone;
  }

  const Transfer* FirstTransferTo(const std::vector<int>& targets) const {
    std::vector<bool> is_target = Marked(targets);
    for (const int to : graph_->edges_of(NodeOfAnybody())) {
      is_target[NodeOfAnybody()] = is_target[NodeOfAnybody()] || is_target[to];
    }
    for (const Transfer& transfer : transfers_) {
      if (is_target[transfer.to]) return &transfer;
    }
    return nullptr;
  }

  // The operation that waits for a culprit with no other rank between.
  void SetDirectOperation(Diagnosis& out, const std::vector<int>& targets) const {
    const int stall = InnermostStall(targets);
    if (stall != kNone) {
      SetOperation(out, stalls_[stall]);
      out.is_direct = stalls_[stall].waiting.size() >= out.waiting.size();
      return;
    }
    const Transfer* transfer = FirstTransferTo(targets);
    if (transfer == nullptr) return;
    out.group = index_.group(transfer->group).name;
    out.operation = transfer->operation;
    out.is_direct = out.waiting.size() <= 1;
    const bool is_call_missing = out.finding == Finding::kNotCalled && out.words.empty();
    if (!is_call_missing) return;
    const std::string who = RanksInWords(out.culprits);
    const bool is_one = out.culprits.size() == 1;
    const std::string where = absl::StrCat("rank ", rank(transfer->from).rank, " waits in ",
                                           InWords(*out.operation, out.group));
    out.words = IsWithAnybody(*transfer)
                    ? absl::StrCat(who, is_one ? " is" : " are", " in no operation while ", where,
                                   ", with whom is not known")
                    : absl::StrCat(who, is_one ? " has" : " have", " not called the ",
                                   AnswerTo(transfer->operation), " for which ", where);
  }

  // The wait graph whose paths lead by way of those who wait themselves: it lacks the short cuts of
  // others that wait for a target, too.
  WaitGraph WithoutShortCuts(const Diagnosis& out, const std::vector<int>& targets) const {
    const int inner = InnermostStall(targets);
    const std::vector<bool> is_target = Marked(targets);
    WaitGraph graph(graph_->num_nodes());
    for (int node = 0; node < graph_->num_nodes(); ++node) {
      const std::vector<int>& edges = graph_->edges_of(node);
      const bool is_stall = node >= index_.num_ranks() && node < NodeOfUnseen();
      const bool is_outer =
          is_stall && inner != kNone && node != NodeOfStall(inner) && !out.culprits.empty();
      for (const int to : edges) {
        if (!is_outer || !is_target[to]) graph.AddEdge(node, to);
      }
    }
    return graph;
  }

  // Describes the path of the rank that is farthest away, as far as the first few say.
  void DescribePath(Diagnosis& out, const std::vector<int>& targets) const {
    constexpr size_t kLooksMax = 16;
    std::vector<int> longest;
    const bool is_circle = out.finding == Finding::kCircle;
    const std::vector<int>& starts = is_circle ? out.culprits : out.waiting;
    const WaitGraph by_others = WithoutShortCuts(out, targets);
    for (size_t k = 0; k < std::min(starts.size(), kLooksMax); ++k) {
      const int from = index_.indices().at(starts[k]);
      std::vector<int> path = is_circle ? CircleFrom(from) : by_others.PathTo(from, targets);
      if (path.empty() && !is_circle) path = graph_->PathTo(from, targets);
      if (path.size() > longest.size()) longest = path;
      if (is_circle) break;
    }
    constexpr size_t kStepsMax = 16;
    for (size_t k = 0; k + 1 < longest.size() && out.path.size() < kStepsMax; ++k) {
      if (longest[k] >= index_.num_ranks()) continue;
      out.path.push_back(StepInWords(longest, k));
    }
  }

  // The shortest path from a node back to itself; empty if there is none.
  std::vector<int> CircleFrom(int from) const {
    std::vector<int> shortest;
    for (const int to : graph_->edges_of(from)) {
      std::vector<int> path = graph_->PathTo(to, {from});
      if (path.empty() || (!shortest.empty() && path.size() + 1 >= shortest.size())) continue;
      path.insert(path.begin(), from);
      shortest = std::move(path);
    }
    return shortest;
  }

  std::string StepInWords(const std::vector<int>& path, size_t k) const {
    const int num_ranks = index_.num_ranks();
    const int from = path[k];
    const int next = path[k + 1];
    if (next == NodeOfAnybody()) {
      const bool is_seen = k + 2 < path.size() && path[k + 2] != NodeOfUnseen();
      if (is_seen) return absl::StrCat("rank ", rank(from).rank, " waits in a send or receive");
    }
    if (next == NodeOfUnseen() || next == NodeOfAnybody()) {
      return absl::StrCat("rank ", rank(from).rank, " waits for ranks of which nothing is known");
    }
    if (next >= num_ranks && next < NodeOfUnseen()) {
      const Stall& stall = stalls_[next - num_ranks];
      const std::string what = InWords(*stall.operation, index_.group(stall.group).name);
      const bool is_last = k + 2 >= path.size() || path[k + 2] == NodeOfUnseen();
      return is_last ? absl::StrCat("rank ", rank(from).rank, " waits in ", what)
                     : absl::StrCat("rank ", rank(from).rank, " waits in ", what, " for rank ",
                                    rank(path[k + 2]).rank);
    }
    for (const Transfer& transfer : transfers_) {
      if (transfer.from != from || transfer.to != next) continue;
      const int other = next < num_ranks ? next : next - NodeOfAnswers(0);
      return absl::StrCat("rank ", rank(from).rank, " waits in ",
                          InWords(transfer.operation, index_.group(transfer.group).name),
                          " for rank ", rank(other).rank);
    }
    return "";
  }

  void AddReasons(Diagnosis& out) const {
    if (out.finding == Finding::kInside) {
      out.spoke_for_it.push_back("all of its ranks have called it");
    }
    if (out.finding == Finding::kOutOfSight) {
      out.spoke_for_it.push_back("the ranks that are seen here are not the ones waited for");
    }
    constexpr size_t kReasonsMax = 8;
    for (size_t k = 0; k < std::min(out.culprits.size(), kReasonsMax); ++k) {
      const RankEvidence& culprit = rank(index_.indices().at(out.culprits[k]));
      if (!culprit.fault.empty()) {
        out.spoke_for_it.push_back(absl::StrCat("rank ", culprit.rank, ": ", culprit.fault));
      }
      if (out.finding == Finding::kNotCalled && culprit.tells_waits) {
        out.spoke_for_it.push_back(
            absl::StrCat("rank ", culprit.rank, " itself waits for no operation"));
      }
    }
  }

  static constexpr int kNone = -1;

  const EvidenceIndex index_;
  const std::vector<Stall> stalls_;
  std::vector<int> stall_of_group_;  // -1: nobody waits there
  std::vector<Mismatch> mismatches_;
  std::vector<Transfer> transfers_;
  std::optional<WaitGraph> graph_;
  std::vector<bool> has_fact_;  // of each rank: an operation of others' leads to it
};

}  // namespace

Diagnosis Diagnose(const Evidence& evidence) {
  Diagnosis found = Detective(evidence).Solve();
  if (found.cause == Cause::kUnknown) found.cause = CauseOf(found.finding);
  return found;
}

}  // namespace muster::hangs
