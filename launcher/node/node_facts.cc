#include "launcher/node/node_facts.h"

#include <sys/utsname.h>

#include <filesystem>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "agent/machine/nvml.h"
#include "proto/io/read_file.h"
#include "proto/io/sha256.h"

namespace muster::launcher {
namespace {

constexpr size_t kScriptBytesMax = size_t{4} << 20;
constexpr int kNvmlTextBytes = 96;

// Variables that change results or must agree for ranks to work together.
constexpr const char* kAlikeVariables[] = {"PYTHONHASHSEED",
                                           "CUBLAS_WORKSPACE_CONFIG",
                                           "NCCL_ALGO",
                                           "NCCL_PROTO",
                                           "NCCL_NVLS_ENABLE",
                                           "NCCL_CROSS_NIC",
                                           "TORCH_NCCL_ASYNC_ERROR_HANDLING"};

// The names in the package folders of an interpreter, without asking it: links stay unresolved,
// since that of a virtual environment says which one it is.
std::vector<std::string> PackageNames(const std::string& python) {
  const std::filesystem::path prefix = std::filesystem::path(python).parent_path().parent_path();
  std::vector<std::string> all;
  for (const char* lib : {"lib", "local/lib"}) {
    for (const std::string& version : NamesIn(prefix / lib)) {
      if (!absl::StartsWith(version, "python3")) continue;
      for (const char* folder : {"site-packages", "dist-packages"}) {
        for (std::string& name : NamesIn(prefix / lib / version / folder)) {
          all.push_back(std::move(name));
        }
      }
    }
  }
  return all;
}

// The hash of a plain file alone: a pipe is read once, by the worker.
std::string HashOfFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  if (std::filesystem::file_size(path, error) > kScriptBytesMax || error) return "";
  return Sha256().Add(TextOf(path)).Finish().substr(0, 16);
}

void AddPackages(const std::string& python, agent::NodeFacts& facts) {
  if (python.empty()) return;
  const std::vector<std::string> names = PackageNames(python);
  const auto add = [&](const char* fact, const std::string& version) {
    if (!version.empty()) facts[fact] = version;
  };
  add("PyTorch", PackageVersion(names, "torch"));
  for (const char* package : {"nvidia_nccl_cu13", "nvidia_nccl_cu12", "nvidia_nccl_cu11"}) {
    add("NCCL", PackageVersion(names, package));
  }
}

void AddGpus(agent::NodeFacts& facts) {
  const agent::Nvml nvml;
  if (!nvml.is_open()) return;
  char text[kNvmlTextBytes] = {};
  const auto driver = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  if (driver && driver(text, sizeof(text)) == agent::kNvmlSuccess) facts["NVIDIA driver"] = text;
  const auto name = nvml.Find<int (*)(agent::NvmlDevice, char*, unsigned)>("nvmlDeviceGetName");
  std::map<std::string, int> models;
  for (const agent::NvmlDevice device : nvml.Devices()) {
    if (name && name(device, text, sizeof(text)) == agent::kNvmlSuccess) ++models[text];
  }
  std::vector<std::string> gpus;
  for (const auto& [model, count] : models) gpus.push_back(absl::StrCat(count, " x ", model));
  if (!gpus.empty()) facts["GPUs"] = absl::StrJoin(gpus, ", ");
}

}  // namespace

std::string PackageVersion(const std::vector<std::string>& names, const std::string& package) {
  for (const std::string& name : names) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, package) || !absl::ConsumePrefix(&rest, "-")) continue;
    if (!absl::ConsumeSuffix(&rest, ".dist-info") && !absl::ConsumeSuffix(&rest, ".egg-info")) {
      continue;
    }
    return std::string(rest);
  }
  return "";
}

agent::NodeFacts GatherNodeFacts(const NodeFactsWish& wish) {
  agent::NodeFacts facts;
  utsname kernel{};
  if (::uname(&kernel) == 0) facts["kernel"] = kernel.release;
  AddPackages(wish.python, facts);
  AddGpus(facts);
  const std::string script = HashOfFile(wish.script);
  if (!script.empty()) facts["script (hash)"] = script;
  for (const char* name : kAlikeVariables) {
    const std::string* value = FindVariable(wish.environment, name);
    facts[name] = value == nullptr ? "no value" : *value;
  }
  return facts;
}

}  // namespace muster::launcher
