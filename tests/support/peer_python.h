// The environment of Python packages that `deploy/dev deps --peers` keeps for tests: the newest
// PyTorch, and programs that launch by it; and a Prometheus.
#pragma once

#include <string>

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

}  // namespace muster::testing
