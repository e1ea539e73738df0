// A report on a disk, which may be what hangs: so it is written by threads aside, which may outlive
// whoever has it written.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

#include "proto/base/mutex.h"

namespace muster::agent {

class ReportFile {
 public:
  // Replaces what was written under a lower number, whole or not at all.
  //
  // Threads: safe; may block.
  void Write(int number, const std::string& path, const std::string& text) {
    base::MutexLock lock(mu_);
    if (number <= num_written_) return;
    num_written_ = number;
    const std::string unfinished = path + ".part";
    std::ofstream file(unfinished, std::ios::binary);
    file << text;
    file.close();
    if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
      std::remove(unfinished.c_str());
    }
  }

 private:
  base::Mutex mu_;
  int num_written_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::agent
