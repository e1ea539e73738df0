// The place where a call stands: std::source_location, or its twin where clang has none of
// libstdc++'s.
#pragma once

#include <source_location>

namespace muster::testing {

#ifdef __cpp_lib_source_location
using SourcePlace = std::source_location;
#else
class SourcePlace {
 public:
  static constexpr SourcePlace current(const char* file = __builtin_FILE(),
                                       unsigned line = __builtin_LINE(),
                                       unsigned column = __builtin_COLUMN()) {
    SourcePlace place;
    place.file_ = file;
    place.line_ = line;
    place.column_ = column;
    return place;
  }
  const char* file_name() const { return file_; }
  unsigned line() const { return line_; }
  unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0, column_ = 0;
};
#endif

}  // namespace muster::testing
