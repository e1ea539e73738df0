#include "worker_runtime/engine/passes_in_flight.h"

#include "worker_runtime/engine/boundary.h"

namespace muster::engine {

PassInFlight& PassesInFlight::At(int stage, int64_t micro_batch) {
  std::unique_ptr<PassInFlight>& place = in_flight_[{stage, micro_batch}];
  if (place == nullptr) place = std::make_unique<PassInFlight>();
  return *place;
}

Tape& PassesInFlight::Begin(PassInFlight& pass) {
  if (free_tapes_.empty()) {
    free_tapes_.push_back(std::make_unique<Tape>(pool_));
    free_tapes_.back()->set_recompute(recompute_);
  }
  pass.tape = std::move(free_tapes_.back());
  free_tapes_.pop_back();
  pass.received = Watch(*pass.tape, std::exchange(pass.came, {}));
  return *pass.tape;
}

void PassesInFlight::End(PassInFlight& pass) {
  pass.received = {};
  pass.output = {};
  free_tapes_.push_back(std::move(pass.tape));
}

}  // namespace muster::engine
