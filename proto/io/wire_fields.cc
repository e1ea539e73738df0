#include "proto/io/wire_fields.h"

#include "proto/base/words.h"

namespace muster {

bool CheckNumber(WireCheck& check, absl::string_view name, NumberBounds bounds, int64_t number) {
  if (number >= bounds.min && number <= bounds.max) return true;
  check.Range(name, number, bounds.min, bounds.max);
  return false;
}

void OneText::operator()(Wire<std::string> wire, std::string& value) const {
  if (!wire.decodes()) {
    const size_t bytes = std::min(value.size(), bounds.sent);
    wire.out().assign(value, bounds.sends_end ? value.size() - bytes : 0, bytes);
    return;
  }
  value = wire.check().Text(name, wire.in(), bounds.taken);
  if (bounds.is_printable) value = WithoutControls(value);
}

}  // namespace muster
