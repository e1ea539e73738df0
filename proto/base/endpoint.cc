#include "proto/base/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr size_t kMaxHostBytes = 253;

absl::Status Expected(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

bool IsIpv6(const std::string& text) {
  in6_addr address;
  return std::all_of(text.begin(), text.end(), absl::ascii_isprint) &&
         inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &address) == 1;
}

absl::StatusOr<int> ParsePort(absl::string_view text) {
  int port = 0;
  const bool is_number =
      !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!is_number || !absl::SimpleAtoi(text, &port) || port > kMaxPort) {
    return absl::InvalidArgumentError(absl::StrCat("'", absl::Utf8SafeCHexEscape(text),
                                                   "' is not a port; expected 1 to ", kMaxPort));
  }
  return port;
}

absl::StatusOr<Endpoint> MakeEndpoint(absl::string_view host, absl::string_view port_text) {
  MUSTER_ASSIGN_OR_RETURN(std::string name, ParseHost(std::string(host)));
  MUSTER_ASSIGN_OR_RETURN(int port, ParsePort(port_text));
  return Endpoint{.host = std::move(name), .port = port};
}

absl::StatusOr<Endpoint> WithDefault(const std::string& host, int default_port) {
  MUSTER_ASSIGN_OR_RETURN(std::string name, ParseHost(host));
  return Endpoint{.host = std::move(name), .port = default_port};
}

}  // namespace

std::string ToString(const Endpoint& endpoint) {
  return absl::StrContains(endpoint.host, ':')
             ? absl::StrCat("[", endpoint.host, "]:", endpoint.port)
             : absl::StrCat(endpoint.host, ":", endpoint.port);
}

bool IsHost(const std::string& text) {
  if (text.empty() || text.size() > kMaxHostBytes) return false;
  if (absl::StrContains(text, ':')) return IsIpv6(text);
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

absl::StatusOr<std::string> ParseHost(const std::string& text) {
  const bool is_bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  std::string host = is_bracketed ? text.substr(1, text.size() - 2) : text;
  if (IsHost(host)) return host;
  return absl::InvalidArgumentError(
      absl::StrCat("'", absl::CHexEscape(text), "' is neither a host name nor an IP address"));
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text, int default_port) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  constexpr char kExpected[] = "HOST[:PORT], such as node1:29400 or [::1]:29400";
  if (absl::StrContains(text, '/')) return Expected(kExpected);
  if (absl::StartsWith(text, "[")) {
    const size_t close = text.find(']');
    if (close == std::string::npos || first > close ||
        (close + 1 < text.size() && text[close + 1] != ':')) {
      return Expected("[IPv6 address]:port");
    }
    const std::string host = text.substr(1, close - 1);
    if (close + 1 < text.size()) return MakeEndpoint(host, text.substr(close + 2));
    return WithDefault(host, default_port);
  }
  if (first == std::string::npos) return WithDefault(text, default_port);
  if (first == last) return MakeEndpoint(text.substr(0, first), text.substr(first + 1));
  if (IsHost(text)) return Endpoint{.host = text, .port = default_port};
  if (IsHost(text.substr(0, last))) {
    return Expected(absl::StrCat("brackets around an IPv6 address with a port: [",
                                 text.substr(0, last), "]", text.substr(last)));
  }
  return Expected(kExpected);
}

}  // namespace muster
