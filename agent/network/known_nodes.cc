#include "agent/network/known_nodes.h"

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

std::string KeyOf(int node) { return absl::StrCat("muster/network/is/", node); }

}  // namespace

KnownNodes::KnownNodes(asio::io_context& loop, Ask ask) : ask_(std::move(ask)), timer_(loop) {}

void KnownNodes::TakeList(const Peers& peers) {
  Cancel();
  known_.clear();
  for (const Peer& peer : peers) {
    known_[static_cast<int>(known_.size())] = {
        .name = peer.name, .address = peer.address, .port = peer.worker_ports.front()};
  }
}

void KnownNodes::Meet(Meeting meeting, absl::AnyInvocable<void()> then) {
  known_.clear();
  round_ = meeting.round;
  awaited_ = meeting.others.size();
  then_ = std::move(then);
  ask_(StoreSet{.key = KeyOf(meeting.self), .value = Encode(meeting.own)},
       [](const StoreReply&) {});
  known_[meeting.self] = std::move(meeting.own);
  timer_.expires_after(absl::ToChronoNanoseconds(2 * meeting.patience));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error && awaited_ != 0) Finish();
  });
  StoreWait wait{.timeout = meeting.patience};
  for (const int node : meeting.others) wait.keys.push_back(KeyOf(node));
  ask_(std::move(wait),
       [this, nodes = std::move(meeting.others), round = round_](const StoreReply& reply) {
         if (absl::IsAborted(reply.status) || round != round_ || awaited_ == 0) return;
         const bool are_all_here = reply.status.ok() && reply.values.size() == nodes.size();
         for (size_t i = 0; i < nodes.size(); ++i) {
           are_all_here ? Take(nodes[i], reply.values[i]) : AskFor(nodes[i]);
         }
       });
}

// Some are not there in time: each by itself.
void KnownNodes::AskFor(int node) {
  ask_(StoreGet{.key = KeyOf(node)}, [this, node, round = round_](const StoreReply& reply) {
    if (absl::IsAborted(reply.status) || round != round_) return;
    Take(node, reply.values.empty() ? "" : reply.values.front());
  });
}

// Empty: it has none.
void KnownNodes::Take(int node, const std::string& text) {
  if (awaited_ == 0) return;
  Introduction introduction = DecodeIntroduction(text);
  if (introduction.port != 0) known_[node] = std::move(introduction);
  if (--awaited_ == 0) Finish();
}

void KnownNodes::Finish() {
  Cancel();
  std::exchange(then_, nullptr)();
}

void KnownNodes::Cancel() {
  timer_.cancel();
  awaited_ = 0;
}

PairEnd KnownNodes::EndOf(int node) const {
  const auto found = known_.find(node);
  if (found == known_.end()) return {.name = absl::StrCat("node rank ", node)};
  return {.name = found->second.name, .address = found->second.address};
}

void KnownNodes::Doubt(const std::vector<int>& nodes) {
  doubtful_.clear();
  for (const int node : nodes) {
    const PairEnd end = EndOf(node);
    doubtful_.insert({end.name, end.address});
  }
}

std::vector<int> KnownNodes::Doubtful() const {
  std::vector<int> nodes;
  for (const auto& [node, end] : known_) {
    if (doubtful_.contains({end.name, end.address})) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace muster::agent
