#include "tests/support/files.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {

const char* const kSourceDirectory = MUSTER_SOURCE_DIRECTORY;
const char* const kBinaryDirectory = MUSTER_BINARY_DIRECTORY;

std::string Built(const std::string& name) { return absl::StrCat(kBinaryDirectory, "/", name); }

namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = "/tmp/mt.XXXXXX";
  MUSTER_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // a test that failed may have left a process that still writes
  fs::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool FileExists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  MUSTER_CHECK(file.good());
}

std::string WriteScript(const std::string& path, const std::string& text) {
  WriteFile(path, text);
  MUSTER_CHECK(chmod(path.c_str(), 0755) == 0);
  return path;
}

std::vector<std::string> FilesBelow(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, ignored)) {
    if (entry.is_regular_file(ignored)) {
      files.push_back(fs::relative(entry.path(), directory, ignored).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace muster::testing
