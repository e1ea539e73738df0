// Runs a scenario: commands to one RendezvousCore, and what it says to whom, as text. See
// scenarios/*.txt.
//
//   start min=2 max=3 [restarts=0] [static] [last_call=30s] [join_timeout=600s]
//   join n1 [workers=2] [rank=0]     an agent asks for a place; its name is as given
//   run n1                           it starts the round that it has been told to run
//   fail n1 [local_rank=0] [exit=1] [signal=9] [age=2s]
//   succeed n1, stopped n1           all workers ended with 0; all workers are stopped
//   leave n1 [signal=15] [ends_job]
//   disconnect n1                    its stream breaks
//   silent n1, heard n1              it renews its lease no more; again
//   advance 5s                       everyone else renews every two seconds meanwhile
//
// A directive is shown when it differs from the one before to the same node.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::simulation {

// `text` is blocks of commands, each followed by "----" and what is expected. Returns the same text
// with what really happens in the place of what is expected.
std::string RunScenario(absl::string_view text);

}  // namespace muster::simulation
