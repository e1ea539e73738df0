// What observers have asked the agents of a job, and what they have answered so far: gathers the
// parts of each answer, until all have come or the time is up, and names who has not answered.
//
// Members are not trusted: a part that is larger than it may be is dropped, and so is one that
// nobody asked for. There are kInquiriesPerJobMax open inquiries of a job at most, each of
// kInquiryAnswerBytesMax at most.
//
// Pure. Thread-compatible: one caller at a time (rendezvous/server/job_loop.h, on its loop).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "proto/base/inquiry.h"
#include "proto/base/mono_time.h"
#include "rendezvous/core/job_table.h"
#include "rendezvous/hangs/judge/poll.h"

namespace muster::status {

using rendezvous::AgentKey;
using rendezvous::JobKey;

inline constexpr size_t kInquiriesPerJobMax = 16;

// A member of the job that is asked about.
struct InquiredNode {
  Incarnation agent;
  std::string name;
  int first_rank = 0;
  int num_ranks = 0;
  std::string why_not;  // it is not asked; empty: it is
};

struct AskMember {
  AgentKey to;
  Inquiry inquiry;
};
struct TellAsker {
  AgentKey to;
  InquiryAnswer answer;
};

class InquiryDesk {
 public:
  using Orders = std::vector<std::variant<AskMember, TellAsker>>;

  // `nodes`, by first rank, are those of `job`. Where the inquiry names a rank, its node is asked.
  Orders OnInquiry(const AgentKey& from, Inquiry inquiry, const JobKey& job,
                   std::vector<InquiredNode> nodes, MonoTime now);
  Orders OnReply(const AgentKey& from, InquiryReply reply);
  // An agent, or an observer, is gone.
  Orders OnGone(const AgentKey& who);
  // The answers that are whole, or late.
  Orders Tick(MonoTime now);
  MonoTime NextDeadline() const;
  size_t num_open() const { return open_.size(); }

 private:
  struct Open {
    AgentKey asker;
    JobKey job;
    size_t bytes_max = 0;                          // of one part
    InquiryAnswer answer;                          // with a part for each node
    absl::btree_map<Incarnation, size_t> part_of;  // of those that are asked
    hangs::Poll poll;
  };

  uint64_t next_id_ = 1;
  absl::btree_map<uint64_t, Open> open_;
};

}  // namespace muster::status
