// host:port, read and written in one place.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster {

inline constexpr int kMaxPort = 65535;

// An empty host means that none was given; port 0 means that any will do.
struct Endpoint {
  std::string host;  // a name or an address; IPv6 without brackets
  int port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "node1:29400"; an IPv6 literal is bracketed: "[::1]:29400".
std::string ToString(const Endpoint& endpoint);

// True for what can be looked up: letters, digits, `.`, `-` and `_`, or an IPv6 literal without
// brackets, with or without a zone.
bool IsHost(const std::string& text);

// "host", "host:port", "[v6]:port", "[v6]", or a bare IPv6 literal. Without a port in the text it
// is `default_port`, whatever that is.
//
// Errors: kInvalidArgument saying what was expected.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text, int default_port);

// A host name or address, without a port; the brackets of an IPv6 address are taken off.
//
// Errors: kInvalidArgument.
absl::StatusOr<std::string> ParseHost(const std::string& text);

}  // namespace muster
