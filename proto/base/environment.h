// Environment variables as values: the one look-up of the project.
//
// Only a program's main reads the process's own environment (`EnvironmentOf(environ)`); everybody
// else is given a map, so that tests can make one up.
//
// Threads: pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Environment variables by name, sorted.
using EnvironmentMap = std::map<std::string, std::string>;

// Reads "NAME=value" texts that end with a null pointer, as `environ` and `execve` have them. The
// first of several texts with one name wins, as it does for getenv.
EnvironmentMap EnvironmentOf(const char* const* entries);

// nullptr if it is not set; set and empty is something else.
const std::string* FindVariable(const EnvironmentMap& environment, absl::string_view name);

// Its value, "" if it is not set: for variables of which empty means unset.
std::string VariableOrEmpty(const EnvironmentMap& environment, absl::string_view name);

// `texts`, which outlive it, as execve takes arguments and variables: pointers, and null behind.
std::vector<char*> ExecPointers(const std::vector<std::string>& texts);

}  // namespace muster
