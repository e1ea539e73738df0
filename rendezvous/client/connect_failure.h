// Why a stream to the rendezvous broke, in words, and whether trying again can help.
//
// gRPC reports a refused connection, a failed TLS handshake and a stranger on the port alike as
// UNAVAILABLE; they differ in the text only. The texts are those of gRPC 1.51 and OpenSSL 3.0; one
// that is not recognised is retried and shown as it is.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/io/credentials.h"

namespace muster::rendezvous {

enum class FailureKind {
  kRetry,      // nobody there (yet), or the connection was lost
  kSecret,     // the other side does not hold our secret
  kNotMuster,  // something else listens there, or with the other --tls
  // Its certificate is not of our secret: whose it is, is seen by an attempt with TlsMode::kLook.
  kCertificate,
  kRefused,  // the server has refused us in words; trying again is in vain
};

struct ConnectFailure {
  FailureKind kind = FailureKind::kRetry;
  std::string detail;  // one sentence for people
  // What to report when giving up: kPermissionDenied or kInvalidArgument; ok for kRetry.
  absl::Status fatal;
};

struct ConnectAttempt {
  std::string endpoint;       // as the user wrote it, "host:port"
  std::string address;        // what it was resolved to, "127.0.0.1:29400"
  std::string node_name;      // this node
  std::string secret_origin;  // where this node's secret came from
  TlsMode tls = TlsMode::kOn;
  bool was_accepted = false;  // the stream had been up
};

// `code` and `message` are those of grpc::Status.
ConnectFailure ExplainFailure(const ConnectAttempt& attempt, int code, const std::string& message);

// The sentence for a server or an agent that does not hold the same secret.
absl::Status DifferentSecret(const ConnectAttempt& attempt);

}  // namespace muster::rendezvous
