// The file of a diary: lines are appended aside, since its disk may be stuck. Of a disk that is
// full one line is said; once there is room, the diary goes on with nothing left out.
//
// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/process/aside.h"
#include "agent/process/lane.h"
#include "asio/io_context.hpp"

namespace muster::agent {

class DiaryFile {
 public:
  DiaryFile(asio::io_context& loop, Lane lane);

  // Appends from now on to kDiaryName in `directory`, which is there; until then, and where it is
  // never called, lines are dropped.
  void Open(const std::string& directory);
  void Append(std::string line);
  // Calls `then` once all lines are written, or after two seconds.
  void Close(std::function<void()> then);

 private:
  class File;

  void WriteAside(std::function<void()> then);

  Aside aside_;
  std::shared_ptr<File> file_;  // shared with threads that may be stuck; null: lines are dropped
};

}  // namespace muster::agent
