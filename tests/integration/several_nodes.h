// A fixture with agents on 127.0.0.1, 127.0.0.2, … that meet at one held port.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/process_table.h"

namespace muster::testing {

class SeveralNodes : public JobTest {
 protected:
  static std::string AddressOf(int node) { return absl::StrCat("127.0.0.", node); }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_.number()); }

  // The agent of a static job; `node_rank` 0 has the address 127.0.0.1. `rest`: further options and
  // the script.
  Subprocess StartStatic(int node_rank, int num_nodes, const Arguments& rest,
                         const Environment& changes = {}) const {
    return Start(Arguments{"run", absl::StrCat("--nnodes=", num_nodes),
                           absl::StrCat("--node_rank=", node_rank), "--master_addr=127.0.0.1",
                           absl::StrCat("--master_port=", port_.number()),
                           absl::StrCat("--local_addr=", AddressOf(node_rank + 1))} +
                     rest,
                 changes);
  }

  // The agent of an elastic job on AddressOf(`node`). `nodes` is MIN:MAX.
  Subprocess StartElastic(int node, const std::string& nodes, const Arguments& rest,
                          const Environment& changes = {}) const {
    return Start(Arguments{"run", absl::StrCat("--nnodes=", nodes), "--rdzv_backend=c10d",
                           "--rdzv_id=elastic", absl::StrCat("--rdzv_endpoint=", endpoint()),
                           absl::StrCat("--local_addr=", AddressOf(node))} +
                     rest,
                 changes);
  }

  static std::vector<SubprocessResult> WaitForAll(std::vector<Subprocess>& agents) {
    std::vector<SubprocessResult> results;
    for (Subprocess& agent : agents) results.push_back(agent.Wait());
    return results;
  }

  // The process and its descendants, parents first.
  static std::vector<pid_t> AllBelow(pid_t root) {
    std::vector<pid_t> pids = {root};
    for (size_t i = 0; i < pids.size(); ++i) {
      for (const pid_t child : ChildrenOf(pids[i])) pids.push_back(child);
    }
    return pids;
  }
  static void KillWithAllBelow(pid_t root) {
    for (const pid_t pid : AllBelow(root)) kill(pid, SIGKILL);
  }

  // Waits until an agent says that it waits, which it does after a second at the latest.
  static bool SaysThatItWaits(Subprocess& agent) { return agent.WaitForOutput("waiting"); }

 private:
  LoopbackPort port_;
};

}  // namespace muster::testing
