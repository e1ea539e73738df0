#include "agent/watch/torch_hook.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/process/runtime_directory.h"

namespace muster::agent {

// The text of the generated torch_hook_text.cc.
extern const absl::string_view kTorchHookText;

absl::StatusOr<std::string> WriteTorchHook(const std::string& runtime_directory) {
  const std::string folder = runtime_directory + "/python";
  const std::string path = folder + "/sitecustomize.py";
  errno = 0;
  const bool has_folder = mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  std::ofstream file(path, std::ios::binary);
  file << kTorchHookText;
  file.close();
  if (!has_folder || !file) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return folder;
}

std::string TorchPythonPath(const std::string& server_path) { return server_path + "p"; }
std::string TorchLastWordsPath(const std::string& server_path) { return server_path + ".last"; }

std::string TorchServerPath(const std::string& runtime_directory, Round round, int local_rank) {
  std::string path = absl::StrCat(runtime_directory, "/", round.value(), ".", local_rank);
  return TorchPythonPath(path).size() > kSocketPathBytesMax ? "" : path;
}

}  // namespace muster::agent
