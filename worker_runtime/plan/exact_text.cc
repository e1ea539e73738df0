#include "worker_runtime/plan/exact_text.h"

#include <charconv>

namespace muster::plan {

std::string ExactText(double value) {
  char text[32];
  value += 0.0;  // -0 becomes 0
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

}  // namespace muster::plan
