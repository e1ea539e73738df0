#include "worker_runtime/plan/schedules/prove_schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

constexpr int64_t kNotDone = -1;

template <typename... Text>
absl::Status Broken(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat("this schedule cannot run: ", text...));
}

// --- S1 and S2 ----------------------------------------------------------------------------------

// The place of each pass in the order of its rank; kNotDone: it has none.
class Places {
 public:
  explicit Places(const Schedule& schedule)
      : schedule_(schedule),
        places_(4 * schedule.num_stages() * schedule.micro_batches, kNotDone) {}

  int64_t& At(PassKind kind, int stage, int64_t micro_batch) {
    const int64_t number = stage * schedule_.micro_batches + micro_batch;
    return places_[4 * number + static_cast<int64_t>(kind)];
  }
  int64_t& At(const StagePass& pass) { return At(pass.kind, pass.stage, pass.micro_batch); }
  bool Has(const StagePass& pass) { return At(pass) != kNotDone; }

 private:
  const Schedule& schedule_;
  std::vector<int64_t> places_;  // [stages][micro_batches][kinds]
};

absl::Status Place(const Schedule& schedule, Places& places) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<StagePass>& passes = schedule.passes[rank];
    for (size_t i = 0; i < passes.size(); ++i) {
      const StagePass& pass = passes[i];
      if (pass.stage >= schedule.num_stages() || pass.micro_batch >= schedule.micro_batches) {
        return Broken("rank ", rank, " has ", ToString(pass), ", and there are ",
                      schedule.num_stages(), " stages and ", schedule.micro_batches,
                      " micro-batches, counted from 0");
      }
      if (const int owner = schedule.rank_of_stage[pass.stage]; owner != rank) {
        return Broken("rank ", rank, " has ", ToString(pass), ", and stage ", pass.stage,
                      " lies on rank ", owner, "; move it there");
      }
      if (places.Has(pass)) {
        return Broken("rank ", rank, " has ", ToString(pass), " twice; leave one out");
      }
      places.At(pass) = static_cast<int64_t>(i);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBackward(int rank, int stage, int64_t m, Places& places) {
  const StagePass both = {PassKind::kBackward, stage, m};
  const StagePass input = {PassKind::kInputGradient, stage, m};
  const StagePass weight = {PassKind::kWeightGradient, stage, m};
  if (places.Has(both)) {
    for (const StagePass& part : {input, weight}) {
      if (!places.Has(part)) continue;
      return Broken("rank ", rank, " has ", ToString(both), " and ", ToString(part),
                    ", which is a part of it; leave one out");
    }
    return absl::OkStatus();
  }
  if (places.Has(input) && places.Has(weight)) return absl::OkStatus();
  if (places.Has(input)) {
    return Broken("rank ", rank, " has ", ToString(input), " and no ", ToString(weight), ": stage ",
                  stage, " never makes the gradients of its weights over micro-batch ", m, "; put ",
                  ToString(weight), " behind ", ToString(input));
  }
  if (places.Has(weight)) {
    return Broken("rank ", rank, " has ", ToString(weight), " and no ", ToString(input), "; put ",
                  ToString(input), " before ", ToString(weight));
  }
  return Broken("stage ", stage, " never goes backward over micro-batch ", m, "; add ",
                ToString(both), " to rank ", rank);
}

absl::Status CheckOrderOfWeights(const Schedule& schedule, Places& places) {
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    std::optional<StagePass> before;
    for (int64_t m = 0; m < schedule.micro_batches; ++m) {
      StagePass pass = {PassKind::kBackward, stage, m};
      if (!places.Has(pass)) pass.kind = PassKind::kWeightGradient;
      if (before && places.At(pass) < places.At(*before)) {
        return Broken("rank ", schedule.rank_of_stage[stage], " has ", ToString(pass), " before ",
                      ToString(*before),
                      ": gradients are added in the order of micro-batches, so that every schedule "
                      "has the same bits; put ",
                      ToString(pass), " behind ", ToString(*before));
      }
      before = pass;
    }
  }
  return absl::OkStatus();
}

// --- S3 and S4 ----------------------------------------------------------------------------------

using PassOrder = absl::Span<const std::vector<PassOfRank>>;

// What travels by (from, to), in the order of each side.
using RankPair = std::pair<int, int>;
struct Transfers {
  std::map<RankPair, std::vector<Handed>> sent;
  std::map<RankPair, std::vector<Handed>> received;
};

std::string NameOf(const Handed& what) {
  return absl::StrCat(ToString(what.payload), " of stage ", what.stage, ", micro-batch ",
                      what.micro_batch);
}
std::string SendText(const HandedBy& to) {
  return absl::StrCat("SEND ", NameOf(to.what), " to rank ", to.place);
}
std::string ReceiveText(const HandedBy& from) {
  return absl::StrCat("RECV ", NameOf(from.what), " from rank ", from.place);
}

// Adds the transfers of one rank, each of which has its place among the passes.
absl::Status AddTransfers(const Schedule& schedule, PassOrder order, int rank,
                          Transfers& transfers) {
  std::set<Handed> is_there;
  for (const PassOfRank& own : order[rank]) {
    for (const HandedBy& from : own.receives) {
      transfers.received[{from.place, rank}].push_back(from.what);
      is_there.insert(from.what);
    }
    for (const HandedBy& needed : NeedsOf(own.pass, schedule, {})) {
      const bool waits =
          is_there.contains(needed.what) &&
          std::find(own.needs.begin(), own.needs.end(), needed.what) != own.needs.end();
      if (needed.place == rank || waits) continue;
      return Broken("rank ", rank, ": ", ToString(own.pass),
                    " does not wait for what it computes from; put ", ReceiveText(needed),
                    " before it");
    }
    for (const HandedBy& made : MadeBy(own.pass, schedule, {})) is_there.insert(made.what);
    for (const HandedBy& to : own.sends) {
      transfers.sent[{rank, to.place}].push_back(to.what);
      if (is_there.contains(to.what)) continue;
      return Broken("rank ", rank, ": ", SendText(to), " comes before the pass that makes it");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameOrder(RankPair way, const std::vector<Handed>& of_sender,
                            const std::vector<Handed>& of_receiver) {
  for (size_t k = 0; k < std::max(of_sender.size(), of_receiver.size()); ++k) {
    const bool both = k < of_sender.size() && k < of_receiver.size();
    if (both && of_sender[k] == of_receiver[k]) continue;
    return Broken("transfer ", k, " from rank ", way.first, " to rank ", way.second, " is ",
                  k < of_sender.size() ? SendText({of_sender[k], way.second}) : "nothing",
                  " on one side and ",
                  k < of_receiver.size() ? ReceiveText({of_receiver[k], way.first}) : "nothing",
                  " on the other; both sides need one order");
  }
  return absl::OkStatus();
}

absl::Status CheckTransfers(const Schedule& schedule, PassOrder order) {
  Transfers transfers;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    MUSTER_RETURN_IF_ERROR(AddTransfers(schedule, order, rank, transfers));
  }
  for (const auto& [way, of_sender] : transfers.sent) {
    MUSTER_RETURN_IF_ERROR(CheckSameOrder(way, of_sender, transfers.received[way]));
  }
  for (const auto& [way, of_receiver] : transfers.received) {
    if (transfers.sent.contains(way)) continue;
    return Broken("rank ", way.second, ": ", ReceiveText({of_receiver.front(), way.first}),
                  " waits for what is never sent");
  }
  return absl::OkStatus();
}

// --- S5: the walk -------------------------------------------------------------------------------

class ScheduleWalk {
 public:
  ScheduleWalk(const Schedule& schedule, PassOrder order, const PassCosts& costs)
      : schedule_(schedule),
        order_(order),
        costs_(costs),
        done_(schedule),
        ranks_(schedule.num_ranks()) {
    proof_.ranks.resize(schedule.num_ranks());
    proof_.passes.resize(schedule.num_ranks());
    for (const int rank : schedule.rank_of_stage) ++proof_.ranks[rank].stages;
  }

  // False if some of it is never done.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (Launch(rank) || Compute(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      proof_.end = std::max(proof_.end, proof_.ranks[rank].end);
      if (NextPass(rank) != nullptr) return false;
    }
    return true;
  }

  ScheduleProof Take() { return std::move(proof_); }

  // How many passes of a rank are done.
  size_t NumDone(int rank) const { return proof_.passes[rank].size(); }

  // The pass at which `rank` stands; nullptr: it is at its end.
  const StagePass* NextPass(int rank) const {
    const size_t next = NumDone(rank);
    return next < order_[rank].size() ? &order_[rank][next].pass : nullptr;
  }

  // A pass that the one at which `rank` stands waits for; nothing: it waits for a transfer alone.
  std::optional<StagePass> WaitsFor(int rank) {
    const StagePass pass = *NextPass(rank);
    for (const StagePass& need : OwnNeeds(pass)) {
      if (!done_.Has(need)) return need;
    }
    for (const HandedBy& needed : NeedsOf(pass, schedule_, {})) {
      const StagePass maker = MakerOf(needed.what);
      if (!done_.Has(maker)) return maker;
    }
    return std::nullopt;
  }

 private:
  struct RankWalk {
    size_t launches_of = 0;  // a pass: those of earlier ones are started
    size_t received = 0;     // started ones of it
    size_t sent = 0;
    int64_t live = 0;
    std::map<Handed, int64_t> arrived;  // when
  };

  // Earlier passes of the same stage.
  std::vector<StagePass> OwnNeeds(const StagePass& pass) const {
    switch (pass.kind) {
      case PassKind::kForward:
        return {};
      case PassKind::kBackward:
      case PassKind::kInputGradient:
        return {{PassKind::kForward, pass.stage, pass.micro_batch}};
      case PassKind::kWeightGradient:
        return {{PassKind::kInputGradient, pass.stage, pass.micro_batch}};
    }
    return {};
  }

  StagePass MakerOf(const Handed& what) {
    StagePass maker = {PassKind::kForward, what.stage, what.micro_batch};
    if (what.payload == Payload::kActivation) return maker;
    maker.kind = PassKind::kBackward;
    const int rank = schedule_.rank_of_stage[what.stage];
    const std::vector<StagePass>& passes = schedule_.passes[rank];
    if (std::find(passes.begin(), passes.end(), maker) == passes.end()) {
      maker.kind = PassKind::kInputGradient;
    }
    return maker;
  }

  // When the pass that makes `what` ended, if it did.
  int64_t EndOfMaker(const Handed& what) {
    if (what.payload == Payload::kActivation) {
      return done_.At(PassKind::kForward, what.stage, what.micro_batch);
    }
    return std::max(done_.At(PassKind::kBackward, what.stage, what.micro_batch),
                    done_.At(PassKind::kInputGradient, what.stage, what.micro_batch));
  }

  // When what a pass needs is there; kNotDone: it is not.
  int64_t ReadyAt(int rank, const StagePass& pass) {
    int64_t ready = 0;
    for (const StagePass& need : OwnNeeds(pass)) {
      if (!done_.Has(need)) return kNotDone;
      ready = std::max(ready, done_.At(need));
    }
    for (const HandedBy& needed : NeedsOf(pass, schedule_, {})) {
      int64_t there = kNotDone;
      if (needed.place == rank) {
        there = EndOfMaker(needed.what);
      } else if (const auto found = ranks_[rank].arrived.find(needed.what);
                 found != ranks_[rank].arrived.end()) {
        there = found->second;
      }
      if (there == kNotDone) return kNotDone;
      ready = std::max(ready, there);
    }
    return ready;
  }

  bool Compute(int rank) {
    const StagePass* const pass = NextPass(rank);
    if (pass == nullptr) return false;
    const int64_t ready = ReadyAt(rank, *pass);
    if (ready == kNotDone) return false;
    RankTimes& times = proof_.ranks[rank];
    const int64_t begin = std::max(ready, times.end);
    const int64_t end = begin + costs_.Of(*pass);
    if (proof_.passes[rank].empty()) times.begin = begin;
    times.end = end;
    times.busy += end - begin;
    proof_.passes[rank].push_back({*pass, begin, end});
    done_.At(*pass) = end;
    RankWalk& walk = ranks_[rank];
    if (pass->kind == PassKind::kForward) times.peak_live = std::max(times.peak_live, ++walk.live);
    if (WritesGradients(pass->kind)) --walk.live;
    return true;
  }

  // Starts the next transfer of `rank`: its order goes before a pass and, once that is done, behind
  // it. False: there is none that may begin.
  bool Launch(int rank) {
    RankWalk& walk = ranks_[rank];
    for (; walk.launches_of < order_[rank].size(); ++walk.launches_of) {
      const PassOfRank& own = order_[rank][walk.launches_of];
      if (walk.received < own.receives.size()) {
        const HandedBy& from = own.receives[walk.received++];
        Meet(from.place, rank, from.what);
        return true;
      }
      if (walk.sent < own.sends.size()) {
        const HandedBy& to = own.sends[walk.sent];
        if (EndOfMaker(to.what) == kNotDone) return false;
        ++walk.sent;
        ++proof_.num_transfers;
        Meet(rank, to.place, to.what);
        return true;
      }
      walk.received = walk.sent = 0;
    }
    return false;
  }

  // A transfer is over once both sides have started it.
  void Meet(int from, int to, const Handed& what) {
    if (!waiting_.insert({from, to, what}).second) ranks_[to].arrived[what] = EndOfMaker(what);
  }

  const Schedule& schedule_;
  const PassOrder order_;
  const PassCosts costs_;
  Places done_;  // when each pass ended
  std::vector<RankWalk> ranks_;
  std::set<std::tuple<int, int, Handed>> waiting_;  // transfers that one side has started
  ScheduleProof proof_;
};

// "rank 0 stands at B0.0, which waits for B1.0 of rank 1; ...": a ring of ranks that wait for each
// other, else the first that waits.
std::string RingText(const Schedule& schedule, ScheduleWalk& walk) {
  int rank = 0;
  while (walk.NextPass(rank) == nullptr) ++rank;
  std::vector<int> seen;
  while (std::find(seen.begin(), seen.end(), rank) == seen.end()) {
    seen.push_back(rank);
    const std::optional<StagePass> need = walk.WaitsFor(rank);
    if (!need) {
      seen = {rank};
      break;
    }
    rank = schedule.rank_of_stage[need->stage];
  }
  seen.erase(seen.begin(), std::find(seen.begin(), seen.end(), rank));
  std::vector<std::string> parts;
  for (const int waiting : seen) {
    const std::optional<StagePass> need = walk.WaitsFor(waiting);
    parts.push_back(absl::StrCat(
        "rank ", waiting, " stands at ", ToString(*walk.NextPass(waiting)), ", which waits for ",
        need ? absl::StrCat(ToString(*need), " of rank ", schedule.rank_of_stage[need->stage])
             : "a transfer that is never started"));
  }
  return absl::StrJoin(parts, "; ");
}

bool Ends(const Schedule& schedule) {
  if (!CheckPasses(schedule).ok()) return false;
  return ScheduleWalk(schedule, OrderOfRanks(schedule, {}), {}).Run();
}

// "F0.2 put before B0.0 on rank 0": the change that lets `schedule` end and moves one pass by as
// few places as possible, a later one before the pass at which its rank stands or that pass
// behind a later one. Nothing if there is none, or the search would take too long.
std::optional<std::string> SmallestMove(const Schedule& schedule, const ScheduleWalk& stuck) {
  constexpr int64_t kMostPlaces = 64;
  constexpr int64_t kMostWork = 20'000'000;  // passes walked
  int64_t work = 0;
  for (int64_t places = 1; places <= kMostPlaces; ++places) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const std::vector<StagePass>& passes = schedule.passes[rank];
      const auto at = static_cast<int64_t>(stuck.NumDone(rank));
      if (at + places >= static_cast<int64_t>(passes.size())) continue;
      for (const bool is_earlier : {true, false}) {
        if ((work += schedule.num_passes()) > kMostWork) return std::nullopt;
        Schedule moved = schedule;
        const auto first = moved.passes[rank].begin() + at;
        std::rotate(first, is_earlier ? first + places : first + 1, first + places + 1);
        if (!Ends(moved)) continue;
        const std::string now = ToString(passes[at]), later = ToString(passes[at + places]);
        return absl::StrCat(
            is_earlier ? later + " put before " + now : now + " put behind " + later, " on rank ",
            rank);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Fraction FractionOf(int64_t numerator, int64_t denominator) {
  const int64_t divisor = std::max<int64_t>(std::gcd(numerator, denominator), 1);
  return {numerator / divisor, denominator / divisor};
}

std::string ToString(const Fraction& fraction) {
  if (fraction.denominator == 1) return absl::StrCat(fraction.numerator);
  return absl::StrCat(fraction.numerator, "/", fraction.denominator);
}

int64_t PassCosts::Of(const StagePass& pass) const {
  return Of(pass.kind) * (times_of_stage.empty() ? 1 : times_of_stage[pass.stage]);
}

int64_t PassCosts::Of(PassKind kind) const {
  switch (kind) {
    case PassKind::kForward:
      return forward;
    case PassKind::kBackward:
      return input_gradient + weight_gradient;
    case PassKind::kInputGradient:
      return input_gradient;
    case PassKind::kWeightGradient:
      return weight_gradient;
  }
  return 0;
}

int64_t ScheduleProof::bubble() const {
  int64_t most = 0;
  for (const RankTimes& rank : ranks) most = std::max(most, rank.end - rank.begin - rank.busy);
  return most;
}

Fraction ScheduleProof::idle_share() const {
  int64_t busy = 0;
  for (const RankTimes& rank : ranks) busy += rank.busy;
  const int64_t all = end * static_cast<int64_t>(ranks.size());
  return all == 0 ? Fraction() : FractionOf(all - busy, all);
}

Fraction ScheduleProof::peak_micro_batches() const {
  Fraction most;
  for (const RankTimes& rank : ranks) {
    const Fraction own = FractionOf(rank.peak_live, std::max(rank.stages, 1));
    if (own.numerator * most.denominator > most.numerator * own.denominator) most = own;
  }
  return most;
}

absl::Status CheckPasses(const Schedule& schedule) {
  Places places(schedule);
  MUSTER_RETURN_IF_ERROR(Place(schedule, places));
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of_stage[stage];
    for (int64_t m = 0; m < schedule.micro_batches; ++m) {
      const StagePass forward = {PassKind::kForward, stage, m};
      if (!places.Has(forward)) {
        return Broken("stage ", stage, " never goes forward over micro-batch ", m, "; add ",
                      ToString(forward), " to rank ", rank);
      }
      MUSTER_RETURN_IF_ERROR(CheckBackward(rank, stage, m, places));
    }
  }
  return CheckOrderOfWeights(schedule, places);
}

absl::StatusOr<ScheduleProof> ProveOrder(const Schedule& schedule, PassOrder order,
                                         const PassCosts& costs) {
  MUSTER_RETURN_IF_ERROR(CheckTransfers(schedule, order));
  ScheduleWalk walk(schedule, order, costs);
  if (walk.Run()) return walk.Take();
  const std::optional<std::string> move = SmallestMove(schedule, walk);
  return Broken(RingText(schedule, walk), move ? "; with " + *move + " it would end"
                                               : "; no pass that is put elsewhere mends it alone");
}

absl::StatusOr<ScheduleProof> ProveSchedule(const Schedule& schedule, const PassCosts& costs) {
  const double most = 4.0 * schedule.num_stages() * static_cast<double>(schedule.micro_batches);
  if (most > 4.0 * static_cast<double>(kMostPasses)) {
    return Broken("it has ", schedule.num_stages(), " stages and ", schedule.micro_batches,
                  " micro-batches; at most ", kMostPasses, " passes can be looked at");
  }
  MUSTER_RETURN_IF_ERROR(CheckPasses(schedule));
  return ProveOrder(schedule, OrderOfRanks(schedule, {}), costs);
}

}  // namespace muster::plan
