// What a training is continued with that is not what its checkpoint was trained with.
//
// Threads: pure.
#pragma once

#include <map>
#include <string>

namespace muster::train {

using Settings = std::map<std::string, std::string>;

// "seed is 2 and was 1; update.beta2 is …": the settings of both that differ and change what is
// learned. What decides only where arrays lie and how they travel is left out. Empty: none.
std::string DescribeChanges(const Settings& saved, const Settings& now);

}  // namespace muster::train
