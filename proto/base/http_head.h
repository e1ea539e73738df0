// The little of HTTP/1.1 that a scrape and a health check need: the head of a request, and the
// answer to it. Request bodies, kept connections and chunks are not understood; each client gets
// one answer, and the connection is closed.
//
// Threads: pure.
// Source: RFC 9110 (status codes, Authorization), RFC 9112 (the form of messages).
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// What a head may have, to its empty line.
inline constexpr size_t kHttpHeadBytesMax = size_t{8} << 10;

struct HttpRequest {
  std::string method;
  std::string path;           // without what follows a question mark
  std::string authorization;  // the value of that header; empty: there was none
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string challenge;  // of a 401: how to authenticate
  std::string body;
};

// Whether all of a head has come.
bool IsWholeHead(absl::string_view bytes);

// False: it is no request of HTTP/1.0 or 1.1.
bool ParseHttpHead(absl::string_view bytes, HttpRequest& out);

// The bytes of the answer; to HEAD without its body.
std::string WriteHttpAnswer(const HttpAnswer& answer, absl::string_view method);

}  // namespace muster
