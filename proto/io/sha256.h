// SHA-256, piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Threads: thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Add(const void* bytes, size_t count);
  Sha256& Add(absl::string_view text) { return Add(text.data(), text.size()); }
  // 64 hex digits of everything added. Ends the use of this object.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace muster
