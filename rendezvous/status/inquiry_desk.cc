#include "rendezvous/status/inquiry_desk.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace muster::status {
namespace {

// No inquiry is late: only one that has all its parts is answered.
constexpr MonoTime kNotYet;

size_t BytesForEach(size_t num_nodes) {
  return std::clamp(kInquiryAnswerBytesMax / std::max<size_t>(num_nodes, 1), kInquiryPartBytesMin,
                    kInquiryPartBytesMax);
}

absl::Status NoSuchRank(int rank, const std::vector<InquiredNode>& nodes) {
  int world_size = 0;
  for (const InquiredNode& node : nodes) world_size += node.num_ranks;
  return absl::NotFoundError(absl::StrCat("the job has no rank ", rank, " now: it has ", world_size,
                                          world_size == 1 ? " rank" : " ranks"));
}

// The nodes that the inquiry is about, of `nodes` of its job; an error if there are none.
absl::StatusOr<std::vector<InquiredNode>> NodesOf(const Inquiry& inquiry,
                                                  std::vector<InquiredNode> nodes) {
  if (inquiry.rank.has_value()) {
    const int rank = *inquiry.rank;
    const auto holder = std::find_if(nodes.begin(), nodes.end(), [rank](const InquiredNode& node) {
      return rank >= node.first_rank && rank < node.first_rank + node.num_ranks;
    });
    if (holder == nodes.end()) return NoSuchRank(rank, nodes);
    return std::vector<InquiredNode>{*holder};
  }
  if (nodes.empty()) {
    return absl::NotFoundError("no workers run now: the job waits for its next round");
  }
  return nodes;
}

// What is said of a node as long as its agent has not answered.
InquiryPart PartWithoutAnswer(const InquiredNode& node, InquiryKind kind) {
  InquiryPart part{.node = node.name, .first_rank = node.first_rank, .num_ranks = node.num_ranks};
  part.status = node.why_not.empty()
                    ? absl::DeadlineExceededError(absl::StrCat("its agent has not answered within ",
                                                               absl::FormatDuration(TimeFor(kind))))
                    : absl::UnavailableError(node.why_not);
  return part;
}

}  // namespace

InquiryDesk::Orders InquiryDesk::OnInquiry(const AgentKey& from, Inquiry inquiry, const JobKey& job,
                                           std::vector<InquiredNode> nodes, MonoTime now) {
  const auto refuse = [&](absl::Status why) {
    return Orders{TellAsker{from, {.id = inquiry.id, .status = std::move(why)}}};
  };
  const absl::StatusOr<std::vector<InquiredNode>> asked = NodesOf(inquiry, std::move(nodes));
  if (!asked.ok()) return refuse(asked.status());
  const auto of_job = std::count_if(open_.begin(), open_.end(),
                                    [&](const auto& entry) { return entry.second.job == job; });
  if (static_cast<size_t>(of_job) >= kInquiriesPerJobMax) {
    return refuse(absl::ResourceExhaustedError(
        absl::StrCat(of_job, " others ask this job at the same time; try again")));
  }
  const uint64_t id = next_id_++;
  Open& open = open_[id] = {.asker = from, .job = job};
  open.bytes_max = std::min(inquiry.bytes_max, BytesForEach(asked->size()));
  open.answer.id = inquiry.id;
  inquiry.id = id;
  inquiry.bytes_max = open.bytes_max;
  Orders orders;
  absl::btree_set<Incarnation> members;
  for (const InquiredNode& node : *asked) {
    if (node.why_not.empty()) {
      open.part_of[node.agent] = open.answer.parts.size();
      members.insert(node.agent);
      orders.push_back(AskMember{{job, node.agent}, inquiry});
    }
    open.answer.parts.push_back(PartWithoutAnswer(node, inquiry.kind));
  }
  open.poll.Ask(id, std::move(members), now + TimeFor(inquiry.kind));
  for (auto& answer : Tick(now)) orders.push_back(std::move(answer));
  return orders;
}

InquiryDesk::Orders InquiryDesk::OnReply(const AgentKey& from, InquiryReply reply) {
  const auto found = open_.find(reply.id);
  if (found == open_.end() || found->second.job != from.job) return {};
  Open& open = found->second;
  if (!open.poll.Take(from.agent, reply.id)) return {};
  InquiryPart& part = open.answer.parts[open.part_of[from.agent]];
  if (reply.part.body.size() > open.bytes_max) {
    part.status = absl::ResourceExhaustedError(absl::StrCat("its agent has answered with ",
                                                            reply.part.body.size(),
                                                            " bytes, more than ", open.bytes_max));
  } else {
    part.status = std::move(reply.part.status);
    part.body = std::move(reply.part.body);
  }
  return Tick(kNotYet);
}

InquiryDesk::Orders InquiryDesk::OnGone(const AgentKey& who) {
  absl::erase_if(open_, [&](const auto& entry) { return entry.second.asker == who; });
  for (auto& [id, open] : open_) {
    if (open.job != who.job || !open.poll.Take(who.agent, id)) continue;
    open.answer.parts[open.part_of[who.agent]].status =
        absl::UnavailableError("its agent has lost its connection to the rendezvous");
  }
  return Tick(kNotYet);
}

InquiryDesk::Orders InquiryDesk::Tick(MonoTime now) {
  Orders orders;
  for (auto& [id, open] : open_) {
    if (open.poll.IsOver(now)) orders.push_back(TellAsker{open.asker, std::move(open.answer)});
  }
  absl::erase_if(open_, [&](const auto& entry) { return entry.second.poll.IsOver(now); });
  return orders;
}

MonoTime InquiryDesk::NextDeadline() const {
  MonoTime next = MonoTime::InfiniteFuture();
  for (const auto& [id, open] : open_) next = Min(next, open.poll.NextDeadline());
  return next;
}

}  // namespace muster::status
