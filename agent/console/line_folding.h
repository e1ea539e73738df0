// --fold: a line that several ranks print within a short time appears once, with the ranks and
// their number.
//
// Lines of one rank keep their order. One folder per console: what goes to another is not its like.
// Pure; time is an argument.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/console/line_format.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

struct FoldedLine {
  std::string text;
  std::vector<Rank> ranks;  // ascending, at least one
  friend bool operator==(const FoldedLine&, const FoldedLine&) = default;
};

// `[host:0-7 ×8] `.
std::string MakeFoldedPrefix(absl::string_view host, const std::vector<Rank>& ranks);

// Threads: compatible.
class LineFolder {
 public:
  struct Options {
    absl::Duration window;       // how long a line waits for its likes
    int num_ranks = 1;           // a line that this many have printed waits no longer
    size_t bytes_max = 1 << 20;  // held; beyond, the oldest lines wait no longer
  };
  explicit LineFolder(Options options) : options_(options), num_ranks_(options.num_ranks) {}

  void set_num_ranks(int num_ranks) { num_ranks_ = num_ranks; }

  void Add(Rank rank, absl::string_view text, MonoTime now);

  // The lines that are due at `now`, in the order in which they were first printed.
  std::vector<FoldedLine> TakeDue(MonoTime now);
  std::vector<FoldedLine> TakeAll() { return TakeDue(MonoTime::InfiniteFuture()); }
  // When TakeDue has something; InfiniteFuture() if nothing is held.
  MonoTime NextDeadline() const;

 private:
  struct Held {
    FoldedLine line;
    MonoTime first_seen;
  };
  bool IsDue(const Held& held, MonoTime now) const;
  FoldedLine TakeFront();

  // Constant after construction.
  const Options options_;
  // Loop thread only.
  int num_ranks_;
  std::deque<Held> held_;
  int64_t front_number_ = 0;                      // of held_.front(), counted over all lines
  absl::btree_map<std::string, int64_t> newest_;  // number of the newest held line with this text
  absl::btree_map<Rank, int64_t> last_of_rank_;   // number of the line that the rank printed last
  size_t bytes_held_ = 0;
};

}  // namespace muster::agent
