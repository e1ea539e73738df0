#include "proto/base/numeric_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <bit>

namespace muster {

std::vector<unsigned char> BytesOfAddress(const std::string& address) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const std::string plain = address.substr(0, address.find('%'));
  if (::inet_pton(AF_INET, plain.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.begin() + sizeof(in_addr)};
  }
  if (::inet_pton(AF_INET6, plain.c_str(), bytes.data()) == 1) {
    return {bytes.begin(), bytes.end()};
  }
  return {};
}

bool IsLoopbackAddress(const std::string& address) {
  const std::vector<unsigned char> bytes = BytesOfAddress(address);
  if (bytes.size() == sizeof(in_addr)) return bytes[0] == 127;
  return !bytes.empty() && bytes == BytesOfAddress("::1");
}

int CommonPrefixLength(const std::string& a, const std::string& b) {
  const std::vector<unsigned char> x = BytesOfAddress(a);
  const std::vector<unsigned char> y = BytesOfAddress(b);
  if (x.size() != y.size()) return 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto different = static_cast<unsigned char>(x[i] ^ y[i]);
    if (different != 0) return static_cast<int>(8 * i) + std::countl_zero(different);
  }
  return static_cast<int>(8 * x.size());
}

}  // namespace muster
