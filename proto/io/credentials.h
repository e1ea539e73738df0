// gRPC credentials, one function each for server and client. Mutual TLS unless it is switched off;
// without it the challenge (challenge.h) still authenticates each stream, but what is said can be
// read and changed on the way.
//
// Threads: thread-safe.
#pragma once

#include <memory>

#include "absl/types/span.h"
#include "proto/io/job_key.h"

namespace grpc {
class ChannelArguments;
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace muster {

enum class TlsMode {
  kOn,
  kOff,
  // A client's that believes no server: the error of its streams says whose certificate it was
  // shown, by one of the words below.
  kLook,
};
inline constexpr char kCertificateOfMuster[] = "certificate of muster";
inline constexpr char kCertificateOfAnother[] = "certificate of another program";

// One certificate per owner, chosen by the name that the client asks for (SNI); only clients whose
// certificate was made of one of the owners' secrets get through. `owners` has one element at
// least.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(absl::Span<const OwnerKey> owners,
                                                               TlsMode tls);

// Sets in `arguments` the name to expect, which stands for the user and not for a host.
std::shared_ptr<grpc::ChannelCredentials> MakeClientCredentials(absl::string_view secret,
                                                                TlsMode tls,
                                                                grpc::ChannelArguments* arguments);

// Call before the first other use of gRPC. It writes failed handshakes and binds to stderr itself,
// which we report in our own words: that is switched off, unless the user has set GRPC_VERBOSITY.
// So is the search for cycles of locks in Debian's Abseil, which gRPC's many locks pay for. gRPC is
// kept until the process ends, which `main` does by LeaveWith (descriptors.h).
void PrepareGrpc();

}  // namespace muster
