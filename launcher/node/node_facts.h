// What this node is made of, as far as nodes of one job should be alike in it
// (agent/network/round_judgement.h compares). Looks at files and at NVML; runs nothing.
//
// Threads: safe.
#pragma once

#include <string>
#include <vector>

#include "agent/network/round_judgement.h"
#include "proto/base/environment.h"

namespace muster::launcher {

struct NodeFactsWish {
  std::string python;  // the workers' interpreter; empty: none
  std::string script;  // a path; what is no file is left out
  EnvironmentMap environment;
};

agent::NodeFacts GatherNodeFacts(const NodeFactsWish& wish);

// "2.15.0" of "torch" from the names in a folder of packages: "torch-2.15.0.dist-info",
// "torch-1.13.1.egg-info"; empty: it is not there.
//
// Threads: pure.
std::string PackageVersion(const std::vector<std::string>& names, const std::string& package);

}  // namespace muster::launcher
