// Files of a test: a directory that goes away with it, scripts, and reading back what a program
// wrote.
//
// A test cannot go on when these fail, so they end it (MUSTER_CHECK) instead of returning a status.
#pragma once

#include <string>
#include <vector>

namespace muster::testing {

// Absolute paths: of the tree, and of the programs that were built. They are here alone, so that
// tests which were compiled in one clone need not be in another.
extern const char* const kSourceDirectory;
extern const char* const kBinaryDirectory;
// The path of a program or library of the build.
std::string Built(const std::string& name);

// A fresh directory, removed with everything in it by the destructor. Its path is short, because
// Unix socket paths end at 107 bytes.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Empty if the file is not there.
std::string ReadFile(const std::string& path);
bool FileExists(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

// Writes an executable file, and returns its path. `text` begins with its `#!` line.
std::string WriteScript(const std::string& path, const std::string& text);

// Paths of all regular files below `directory`, relative to it, sorted.
std::vector<std::string> FilesBelow(const std::string& directory);

}  // namespace muster::testing
