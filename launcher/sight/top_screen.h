// The screen of `muster top`: a line for each rank with what it does, uses, and what its GPU does.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/base/inquiry.h"
#include "rendezvous/status/figures.h"
#include "rendezvous/status/status_page.h"

namespace muster::launcher {

// What ranks are sorted by; the first of each are those that need somebody's eyes most.
enum class TopSort { kLag, kRank, kCpu, kGpu, kMemory };
// "lag", "rank", "cpu", "gpu", "memory".
const char* NameOf(TopSort sort);
TopSort Next(TopSort sort);

struct TopView {
  TopSort sort = TopSort::kLag;
  std::string filter;  // a part of a node's name, or a rank; empty: all
  std::string typing;  // the filter that is being typed, with what asks for it; empty: none is
  size_t lines = 24;   // of the screen; 0: without end
  size_t columns = 80;
};

// What is shown: the answers to kStatus and kFigures.
struct TopFigures {
  status::StatusPage page;
  std::vector<InquiryPart> parts;
  std::string trouble;  // why there are no newer figures; empty: there are
};

// Lines of at most `columns`, each with its end; `lines` of them at most.
std::string TopScreen(const TopFigures& figures, const TopView& view);

}  // namespace muster::launcher
