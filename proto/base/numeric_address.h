// Numeric addresses of IPv4 and IPv6, compared by their bits.
//
// Threads: pure.
#pragma once

#include <string>
#include <vector>

namespace muster {

// A zone is left out. Empty: `address` is not numeric.
std::vector<unsigned char> BytesOfAddress(const std::string& address);

// 127.0.0.0/8 or ::1: every machine has it, and nobody reaches another's.
bool IsLoopbackAddress(const std::string& address);

// The bits that two addresses of one family have in common at their beginning; else 0.
int CommonPrefixLength(const std::string& a, const std::string& b);

}  // namespace muster
