#include "rendezvous/client/connect_failure.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace muster::rendezvous {
namespace {

// The code of a grpc::StatusCode, which has the numbers of absl::StatusCode.
absl::StatusCode CodeOf(int code) { return static_cast<absl::StatusCode>(code); }

bool ContainsAny(const std::string& text, absl::Span<const absl::string_view> parts) {
  const std::string lower = absl::AsciiStrToLower(text);
  return std::any_of(parts.begin(), parts.end(), [&lower](absl::string_view part) {
    return absl::StrContains(lower, absl::AsciiStrToLower(part));
  });
}

absl::string_view OnOrOff(const ConnectAttempt& attempt) {
  return attempt.tls == TlsMode::kOff ? "off" : "on";
}

ConnectFailure NotMuster(const ConnectAttempt& attempt, absl::string_view what) {
  ConnectFailure failure;
  failure.kind = FailureKind::kNotMuster;
  failure.detail =
      absl::StrCat("what listens on ", attempt.endpoint, " (", attempt.address, ") ", what,
                   ": another program has the port, or --tls or --auth differs (here, TLS is ",
                   OnOrOff(attempt), ")");
  failure.fatal = absl::InvalidArgumentError(failure.detail);
  return failure;
}

ConnectFailure Secret(const ConnectAttempt& attempt) {
  const absl::Status status = DifferentSecret(attempt);
  return {FailureKind::kSecret, std::string(status.message()), status};
}

std::string NoConnectionInWords(const ConnectAttempt& attempt, const std::string& message) {
  if (attempt.was_accepted) {
    return absl::StrCat("the connection to ", attempt.endpoint, " was lost");
  }
  if (ContainsAny(message, {"Connection refused"})) {
    return absl::StrCat("connection refused by ", attempt.endpoint, " (", attempt.address,
                        "): nothing listens there yet");
  }
  if (ContainsAny(message, {"Socket closed", "Connection reset"})) {
    // A server that is just ending does this too, or a proxy whose server has not started: it is
    // not fatal.
    return absl::StrCat(
        attempt.endpoint, " (", attempt.address,
        ") closes the connection: the server is ending, or --tls or --auth differs (here, TLS is ",
        OnOrOff(attempt), "), or another program has the port");
  }
  return absl::StrCat("cannot connect to ", attempt.endpoint, " (", attempt.address,
                      "): ", message);
}

ConnectFailure ExplainUnavailable(const ConnectAttempt& attempt, const std::string& message) {
  if (attempt.tls == TlsMode::kLook && ContainsAny(message, {kCertificateOfAnother, "ALPN"})) {
    ConnectFailure failure{.kind = FailureKind::kNotMuster};
    failure.detail = absl::StrCat("what listens on ", attempt.endpoint, " (", attempt.address,
                                  ") shows a TLS certificate that is not Muster's: another program "
                                  "has the port");
    failure.fatal = absl::InvalidArgumentError(failure.detail);
    return failure;
  }
  if (attempt.tls != TlsMode::kLook &&
      ContainsAny(message, {"certificate verify failed", "CERTIFICATE_VERIFY_FAILED"})) {
    ConnectFailure failure = Secret(attempt);
    failure.kind = FailureKind::kCertificate;
    return failure;
  }
  if (ContainsAny(message, {kCertificateOfMuster, "Peer name", "bad certificate", "unknown ca"})) {
    return Secret(attempt);
  }
  if (ContainsAny(message, {"wrong version number", "unknown protocol", "http request",
                            "packet length too long", "unsupported protocol", "ALPN"})) {
    return NotMuster(attempt, "does not speak TLS");
  }
  if (ContainsAny(message, {"http1.x server", "Failed parsing HTTP/2",
                            "Unexpected EOF reading settings", "Trying to connect an http1"})) {
    return NotMuster(attempt, "does not speak gRPC");
  }
  ConnectFailure failure;
  failure.detail = NoConnectionInWords(attempt, message);
  return failure;
}

}  // namespace

absl::Status DifferentSecret(const ConnectAttempt& attempt) {
  return absl::PermissionDeniedError(
      absl::StrCat(attempt.node_name, "'s secret (", attempt.secret_origin,
                   ") differs from that of the server at ", attempt.endpoint,
                   ": copy ~/.config/muster/token from there, or set MUSTER_TOKEN_FILE on both to "
                   "one shared file"));
}

ConnectFailure ExplainFailure(const ConnectAttempt& attempt, int code, const std::string& message) {
  switch (CodeOf(code)) {
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return Secret(attempt);
    case absl::StatusCode::kUnimplemented:
      return NotMuster(attempt, "is a gRPC server, but not the rendezvous of Muster");
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition: {
      const std::string detail = absl::StrCat("the server at ", attempt.endpoint, " refused ",
                                              attempt.node_name, ": ", message);
      return {FailureKind::kRefused, detail, absl::InvalidArgumentError(detail)};
    }
    case absl::StatusCode::kUnavailable:
      return ExplainUnavailable(attempt, message);
    default:
      return {FailureKind::kRetry,
              absl::StrCat("the stream to ", attempt.endpoint, " ended",
                           message.empty() ? "" : absl::StrCat(": ", message)),
              absl::OkStatus()};
  }
}

}  // namespace muster::rendezvous
