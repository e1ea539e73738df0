#include "worker_runtime/train/console.h"

#include <cstdio>

namespace muster::train {

void Console::Print(absl::string_view text) const {
  if (!speaks_) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace muster::train
