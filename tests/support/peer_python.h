// The environment of Python packages that `deploy/dev deps --peers` keeps for tests: the newest
// PyTorch, and programs that launch by it.
#pragma once

#include <string>

namespace muster::testing {

// Its interpreter; empty if there is none.
std::string PeerPython();

// Why a test is skipped then.
inline constexpr char kNoPeerPython[] =
    "there is no PyTorch of PyPI's in ~/.cache/muster: run deploy/dev deps --peers";

}  // namespace muster::testing
