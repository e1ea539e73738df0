// Short fuzzing that needs no tool: the texts of a corpus in the tree, and texts made from them by
// small changes that a fixed seed draws, so that a failure comes again. What once broke a parser
// becomes a file of its corpus.
#pragma once

#include <functional>
#include <string>

namespace muster::testing {

// Calls `check` with the text of each file in `corpus` (a path below the tree), and then with
// `rounds` changed ones: bytes replaced, inserted, removed, repeated, or taken from another text.
void ForEachMutation(const std::string& corpus, int rounds,
                     const std::function<void(const std::string& text)>& check);

}  // namespace muster::testing
