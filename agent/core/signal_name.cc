#include "agent/core/signal_name.h"

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster::agent {

std::string SignalName(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return abbreviation == nullptr ? absl::StrCat("signal ", signal)
                                 : absl::StrCat("SIG", abbreviation);
}

}  // namespace muster::agent
