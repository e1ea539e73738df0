// A real Slurm on this machine: munge, slurmctld on a login node, and four slurmd on nodes n8 to
// n11, whose order in Slurm is not the alphabetical one. Each node has a host name, an address, a
// network and processes of its own; files are shared. Two "GPUs" per node are character devices.
//
// Needs root, network namespaces, and Debian's slurm-wlm and munge.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/node_network.h"
#include "tests/support/subprocess.h"

namespace muster::testing {

class SlurmCluster {
 public:
  // Why there can be none here; empty: there can.
  static std::string WhyNot();

  // Starts everything and waits until the nodes are idle; what does not come is in trouble().
  SlurmCluster();
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  // Ends the jobs that are left, and waits until all nodes are free: Slurm may hold one for long
  // after the end of a job of which a step was killed, and would give the next job another.
  void AwaitIdleNodes();

  // `argv` as it runs on the login node.
  std::vector<std::string> OnLoginNode(const std::vector<std::string>& argv) const;
  // The configuration for programs that run there.
  std::string conf() const { return directory_.File("slurm.conf"); }
  // Runs one of Slurm's own commands and returns what it printed.
  std::string Ask(const std::vector<std::string>& argv) const;
  // One line per job that has ended.
  std::string Completions() const { return ReadFile(directory_.File("completions")); }

  // Empty: it runs. Else what is wrong, with logs.
  const std::string& trouble() const { return trouble_; }

 private:
  std::vector<std::string> OnNode(int node, const std::string& name,
                                  const std::vector<std::string>& argv) const;
  void WriteConfiguration() const;
  void StartMunge();
  void StartDaemon(std::vector<std::string> argv);

  const TemporaryDirectory directory_;
  const NodeNetwork network_;
  std::vector<std::unique_ptr<Subprocess>> daemons_;
  std::string trouble_;
};

}  // namespace muster::testing
