#include "agent/network/round_network.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/network/local_interfaces.h"
#include "proto/base/bounded_json.h"
#include "proto/base/exit_codes.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// For a peer to have its assignment, too, and to answer.
constexpr absl::Duration kPatience = absl::Seconds(5);
// For the reports of all nodes, and then for the judgement.
constexpr absl::Duration kReportPatience = absl::Seconds(15);
constexpr absl::Duration kJudgementPatience = absl::Seconds(30);
constexpr size_t kSaidMax = 256;
constexpr char kJudgementKey[] = "muster/network/judgement";

std::string PastKey(int node) { return absl::StrCat("muster/network/past/", node); }
std::string ReportKey(int node) { return absl::StrCat("muster/network/node/", node); }

std::vector<std::string> AddressesOf(const std::vector<Interface>& interfaces) {
  std::vector<std::string> addresses;
  for (const Interface& interface : interfaces) {
    if (interface.is_loopback) continue;
    for (const Interface::Subnet& subnet : interface.subnets) addresses.push_back(subnet.address);
  }
  return addresses;
}

std::string GreetingOf(const std::vector<Interface>& interfaces) {
  return nlohmann::json{{"addresses", AddressesOf(interfaces)}}.dump();
}

PeerAddresses AddressesIn(const std::string& greeting, const std::string& known) {
  PeerAddresses peer{.addresses = {known}};
  const nlohmann::json parsed = ParseJsonFromOutside(greeting);
  if (!parsed.is_object() || !parsed.contains("addresses") || !parsed["addresses"].is_array()) {
    return peer;
  }
  for (const nlohmann::json& address : parsed["addresses"]) {
    if (address.is_string()) peer.addresses.push_back(address.get<std::string>());
  }
  peer.are_complete = true;
  return peer;
}

}  // namespace

RoundNetwork::RoundNetwork(asio::io_context& loop, RoundNetworkOptions options, Ask ask)
    : options_(std::move(options)), ask_(std::move(ask)), check_(loop) {}

void RoundNetwork::StartRound(const Assignment& assignment) {
  Cancel();
  assignment_ = assignment;
  variables_.clear();
  faults_.clear();
  clearance_.reset();
  const bool is_listed = static_cast<int>(assignment.peers.size()) == assignment.num_nodes;
  const bool have_ports =
      absl::c_all_of(assignment.peers, [](const Peer& peer) { return !peer.worker_ports.empty(); });
  if (options_.use.kind == NetworkUse::Kind::kOff || assignment.num_nodes < 2 || !is_listed ||
      !have_ports) {
    return Conclude({});
  }
  // A required network is tried anew each time: the job goes on once it has healed.
  const PastCheck own = options_.use.kind == NetworkUse::Kind::kRequire ? PastCheck() : past_;
  ask_(StoreSet{.key = PastKey(self()), .value = Encode(own)}, [](const StoreReply&) {});
  if (own == PastCheck()) return Check({});
  const Neighbours neighbours = PlanPairs(assignment_.num_nodes, self(), Seed());
  std::vector<int> nodes = {self()};
  absl::c_set_union(neighbours.to, neighbours.from, std::back_inserter(nodes));
  StoreWait wait{.timeout = kPatience};
  for (const int node : nodes) wait.keys.push_back(PastKey(node));
  awaits_past_ = true;
  ask_(std::move(wait), [this, nodes, round = assignment_.round](const StoreReply& reply) {
    if (round != assignment_.round || !std::exchange(awaits_past_, false)) return;
    absl::btree_map<int, PastCheck> past;
    for (size_t i = 0; i < std::min(nodes.size(), reply.values.size()); ++i) {
      past[nodes[i]] = DecodePastCheck(reply.values[i]);
    }
    Check(std::move(past));
  });
}

// `past` is by node rank; of a node that is missing nothing is known.
void RoundNetwork::Check(absl::btree_map<int, PastCheck> past) {
  PairCheckRun run{.self = self(),
                   .neighbours = PlanPairs(assignment_.num_nodes, self(), Seed()),
                   .instance = static_cast<uint64_t>(assignment_.instance.value()),
                   .round = assignment_.round.value(),
                   .greeting = GreetingOf(ListInterfaces()),
                   .patience = kPatience};
  for (const Peer& peer : assignment_.peers) {
    run.nodes.push_back({.address = peer.address, .port = peer.worker_ports.front()});
  }
  std::vector<PairResult> known;
  const PastCheck own = past[self()];
  std::erase_if(run.neighbours.from,
                [&](int peer) { return KnownFault(past[peer], own) != PairFault::kNone; });
  std::erase_if(run.neighbours.to, [&](int peer) {
    const PairFault fault = KnownFault(own, past[peer]);
    if (fault != PairFault::kNone) known.push_back({.peer = peer, .fault = fault});
    return fault != PairFault::kNone;
  });
  check_.Start(std::move(run),
               [this, known = std::move(known)](std::vector<PairResult> results) mutable {
                 absl::c_move(known, std::back_inserter(results));
                 OnChecked(std::move(results));
               });
}

void RoundNetwork::WhenReady(Then then) {
  if (clearance_) return then(*clearance_);
  then_ = std::move(then);
}

void RoundNetwork::Cancel() {
  check_.Cancel();
  then_ = nullptr;
  awaits_past_ = false;
}

void RoundNetwork::OnChecked(std::vector<PairResult> results) {
  past_ = {.instance = static_cast<uint64_t>(assignment_.instance.value()),
           .round = assignment_.round.value(),
           .rank = self()};
  for (const PairResult& result : results) {
    if (result.fault == PairFault::kNone) continue;
    past_.failed.push_back({.from = self(), .to = result.peer, .fault = result.fault});
  }
  Choose(results);
  for (const PairResult& result : results) {
    if (result.fault == PairFault::kNone) continue;
    faults_.push_back(Describe(EndOf(self()), EndOf(result.peer), result.fault));
    Warn("network", faults_.back());
  }
  Report(results);
  if (assignment_.node_rank == NodeRank(0)) Judge();
  AwaitJudgement();
  if (!AwaitsJudgement()) Conclude({});
}

void RoundNetwork::Choose(const std::vector<PairResult>& results) {
  const std::vector<Interface> interfaces = ListInterfaces();
  const std::string& own = assignment_.peers[self()].address;
  const std::string route = self() == 0 ? own : SourceOfRouteTo(assignment_.peers[0].address);
  std::vector<PeerAddresses> peers;
  for (int node = 0; node < assignment_.num_nodes; ++node) {
    if (node == self()) continue;
    const auto result =
        absl::c_find_if(results, [&](const PairResult& r) { return r.peer == node; });
    peers.push_back(AddressesIn(result == results.end() ? "" : result->greeting,
                                assignment_.peers[node].address));
  }
  choice_ = ChooseNetwork(options_.use, interfaces, route.empty() ? own : route, peers);
  variables_ = NetworkVariables(choice_, options_.inherited);
  if (choice_.interface.empty()) return;
  std::vector<std::string> set;
  for (const auto& [name, value] : variables_) set.push_back(absl::StrCat(name, "=", value));
  const std::string line =
      absl::StrCat("network ", choice_.interface, " (", choice_.address, "): ", choice_.reason,
                   set.empty() ? "; its variables are all set already"
                               : absl::StrCat("; workers get ", absl::StrJoin(set, ", ")));
  if (absl::c_linear_search(said_, line)) return;
  said_.push_back(line);
  log::Write(log::Level::kInfo, "network", line);
}

void RoundNetwork::Report(const std::vector<PairResult>& results) {
  NodeReport report{.end = EndOf(self()),
                    .facts = options_.facts,
                    .failed = past_.failed,
                    .requires_network = options_.use.kind == NetworkUse::Kind::kRequire,
                    .requires_likeness = options_.use.strict_nodes};
  for (const PairResult& result : results) {
    if (result.fault == PairFault::kNone && result.peer == 0) {
      report.clock_offset = -result.clock_offset;
    }
  }
  const std::vector<Interface> interfaces = ListInterfaces();
  if (const Interface* chosen = FindByName(interfaces, choice_.interface); chosen != nullptr) {
    report.facts["MTU of the network"] = absl::StrCat(chosen->mtu);
  }
  ask_(StoreSet{.key = ReportKey(self()), .value = Encode(report)}, [](const StoreReply&) {});
}

void RoundNetwork::Judge() {
  StoreWait wait{.timeout = kReportPatience};
  for (int node = 0; node < assignment_.num_nodes; ++node) wait.keys.push_back(ReportKey(node));
  ask_(std::move(wait), [this, round = assignment_.round](const StoreReply& reply) {
    if (absl::IsAborted(reply.status) || round != assignment_.round) return;  // the round is over
    std::vector<NodeReport> reports;
    for (const std::string& value : reply.values) reports.push_back(DecodeNodeReport(value));
    const RoundJudgement judgement =
        JudgeRound(reports, reply.status.ok() ? "" : std::string(reply.status.message()));
    for (const std::string& fault : judgement.network) Warn("network", fault);
    for (const std::string& difference : judgement.differences) Warn("nodes_differ", difference);
    if (!reply.status.ok() && !AwaitsJudgement()) return;
    ask_(StoreSet{.key = kJudgementKey, .value = Encode(judgement)}, [](const StoreReply&) {});
  });
}

void RoundNetwork::AwaitJudgement() {
  ask_(StoreWait{.keys = {kJudgementKey}, .timeout = kJudgementPatience},
       [this, round = assignment_.round](const StoreReply& reply) {
         if (absl::IsAborted(reply.status) || round != assignment_.round) return;
         if (reply.status.ok() && !reply.values.empty()) {
           return OnJudgement(DecodeRoundJudgement(reply.values.front()));
         }
         OnJudgement(
             {.refusal = absl::StrCat("node 0 did not judge the round: ", reply.status.message())});
       });
}

void RoundNetwork::OnJudgement(const RoundJudgement& judgement) {
  NoteFaults(judgement.network);
  if (!AwaitsJudgement()) return;
  if (!judgement.refusal.empty()) {
    return Conclude(
        {.forbidden = Departure{
             .ends_job = true, .reason = judgement.refusal, .exit_code = kExitNodesMissing}});
  }
  if (judgement.failed.empty()) return Conclude({});
  if (assignment_.node_rank == NodeRank(0)) Conclude({.failed = judgement.failed});
}

void RoundNetwork::NoteFaults(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) {
    if (!absl::c_linear_search(faults_, fault)) faults_.push_back(fault);
  }
}

void RoundNetwork::Warn(const std::string& event, const std::string& text) {
  if (absl::c_linear_search(said_, text)) return;
  if (said_.size() == kSaidMax) said_.erase(said_.begin());
  said_.push_back(text);
  log::Write(log::Level::kWarning, event, text);
}

void RoundNetwork::Conclude(RoundClearance clearance) {
  clearance_ = std::move(clearance);
  if (then_) std::exchange(then_, nullptr)(*clearance_);
}

PairEnd RoundNetwork::EndOf(int node) const {
  return {.name = assignment_.peers[node].name,
          .address = assignment_.peers[node].address,
          .interface = node == self() ? choice_.interface : ""};
}

}  // namespace muster::agent
