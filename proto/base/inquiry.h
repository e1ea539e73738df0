// What an observer asks of a job (`muster status`, `stacks`, `logs`, `top`), and the answer. Asking
// changes nothing.
//
//   observer -> server: Inquiry      server -> agents: Inquiry      agent -> server: InquiryReply
//   server -> observer: InquiryAnswer, with one part for each node that was asked
//
// An agent passes on what is asked at its own socket, as an observer of its own job. Bodies are
// JSON (rendezvous/status); the server gathers those of the agents and does not look into them.
//
// Pure values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster {

// Values are sent between nodes: new ones go to the end.
enum class InquiryKind {
  kStatus,   // answered by the server, from what it knows
  kJobs,     // likewise: the jobs of the user
  kStacks,   // by the agents, as the others below
  kFigures,  // what `muster top` shows
  kLogs,
  kWay,  // how the rendezvous is reached; by the agent at whose socket it is asked
};

// What one answer may hold: so that it fits a frame of the agent's socket, and a message.
inline constexpr size_t kInquiryAnswerBytesMax = size_t{8} << 20;
// The share of it that one node may fill: as much as the number of nodes leaves it, between these.
inline constexpr size_t kInquiryPartBytesMax = size_t{1} << 20;
inline constexpr size_t kInquiryPartBytesMin = size_t{4} << 10;
inline constexpr size_t kInquiryDetailBytesMax = size_t{256} << 10;

struct Inquiry {
  uint64_t id = 0;  // of the one who asks, on this stretch of its way
  InquiryKind kind = InquiryKind::kStatus;
  std::string job;                          // run id; empty: that of the stream or socket
  std::optional<int> rank;                  // its node alone is asked, and for this rank; none: all
  size_t bytes_max = kInquiryPartBytesMax;  // of one node's body
  std::string detail;  // of kLogs: which lines (rendezvous/status/log_window.h)
  friend bool operator==(const Inquiry&, const Inquiry&) = default;
};

// How long the agents have for their answers.
inline absl::Duration TimeFor(InquiryKind kind) {
  switch (kind) {
    case InquiryKind::kStacks:
      return absl::Seconds(13);
    case InquiryKind::kLogs:
      return absl::Seconds(4);
    default:
      return absl::Seconds(2);
  }
}

// What one node has answered, or why it has not.
struct InquiryPart {
  std::string node;  // its name
  int first_rank = 0;
  int num_ranks = 0;
  absl::Status status;
  std::string body;
  friend bool operator==(const InquiryPart&, const InquiryPart&) = default;
};

// An agent's; name and ranks of the part are filled in by the server, which knows them.
struct InquiryReply {
  uint64_t id = 0;
  InquiryPart part;
  friend bool operator==(const InquiryReply&, const InquiryReply&) = default;
};

// Errors: kNotFound: no such job, or it has no such rank. kResourceExhausted: too many observers.
//         kUnavailable: nobody answers.
struct InquiryAnswer {
  uint64_t id = 0;
  absl::Status status;
  std::string page;                // of kStatus and kJobs
  std::vector<InquiryPart> parts;  // of the others, by first rank
  friend bool operator==(const InquiryAnswer&, const InquiryAnswer&) = default;
};

}  // namespace muster
