#include "proto/io/credentials.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdlib>
#include <functional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status_macros.h"
#include "proto/io/identity.h"

namespace muster {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(absl::Span<const OwnerKey> owners,
                                                               TlsMode tls) {
  MUSTER_CHECK(!owners.empty());
  if (tls == TlsMode::kOff) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  for (const OwnerKey& owner : owners) {
    Identity identity = MakeIdentity(DeriveChannelKey(owner.secret), TlsRole::kServer);
    absl::StrAppend(&options.pem_root_certs, identity.authority_pem);
    options.pem_key_cert_pairs.push_back(
        {std::move(identity.private_key_pem), std::move(identity.certificate_pem)});
  }
  return grpc::SslServerCredentials(options);
}

namespace {

// Believes nobody, and says whom.
class Look final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const bool is_of_muster = absl::c_any_of(request->dns_names(), [](grpc::string_ref name) {
      return IsChannelName(absl::string_view(name.data(), name.size()));
    });
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                           is_of_muster ? kCertificateOfMuster : kCertificateOfAnother);
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest* /*request*/) override {}
};

std::shared_ptr<grpc::ChannelCredentials> MakeLook() {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(grpc::experimental::ExternalCertificateVerifier::Create<Look>());
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeClientCredentials(absl::string_view secret,
                                                                TlsMode tls,
                                                                grpc::ChannelArguments* arguments) {
  if (tls == TlsMode::kOff) return grpc::InsecureChannelCredentials();
  Identity identity = MakeIdentity(DeriveChannelKey(secret), TlsRole::kAgent);
  arguments->SetSslTargetNameOverride(identity.name);
  if (tls == TlsMode::kLook) return MakeLook();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(identity.authority_pem);
  options.pem_private_key = std::move(identity.private_key_pem);
  options.pem_cert_chain = std::move(identity.certificate_pem);
  return grpc::SslCredentials(options);
}

void PrepareGrpc() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Its end waits for good for a thread that could not be started: LeaveWith goes without it.
  [[maybe_unused]] static const bool is_held = (grpc_init(), true);
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace muster
