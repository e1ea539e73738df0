// Pods without a cluster: what a manifest of deploy/k8s declares, as the controllers of Kubernetes
// and JobSet make pods of it, each in a network namespace of its own.
//
// A container sees a file system with the host's programs, ours in /usr/local/bin, and exactly the
// environment and the mounts that its manifest declares. Pods have the names that headless services
// give them; the node's /etc/hosts is in the place of the cluster's DNS.
//
// Needs root and `ip` (iproute2).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/job_under_test.h"
#include "tests/support/node_network.h"
#include "tests/support/subprocess.h"

namespace muster::testing {

struct PodMount {
  std::string path;
  std::string secret;         // name of the Secret whose files lie there; empty: none do
  std::string mode;           // permissions of the secret's files, in octal
  bool outlives_pod = false;  // a claim's volume
};

struct Pod {
  std::string name;                // what its hostname(1) says
  std::vector<std::string> hosts;  // names by which other pods find it
  Arguments command;
  std::vector<std::pair<std::string, std::string>> environment;
  std::string working_directory;
  std::vector<PodMount> mounts;
  std::string user;  // number of its user and its group; empty: root
  // What the kubelet asks over HTTP, and nothing else; empty: it asks nothing.
  std::string probe_port;
  std::string probe_path;
};

// The pods that `file` of deploy/k8s makes, in the order of their indices. What no controller would
// take fails the test.
std::vector<Pod> PodsOf(const std::string& file);

// Whether the set of `file` starts the containers of all its pods again when its program has ended
// with `code`.
bool RestartsAllContainers(const std::string& file, int code);

// Whether a pod of `file` that ends with `code` is the end of its whole job, for good or for bad.
bool EndsJob(const std::string& file, int code);

class PodsInNamespaces : public JobTest {
 protected:
  static constexpr absl::Duration kPodPatience = absl::Seconds(100);

  void SetUp() override;
  void TearDown() override;

  // Puts the pods on nodes 1, 2, …, with `program` as the train.py of their images.
  void Place(std::vector<Pod> pods, const std::string& program);
  // Starts the container of a pod, for the first time or again. What is in it ends with it.
  Subprocess StartContainer(size_t pod) const;
  // `muster` with `arguments` and the secret, beside the program of a pod that runs.
  SubprocessResult RunInPod(size_t pod, const Arguments& arguments) const;
  // Whether the kubelet finds the pod ready.
  bool IsReady(size_t pod) const;
  // Ends it as a failing node does, or a kernel that is out of memory.
  static void KillContainer(Subprocess& container);

 private:
  // A shell script that makes a pod's file system and becomes its program.
  std::string ScriptOf(size_t pod) const;

  std::vector<Pod> pods_;
  std::unique_ptr<NodeNetwork> network_;
};

}  // namespace muster::testing
