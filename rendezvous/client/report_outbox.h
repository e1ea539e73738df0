// What a node says of itself: its newest report, or that nothing has changed, and the words of its
// hang watch that travel with one.
//
// Threads: one at a time.
#pragma once

#include <deque>
#include <optional>

#include "proto/base/ids.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::proto {
class FromAgent;
}  // namespace muster::proto

namespace muster::rendezvous {

inline constexpr size_t kMaxUnsentWatchWords = 4;

class ReportOutbox {
 public:
  // Replaces one that has not been sent.
  void Put(const AgentReport& report);
  // A summary, or that a rank has aborted. The first summary of a round and aborts go with a report
  // at once, or are dropped where there is no stream; of other summaries the newest waits for the
  // next report.
  void PutWord(const hangs::NodeWord& word, bool has_stream);

  // A stream is accepted: its server knows nothing yet. What was urgent is so no more at its end.
  void BeginStream();
  void EndStream() { urgent_words_.clear(); }
  // How often the lease is to be renewed; zero: with each report, as until the server says more.
  void RenewEvery(absl::Duration interval) { renew_interval_ = interval; }

  // Fills in the next message. False: there is none, or nothing in it is new and it is not time to
  // renew the lease.
  bool Next(MonoTime now, Incarnation incarnation, ServerTerm term, proto::FromAgent& out);

 private:
  std::optional<AgentReport> newest_;
  bool is_unsent_ = false;
  std::optional<AgentReport> sent_;  // by this stream: a renewal refers to it
  MonoTime sent_at_;                 // the newest report or renewal
  absl::Duration renew_interval_;
  std::optional<hangs::NodeWord> newest_summary_;  // since the last that was sent
  Round summarized_ = kNoRound;                    // of the last summary
  // That nobody has asked for, each with a report at once: a server that knows no words reads that.
  std::deque<hangs::NodeWord> urgent_words_;
};

}  // namespace muster::rendezvous
