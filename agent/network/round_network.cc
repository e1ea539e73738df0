#include "agent/network/round_network.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/network/local_interfaces.h"
#include "proto/base/bounded_json.h"
#include "proto/base/exit_codes.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// How long the reports of all nodes are awaited, and then the judgement.
constexpr absl::Duration kReportPatience = absl::Seconds(15);
constexpr absl::Duration kJudgementPatience = absl::Seconds(30);
constexpr size_t kSaidMax = 256;
constexpr int kReportsAtOnce = 512;  // of the largest nodes, in one reply of the store
constexpr char kJudgementKey[] = "muster/network/judgement";

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
    : options_(std::move(options)), ask_(std::move(ask)), check_(loop), nodes_(loop, ask_) {}

void RoundNetwork::StartRound(const Assignment& assignment, int port) {
  Cancel();
  assignment_ = assignment;
  choice_ = {};
  faults_.clear();
  clearance_.reset();
  const bool have_ports =
      absl::c_all_of(assignment.peers, [](const Peer& peer) { return !peer.worker_ports.empty(); });
  if (options_.use.kind == NetworkUse::Kind::kOff || assignment.num_nodes < 2 || !have_ports) {
    return Conclude({});
  }
  // The server names the graph by the numbers of the round.
  Neighbours neighbours = PlanPairs(assignment.num_nodes, self(),
                                    static_cast<uint64_t>(assignment.instance.value()) ^
                                        static_cast<uint64_t>(assignment.round.value()));
  if (static_cast<int>(assignment.peers.size()) == assignment.num_nodes) {
    nodes_.TakeList(assignment.peers);
    return Check(std::move(neighbours));
  }
  KnownNodes::Meeting meeting{
      .round = assignment.round,
      .self = self(),
      .own = {.name = options_.node_name,
              .address = self() == 0 ? assignment.master_address : options_.address,
              .port = port},
      .patience = options_.patience};
  absl::c_set_union(neighbours.to, neighbours.from, std::back_inserter(meeting.others));
  nodes_.Meet(std::move(meeting), [this, neighbours = std::move(neighbours)]() mutable {
    Check(std::move(neighbours));
  });
}

void RoundNetwork::Check(Neighbours neighbours) {
  PairCheckRun run{.self = self(),
                   .neighbours = std::move(neighbours),
                   .instance = static_cast<uint64_t>(assignment_.instance.value()),
                   .round = assignment_.round.value(),
                   .greeting = GreetingOf(ListInterfaces()),
                   .patience = options_.patience};
  run.nodes.resize(static_cast<size_t>(assignment_.num_nodes));
  for (const auto& [node, end] : nodes_.known()) {
    run.nodes[static_cast<size_t>(node)] = {.address = end.address, .port = end.port};
  }
  // A node that has not said where it is has not answered.
  std::vector<PairResult> silent;
  std::erase_if(run.neighbours.to, [&](int peer) {
    if (nodes_.known().contains(peer)) return false;
    silent.push_back({.peer = peer, .fault = PairFault::kTimeOut});
    return true;
  });
  // A required network is given its time: the job goes on once it has healed.
  if (options_.use.kind != NetworkUse::Kind::kRequire) run.doubtful = nodes_.Doubtful();
  check_.Start(std::move(run), [this, silent = std::move(silent)](PairResults results) {
    absl::c_copy(silent, std::back_inserter(results.called));
    OnChecked(results);
  });
}

void RoundNetwork::WhenReady(Then then) {
  if (clearance_) return then(*clearance_);
  then_ = std::move(then);
}

void RoundNetwork::Cancel() {
  check_.Cancel();
  then_ = nullptr;
  nodes_.Cancel();
}

void RoundNetwork::OnChecked(const PairResults& results) {
  Choose(results.called);
  std::vector<int> doubtful = results.absent;
  for (const PairResult& result : results.called) {
    if (result.fault == PairFault::kNone) continue;
    doubtful.push_back(result.peer);
    faults_.push_back(Describe(EndOf(self()), EndOf(result.peer), result.fault));
    Warn("network", faults_.back());
  }
  nodes_.Doubt(doubtful);
  Report(results.called);
  if (assignment_.node_rank == NodeRank(0)) Judge({});
  AwaitJudgement();
  if (!AwaitsJudgement()) Conclude({});
}

void RoundNetwork::Choose(const std::vector<PairResult>& results) {
  const std::vector<Interface> interfaces = ListInterfaces();
  const std::string own = EndOf(self()).address;
  const std::string route = self() == 0 ? own : SourceOfRouteTo(assignment_.master_address);
  std::vector<PeerAddresses> peers;
  for (int node = 0; node < assignment_.num_nodes; ++node) {
    if (node == self()) continue;
    const auto result =
        absl::c_find_if(results, [&](const PairResult& r) { return r.peer == node; });
    peers.push_back(
        AddressesIn(result == results.end() ? "" : result->greeting, EndOf(node).address));
  }
  choice_ = ChooseNetwork(options_.use, interfaces, route.empty() ? own : route, peers);
  if (choice_.interface.empty()) return;
  std::vector<std::string> set;
  for (const auto& [name, value] : variables()) set.push_back(absl::StrCat(name, "=", value));
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
                    .requires_network = options_.use.kind == NetworkUse::Kind::kRequire,
                    .requires_likeness = options_.use.strict_nodes};
  for (const PairResult& result : results) {
    if (result.fault != PairFault::kNone) {
      report.failed.push_back({.from = self(), .to = result.peer, .fault = result.fault});
    } else if (result.peer == 0) {
      report.clock_offset = -result.clock_offset;
    }
  }
  const std::vector<Interface> interfaces = ListInterfaces();
  if (const Interface* chosen = FindByName(interfaces, choice_.interface); chosen != nullptr) {
    report.facts["MTU of the network"] = absl::StrCat(chosen->mtu);
  }
  ask_(StoreSet{.key = ReportKey(self()), .value = Encode(report)}, [](const StoreReply&) {});
}

// `reports` are those of the first nodes.
void RoundNetwork::Judge(std::vector<NodeReport> reports) {
  const int first = static_cast<int>(reports.size());
  if (first == assignment_.num_nodes) return SetJudgement(JudgeRound(reports, ""));
  StoreWait wait{.timeout = kReportPatience};
  for (int node = first; node < std::min(first + kReportsAtOnce, assignment_.num_nodes); ++node) {
    wait.keys.push_back(ReportKey(node));
  }
  ask_(std::move(wait), [this, reports = std::move(reports),
                         round = assignment_.round](const StoreReply& reply) mutable {
    if (absl::IsAborted(reply.status) || round != assignment_.round) return;  // the round is over
    if (!reply.status.ok()) {
      if (!AwaitsJudgement()) return;
      // What this node asks for stands for all.
      return SetJudgement(JudgeRound(
          {NodeReport{.requires_network = options_.use.kind == NetworkUse::Kind::kRequire}},
          std::string(reply.status.message())));
    }
    for (const std::string& value : reply.values) reports.push_back(DecodeNodeReport(value));
    Judge(std::move(reports));
  });
}

void RoundNetwork::SetJudgement(const RoundJudgement& judgement) {
  for (const std::string& fault : judgement.network) Warn("network", fault);
  for (const std::string& difference : judgement.differences) Warn("nodes_differ", difference);
  ask_(StoreSet{.key = kJudgementKey, .value = Encode(judgement)}, [](const StoreReply&) {});
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
  PairEnd end = nodes_.EndOf(node);
  if (node == self()) end.interface = choice_.interface;
  return end;
}

}  // namespace muster::agent
