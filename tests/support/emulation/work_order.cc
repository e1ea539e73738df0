#include "tests/support/emulation/work_order.h"

#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

// How long a preference holds, in pieces of work. One lane runs far ahead of others, then another: a
// choice among lanes that is drawn anew for each piece would keep them side by side, which hides
// waits that are missing far apart.
// Source: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010
constexpr int kMeanPreferred = 8;
constexpr size_t kMostAtOnce = 4;
// Between some waits of the host the preference holds throughout, and nothing runs just because somebody asks whether
// it has: what is put there last is then not done when what forgot to wait for it runs. Asked so often, something does.
constexpr int kPatience = 64;

}  // namespace

WorkOrder::Handle WorkOrder::Add(std::function<std::string()> run, int lane,
                                 const std::vector<Handle>& after) {
  auto item = std::make_shared<Item>(Item{.run = std::move(run), .lane = lane});
  for (const Handle& earlier : after) {
    if (earlier->done) continue;
    earlier->later.push_back(item);
    ++item->waits;
  }
  if (item->waits == 0) ready_.push_back(item);
  return item;
}

uint64_t WorkOrder::Preference(int lane) const { return Draws(mood_ + lane).Next(); }

std::string WorkOrder::RunOne() {
  MUSTER_CHECK(!ready_.empty());  // work waits for earlier work only
  if (!is_steady_ && draws_.Below(kMeanPreferred) == 0) mood_ = draws_.Next();
  const auto next = std::max_element(
      ready_.begin(), ready_.end(),
      [&](const Handle& a, const Handle& b) { return Preference(a->lane) < Preference(b->lane); });
  const Handle item = *next;
  ready_.erase(next);
  std::string failure = item->run();
  item->done = true;
  item->run = nullptr;
  for (Handle& later : item->later) {
    if (--later->waits == 0) ready_.push_back(std::move(later));
  }
  item->later.clear();
  return failure;
}

std::string WorkOrder::RunUntil(const std::vector<Handle>& wanted) {
  std::string failure;
  mood_ = draws_.Next();
  for (const Handle& item : wanted) {
    while (!item->done) {
      std::string one = RunOne();
      if (failure.empty()) failure = std::move(one);
    }
  }
  is_steady_ = draws_.Below(2) == 0;
  return failure;
}

std::string WorkOrder::Run(size_t most) {
  std::string failure;
  for (size_t left = most; left > 0 && !ready_.empty(); --left) {
    std::string one = RunOne();
    if (failure.empty()) failure = std::move(one);
  }
  return failure;
}

size_t WorkOrder::DrawSome() {
  if (is_steady_ && ++num_asked_ % kPatience != 0) return 0;
  return draws_.Below(kMostAtOnce);
}

}  // namespace muster::testing
