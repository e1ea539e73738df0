// A file system that is soon full.
#pragma once

#include <string>

namespace muster::testing {

// A tmpfs of `size` ("64k", "1m") at `path`, which is made if it is not there, while this object
// lives. Mounting needs root: a test that finds it not mounted() skips, and says so.
class SmallFileSystem {
 public:
  SmallFileSystem(const std::string& path, const std::string& size);
  ~SmallFileSystem();
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  bool mounted() const { return why_not_.empty(); }
  // Why a test skips.
  const std::string& why_not() const { return why_not_; }
  const std::string& path() const { return path_; }

  // Leaves no room, but for what removing `filler` gives back.
  void Fill() const;
  std::string filler() const { return path_ + "/filler"; }

 private:
  const std::string path_;
  std::string why_not_;
};

}  // namespace muster::testing
