// Nodes of a round connect to each other before its workers start, in pairs, over the addresses and
// ports that those will use, and pass some full packets both ways.
//
//   caller                                       called
//   header, greeting            ->
//                               <-               header, greeting, its clock
//   one full packet             ->
//                               <-               as many bytes
//   kBulkBytes                  ->
//                               <-               kBulkBytes
//   closes                      ->
//
// A greeting is free text that a node tells its neighbours. What comes from a stranger, or of
// another round, is closed without an answer. Neither side leaves a port in TIME_WAIT.
//
// Threads: loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/network/pairs.h"
#include "asio/io_context.hpp"

namespace muster::agent {

struct PairCheckRun {
  struct Node {
    std::string address;  // numeric
    int port = 0;
  };
  std::vector<Node> nodes;  // by node rank
  int self = 0;
  Neighbours neighbours;      // whom this node calls, and who calls it: all ends agree
  std::vector<int> doubtful;  // of them; they get a part of the patience (kDoubtfulPatience)
  uint64_t instance = 0;      // with `round`: which check it is
  int64_t round = 0;
  std::string greeting;  // at most kGreetingBytesMax
  absl::Duration patience;
};
inline constexpr size_t kGreetingBytesMax = size_t{16} << 10;
inline constexpr absl::Duration kDoubtfulPatience = absl::Milliseconds(500);

struct PairResult {
  int peer = 0;
  PairFault fault = PairFault::kNone;  // of this node's way to it
  std::string greeting;                // empty: it was not heard
  double clock_offset = 0;  // seconds that its clock is ahead of ours at least, if it was reached
};

struct PairResults {
  std::vector<PairResult> called;  // for each neighbour that this node connects to
  std::vector<int> absent;         // neighbours that did not reach this node
};

class PairCheck {
 public:
  explicit PairCheck(asio::io_context& loop);
  ~PairCheck();
  PairCheck(const PairCheck&) = delete;
  PairCheck& operator=(const PairCheck&) = delete;

  // `then` is called once, from the loop, when every neighbour has been reached and has reached
  // this node, or the patience is over; by then nothing listens any more. A port that cannot be
  // listened on is left to those who do not reach it.
  void Start(PairCheckRun run, absl::AnyInvocable<void(PairResults)> then);
  void Cancel();

 private:
  class Run;

  asio::io_context& loop_;
  std::shared_ptr<Run> run_;  // with what is under way in it
};

}  // namespace muster::agent
