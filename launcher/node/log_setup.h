// Sets up where and how our own lines are written, as the options say.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "launcher/line/flags.h"

namespace muster::launcher {

// `sink` gets each line; empty: they go to stderr. From the main thread.
void ConfigureLog(const OutputFlags& flags, std::function<void(const std::string&)> sink = nullptr);

// Says in the log why a command is not carried out; the exit code that follows.
int Refuse(const absl::Status& status);

}  // namespace muster::launcher
