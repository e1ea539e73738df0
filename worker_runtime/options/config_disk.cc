#include "worker_runtime/options/config_disk.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::plan {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  return text;
}

}  // namespace

ConfigView ConfigFilesOnDisk(int world_size, int of_node) {
  const char* const home = std::getenv("HOME");
  return {.read_file = ReadFile,
          .home = home == nullptr ? "" : home,
          .facts = {{"world_size", absl::StrCat(world_size)},
                    {"nproc_per_node", absl::StrCat(of_node)}}};
}

}  // namespace muster::plan
