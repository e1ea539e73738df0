#include "rendezvous/status/inquiry_desk.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace muster::status {
namespace {

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
  Open open{.asker = from, .job = job, .deadline = now + TimeFor(inquiry.kind)};
  open.bytes_max = std::min(inquiry.bytes_max, BytesForEach(asked->size()));
  open.answer.id = inquiry.id;
  inquiry.id = id;
  inquiry.bytes_max = open.bytes_max;
  Orders orders;
  for (const InquiredNode& node : *asked) {
    if (node.why_not.empty()) {
      open.awaited[node.agent] = open.answer.parts.size();
      orders.push_back(AskMember{{job, node.agent}, inquiry});
    }
    open.answer.parts.push_back(PartWithoutAnswer(node, inquiry.kind));
  }
  const auto opened = open_.emplace(id, std::move(open)).first;
  deadlines_.insert({opened->second.deadline, id});
  if (opened->second.awaited.empty()) orders.push_back(Close(opened));
  return orders;
}

InquiryDesk::Orders InquiryDesk::OnReply(const AgentKey& from, InquiryReply reply) {
  const auto open = open_.find(reply.id);
  if (open == open_.end() || open->second.job != from.job) return {};
  const auto awaited = open->second.awaited.find(from.agent);
  if (awaited == open->second.awaited.end()) return {};
  InquiryPart& part = open->second.answer.parts[awaited->second];
  open->second.awaited.erase(awaited);
  if (reply.part.body.size() > open->second.bytes_max) {
    part.status = absl::ResourceExhaustedError(
        absl::StrCat("its agent has answered with ", reply.part.body.size(), " bytes, more than ",
                     open->second.bytes_max));
  } else {
    part.status = std::move(reply.part.status);
    part.body = std::move(reply.part.body);
  }
  if (!open->second.awaited.empty()) return {};
  return {Close(open)};
}

InquiryDesk::Orders InquiryDesk::OnGone(const AgentKey& who) {
  std::vector<uint64_t> ids;
  for (const auto& [id, open] : open_) ids.push_back(id);
  Orders orders;
  for (const uint64_t id : ids) {
    const auto found = open_.find(id);
    Open& open = found->second;
    if (open.asker == who) {
      deadlines_.erase({open.deadline, id});
      open_.erase(found);
      continue;
    }
    const auto awaited = open.awaited.find(who.agent);
    if (open.job != who.job || awaited == open.awaited.end()) continue;
    open.answer.parts[awaited->second].status =
        absl::UnavailableError("its agent has lost its connection to the rendezvous");
    open.awaited.erase(awaited);
    if (open.awaited.empty()) orders.push_back(Close(found));
  }
  return orders;
}

InquiryDesk::Orders InquiryDesk::Tick(MonoTime now) {
  Orders orders;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    orders.push_back(Close(open_.find(deadlines_.begin()->second)));
  }
  return orders;
}

TellAsker InquiryDesk::Close(Opened::iterator open) {
  TellAsker tell{open->second.asker, std::move(open->second.answer)};
  deadlines_.erase({open->second.deadline, open->first});
  open_.erase(open);
  return tell;
}

}  // namespace muster::status
