#include "proto/base/http_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HttpHead, IsMethodPathAndAuthorization) {
  HttpRequest request;
  ASSERT_TRUE(
      ParseHttpHead("GET /metrics?name=a HTTP/1.1\r\nHost: x\r\n"
                    "AUTHORIZATION:  Bearer abc \r\n\r\n",
                    request));
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.path, "/metrics");
  EXPECT_EQ(request.authorization, "Bearer abc");
}

TEST(HttpHead, MayEndItsLinesWithoutCarriageReturns) {
  HttpRequest request;
  EXPECT_TRUE(IsWholeHead("GET / HTTP/1.0\n\n"));
  EXPECT_TRUE(ParseHttpHead("GET / HTTP/1.0\n\n", request));
  EXPECT_FALSE(IsWholeHead("GET / HTTP/1.1\r\nHost: x\r\n"));
}

TEST(HttpHead, IsRefusedWhereItIsNone) {
  HttpRequest request;
  for (const char* bytes :
       {"", "\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET x HTTP/1.1\r\n\r\n",
        "GET / HTTP/2\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n"}) {
    EXPECT_FALSE(ParseHttpHead(bytes, request)) << bytes;
  }
}

TEST(HttpAnswer, SaysItsLengthAndClosesTheConnection) {
  const std::string bytes = WriteHttpAnswer({.body = "alive\n"}, "GET");
  EXPECT_THAT(bytes, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(bytes, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(bytes, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(bytes, EndsWith("\r\n\r\nalive\n"));
}

TEST(HttpAnswer, HasNoBodyForHeadButItsLength) {
  const std::string bytes = WriteHttpAnswer({.body = "alive\n"}, "HEAD");
  EXPECT_THAT(bytes, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(bytes, EndsWith("\r\n\r\n"));
}

TEST(HttpAnswer, SaysHowToAuthenticateOnlyWhereItIsAskedFor) {
  EXPECT_THAT(WriteHttpAnswer({.status = 401, .challenge = "Bearer"}, "GET"),
              HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(WriteHttpAnswer({}, "GET"), Not(HasSubstr("WWW-Authenticate")));
}

}  // namespace
}  // namespace muster
