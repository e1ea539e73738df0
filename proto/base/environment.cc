#include "proto/base/environment.h"

namespace muster {

EnvironmentMap EnvironmentOf(const char* const* entries) {
  EnvironmentMap environment;
  for (const char* const* entry = entries; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

const std::string* FindVariable(const EnvironmentMap& environment, absl::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? nullptr : &found->second;
}

std::string VariableOrEmpty(const EnvironmentMap& environment, absl::string_view name) {
  const std::string* value = FindVariable(environment, name);
  return value == nullptr ? "" : *value;
}

std::vector<char*> ExecPointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace muster
