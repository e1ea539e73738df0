// What the check of every pair of nodes takes before a round starts.
//
//   pair_check_bench [nodes]
//
// All nodes are in this process, on addresses of the loopback interface: as many event loops as
// there are processors share the work that as many machines would do. Five checks; the median is to
// be at most a second with 64 nodes.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/network/pair_check.h"
#include "asio/io_context.hpp"
#include "proto/base/mono_time.h"

namespace muster::agent {
namespace {

constexpr int kPort = 47021;
constexpr int kChecks = 5;

std::vector<PairCheckRun::Node> NodesOf(int num_nodes) {
  const int pid = static_cast<int>(getpid());
  std::vector<PairCheckRun::Node> nodes;
  for (int node = 0; node < num_nodes; ++node) {
    nodes.push_back(
        {.address = absl::StrCat("127.", 1 + pid % 99, ".", 1 + node / 250, ".", 1 + node % 250),
         .port = kPort});
  }
  return nodes;
}

// Seconds of one check; `failed` counts pairs.
double Check(const std::vector<PairCheckRun::Node>& nodes, int* failed) {
  const int num_nodes = static_cast<int>(nodes.size());
  const int num_loops = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> failed_in(num_loops, 0);
  std::vector<std::thread> threads;
  const MonoTime begin = MonoNow();
  for (int which = 0; which < num_loops; ++which) {
    threads.emplace_back([&nodes, &failed_in, which, num_loops, num_nodes] {
      asio::io_context loop(1);
      std::vector<std::unique_ptr<PairCheck>> checks;
      for (int self = which; self < num_nodes; self += num_loops) {
        checks.push_back(std::make_unique<PairCheck>(loop));
        checks.back()->Start({.nodes = nodes,
                              .self = self,
                              .instance = 7,
                              .round = 3,
                              .greeting = "a node",
                              .patience = absl::Seconds(60)},
                             [&failed_in, which](const PairResults& results) {
                               for (const PairResult& result : results.called) {
                                 failed_in[which] += result.fault == PairFault::kNone ? 0 : 1;
                               }
                             });
      }
      loop.run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : failed_in) *failed += count;
  return absl::ToDoubleSeconds(MonoNow() - begin);
}

int Run(int num_nodes) {
  const std::vector<PairCheckRun::Node> nodes = NodesOf(num_nodes);
  std::vector<double> seconds;
  int failed = 0;
  for (int check = 0; check < kChecks; ++check) seconds.push_back(Check(nodes, &failed));
  std::sort(seconds.begin(), seconds.end());
  std::printf("pair check: %d nodes, %.2f s (%.2f to %.2f; at most 1 is to be reached)", num_nodes,
              seconds[kChecks / 2], seconds.front(), seconds.back());
  std::printf(failed == 0 ? "\n" : "; %d pairs failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace muster::agent

int main(int argc, char** argv) { return muster::agent::Run(argc > 1 ? std::atoi(argv[1]) : 64); }
