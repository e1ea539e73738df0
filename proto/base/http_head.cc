#include "proto/base/http_head.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

bool IsWholeHead(absl::string_view bytes) {
  return absl::StrContains(bytes, "\r\n\r\n") || absl::StrContains(bytes, "\n\n");
}

bool ParseHttpHead(absl::string_view bytes, HttpRequest& out) {
  out = {};
  if (!IsWholeHead(bytes)) return false;
  bool is_first = true;
  for (absl::string_view line : absl::StrSplit(bytes, '\n')) {
    line = absl::StripSuffix(line, "\r");
    if (is_first) {
      is_first = false;
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
      if (words.size() != 3 || words[0].empty() || !absl::StartsWith(words[1], "/")) return false;
      if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") return false;
      out.method = std::string(words[0]);
      out.path = std::string(words[1].substr(0, words[1].find('?')));
      continue;
    }
    if (line.empty()) return true;
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) return false;
    if (absl::EqualsIgnoreCase(line.substr(0, colon), "authorization")) {
      out.authorization = std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  return false;
}

std::string WriteHttpAnswer(const HttpAnswer& answer, absl::string_view method) {
  return absl::StrCat(
      "HTTP/1.1 ", answer.status, " ", ReasonOf(answer.status),
      "\r\nContent-Type: ", answer.content_type, "\r\nContent-Length: ", answer.body.size(),
      answer.challenge.empty() ? "" : absl::StrCat("\r\nWWW-Authenticate: ", answer.challenge),
      answer.status == 405 ? "\r\nAllow: GET, HEAD" : "", "\r\nConnection: close\r\n\r\n",
      method == "HEAD" ? "" : answer.body);
}

}  // namespace muster
