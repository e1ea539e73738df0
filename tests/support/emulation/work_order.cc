#include "tests/support/emulation/work_order.h"

#include <algorithm>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

// How long a preference holds, in pieces of work. One lane runs far ahead of others, then another:
// a choice among lanes that is drawn for each piece would keep them side by side, which hides
// waits that are missing far apart.
// Source: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding
// Bugs", 2010
constexpr int kMeanPreferred = 8;
// Between some waits of the host the preference holds throughout, and nothing runs just because
// somebody asks whether it has: what is put there last is then not done when what forgot to wait
// for it runs. Asked so often, something does.
constexpr int kPatience = 64;

}  // namespace

WorkOrder::Handle WorkOrder::Add(std::function<std::string()> run, int lane,
                                 const std::vector<Handle>& after, std::function<bool()> may_run) {
  auto item = std::make_shared<Item>(
      Item{.run = std::move(run), .lane = lane, .may_run = std::move(may_run)});
  for (const Handle& earlier : after) {
    if (earlier->done) continue;
    earlier->later.push_back(item);
    ++item->waits;
  }
  if (item->waits == 0) ready_.push_back(item);
  return item;
}

uint64_t WorkOrder::Preference(int lane) const { return Draws(mood_ + lane).Next(); }

bool WorkOrder::RunOne(std::string& failure) {
  MUSTER_CHECK(!ready_.empty());  // work waits for earlier work only
  if (!is_steady_ && draws_.Below(kMeanPreferred) == 0) mood_ = draws_.Next();
  auto next = ready_.end();
  for (auto it = ready_.begin(); it != ready_.end(); ++it) {
    if ((*it)->may_run != nullptr && !(*it)->may_run()) continue;
    if (next == ready_.end() || Preference((*next)->lane) < Preference((*it)->lane)) next = it;
  }
  if (next == ready_.end()) return false;
  const Handle item = *next;
  ready_.erase(next);
  std::string one = item->run();
  if (failure.empty()) failure = std::move(one);
  item->done = true;
  item->run = nullptr;
  item->may_run = nullptr;
  for (Handle& later : item->later) {
    if (--later->waits == 0) ready_.push_back(std::move(later));
  }
  item->later.clear();
  return true;
}

bool WorkOrder::MayRun() const {
  return std::any_of(ready_.begin(), ready_.end(), [](const Handle& item) {
    return item->may_run == nullptr || item->may_run();
  });
}

std::string WorkOrder::RunUntil(const std::vector<Handle>& wanted) {
  std::string failure;
  mood_ = draws_.Next();
  for (const Handle& item : wanted) {
    while (!item->done && RunOne(failure)) {
    }
  }
  is_steady_ = draws_.Below(2) == 0;
  return failure;
}

std::string WorkOrder::Run(size_t most) {
  std::string failure;
  for (size_t left = most; left > 0 && !ready_.empty() && RunOne(failure); --left) {
  }
  return failure;
}

size_t WorkOrder::DrawSome() {
  if (is_steady_ && ++num_asked_ % kPatience != 0) return 0;
  return draws_.Below(most_at_once_);
}

}  // namespace muster::testing
