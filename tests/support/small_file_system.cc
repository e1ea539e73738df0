#include "tests/support/small_file_system.h"

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace muster::testing {

SmallFileSystem::SmallFileSystem(const std::string& path, const std::string& size) : path_(path) {
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);
  if (mount("muster-test", path.c_str(), "tmpfs", 0, absl::StrCat("size=", size).c_str()) != 0) {
    why_not_ = absl::StrCat("a small file system cannot be mounted here: ", std::strerror(errno));
  }
}

SmallFileSystem::~SmallFileSystem() {
  if (mounted()) umount2(path_.c_str(), MNT_DETACH);
}

void SmallFileSystem::Fill() const {
  std::ofstream file(filler(), std::ios::binary);
  const std::string page(4096, 'x');
  while (file << page << std::flush) continue;
}

}  // namespace muster::testing
