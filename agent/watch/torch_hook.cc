#include "agent/watch/torch_hook.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/process/runtime_directory.h"
#include "proto/base/status_macros.h"

namespace muster::agent {

// The texts of the generated torch_hook_text.cc.
extern const absl::string_view kTorchHookText;
extern const absl::string_view kWarmPythonText;

namespace {

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> WriteTorchHook(const std::string& runtime_directory) {
  const std::string folder = runtime_directory + "/python";
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", folder, ": ", std::strerror(errno)));
  }
  MUSTER_RETURN_IF_ERROR(WriteFile(folder + "/sitecustomize.py", kTorchHookText));
  MUSTER_RETURN_IF_ERROR(WriteFile(folder + "/muster_warm.py", kWarmPythonText));
  return folder;
}

std::string TorchPythonPath(const std::string& server_path) { return server_path + "p"; }
std::string TorchLastWordsPath(const std::string& server_path) { return server_path + ".last"; }

std::string TorchServerPath(const std::string& runtime_directory, Round round, int local_rank) {
  std::string path = absl::StrCat(runtime_directory, "/", round.value(), ".", local_rank);
  return TorchPythonPath(path).size() > kSocketPathBytesMax ? "" : path;
}

}  // namespace muster::agent
