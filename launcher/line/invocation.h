// How our program was called.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/base/environment.h"

namespace muster::launcher {

struct Invocation {
  std::string invoked_as;         // path of the binary or link that was called
  std::string binary_directory;   // where our own binary lives
  std::vector<std::string> args;  // behind the subcommand
  EnvironmentMap environment;
  // The origins of options of `args` that the user did not type, for messages.
  std::map<std::string, std::string> sources = {};
};

}  // namespace muster::launcher
