// Sets up where and how our own lines are written, as the options say.
#pragma once

#include <functional>
#include <string>

#include "launcher/line/flags.h"

namespace muster::launcher {

// `sink` gets each line; empty: they go to stderr. From the main thread.
void ConfigureLog(const OutputFlags& flags, std::function<void(const std::string&)> sink = nullptr);

}  // namespace muster::launcher
