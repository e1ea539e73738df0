// A store inside one process: for ranks that are threads.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "muster/store.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class MemoryStore final : public Store {
 public:
  absl::Status Set(const std::string& key, const std::string& value, MonoTime deadline) override;
  absl::StatusOr<std::string> Wait(const std::string& key, MonoTime deadline) override;

 private:
  base::Mutex mu_;
  base::Condition changed_;
  absl::btree_map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
