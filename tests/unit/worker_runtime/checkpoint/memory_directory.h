// A temporary directory in memory: what these tests prove does not need the disk, and to sync it
// thousands of times takes a minute.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "proto/base/status_macros.h"

namespace muster::checkpoint {

class MemoryDirectory {
 public:
  MemoryDirectory() : path_("/dev/shm/mt.XXXXXX") {
    if (mkdtemp(path_.data()) != nullptr) return;
    path_ = "/tmp/mt.XXXXXX";
    MUSTER_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~MemoryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryDirectory(const MemoryDirectory&) = delete;
  MemoryDirectory& operator=(const MemoryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace muster::checkpoint
