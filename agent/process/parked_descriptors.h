// Descriptors that this process owns and does not use at present, kept out of its table, whose size
// is limited (ulimit -n): they wait as messages in a socket pair.
//
// Source: unix(7), SCM_RIGHTS: what has been sent stays open until it is received, or the socket is
// closed.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "proto/io/unique_fd.h"

namespace muster::agent {

// Threads: compatible.
class ParkedDescriptors {
 public:
  static constexpr size_t kGroupMax = 128;

  // Takes a group of at most kGroupMax. Where the kernel takes no more, for all processes of this
  // user, it stays in the table.
  void Park(std::vector<UniqueFd> group);
  // The group that was parked first and has not been taken yet; fewer, or none, if the table has no
  // room, and empty if there is no group.
  std::vector<UniqueFd> TakeNext();
  // Closes all that is parked.
  void Clear();

 private:
  // What is received comes in the order of sending; a pair's queue takes some hundred messages.
  struct Pair {
    UniqueFd in;
    UniqueFd out;
    int num_sent = 0;
  };
  // One that was not sent has its descriptors here.
  struct Group {
    size_t size = 0;
    std::vector<UniqueFd> kept;
  };
  bool Send(const std::vector<UniqueFd>& group);

  std::deque<Pair> pairs_;
  std::deque<Group> groups_;
};

}  // namespace muster::agent
