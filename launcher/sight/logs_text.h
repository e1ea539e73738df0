// The lines of a job's logs for a terminal, and where to go on.
//
// Threads: compatible; pure.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/inquiry.h"
#include "rendezvous/status/log_window.h"

namespace muster::launcher {

// Inquiry::detail of `ask`.
//
// Errors: kResourceExhausted: it names more places than an inquiry may.
absl::StatusOr<std::string> DetailOf(const status::LogsAsk& ask);

enum class LogLayout {
  kByRank,   // one log after the other, each under its name
  kPrefixed  // every line behind its rank, for what goes on
};

class LogReel {
 public:
  // `merges`: lines that several ranks have written alike are one.
  LogReel(LogLayout layout, bool merges) : layout_(layout), merges_(merges) {}

  // What is to be asked for next: the places behind what has been shown. `follows`: it will be
  // asked again until the job ends.
  status::LogsAsk Next(int64_t tail_lines, bool follows) const;
  // The text of an answer. Who has not answered is named once.
  std::string Show(const std::vector<InquiryPart>& parts);
  // Whether a log has more than has been shown of it.
  bool HasMore() const;
  // Some node has answered.
  bool HasAnswers() const { return has_answers_; }

 private:
  std::string ShowPieces(const std::vector<status::LogPiece>& pieces);

  const LogLayout layout_;
  const bool merges_;
  std::map<std::pair<int, std::string>, status::LogPiece> shown_;  // without text
  std::map<std::string, std::string> unanswered_;                  // by node: why
  bool has_answers_ = false;
};

// "[0-7] step 3": of each line who wrote it, in the order of the lines of their logs. Lines that
// only some have written stand where those have them.
std::string MergedLines(const std::vector<status::LogPiece>& pieces);

// The first error of the job, by attempt and then by time; "" if there is none.
std::string FirstErrorText(const std::vector<InquiryPart>& parts);

}  // namespace muster::launcher
