// The environment of Python packages that `deploy/dev deps --peers` keeps for tests: the newest
// PyTorch, and programs that launch by it; and a Prometheus.
#pragma once

#include <functional>
#include <string>

#include "tests/support/subprocess.h"

namespace muster::testing {

// Its interpreter: MUSTER_PEER_PYTHON, or the newest that is complete; empty if there is none.
std::string PeerPython();

// "prometheus" or "promtool", as installed or as `deploy/dev deps --peers` keeps them; empty: it is
// not there.
std::string PeerPrometheus(const std::string& program);

// Why a test is skipped then.
inline constexpr char kNoPeerPython[] =
    "there is no PyTorch of PyPI's, neither by MUSTER_PEER_PYTHON nor in ~/.cache/muster: run "
    "deploy/dev deps --peers";

// What comes of another project's program under its own launcher, where a test wants its outcome to
// compare with: a run that does not end with 0 is printed and tried again, three in all.
// PyTorch 2.15 on Gloo ends a rank at times by its own fault, seen once in 12 runs on a loaded
// machine: a thread drops a Python object while the interpreter ends.
SubprocessResult PeersOutcome(const std::function<SubprocessResult()>& run);

}  // namespace muster::testing
