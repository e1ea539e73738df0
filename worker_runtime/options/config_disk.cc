#include "worker_runtime/options/config_disk.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/io/read_file.h"

namespace muster::plan {
ConfigView ConfigFilesOnDisk(int world_size, int of_node) {
  const char* const home = std::getenv("HOME");
  return {.read_file = [](const std::string& path) { return ReadFile(path); },
          .home = home == nullptr ? "" : home,
          .facts = {{"world_size", absl::StrCat(world_size)},
                    {"nproc_per_node", absl::StrCat(of_node)}}};
}

}  // namespace muster::plan
