// Reads Prometheus's text format strictly, as promtool does: what it refuses a Prometheus would
// refuse, or warn of.
#pragma once

#include <map>
#include <string>

namespace muster::testing {

// Numbers by name and labels as these stand: `muster_rank_step{run_id="a",rank="0"}`.
using Samples = std::map<std::string, double>;

// Whether it follows the format and its conventions of names: "" or what is wrong, with the line.
std::string WhatIsWrongWith(const std::string& text, Samples* samples = nullptr);

}  // namespace muster::testing
