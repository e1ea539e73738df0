#include "rendezvous/client/link_attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asio/ip/address.hpp"
#include "proto/io/job_key.h"
#include "proto/io/random_bytes.h"
#include "proto/rendezvous.pb.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;

class LinkAttemptTest : public ::testing::Test {
 protected:
  // The server's answer to our hello, with the secret that it holds.
  proto::Challenge ChallengeBy(const std::string& secret) {
    proto::FromAgent message;
    attempt_.SayHello(options_, message);
    const proto::Hello& hello = message.hello();
    transcript_ = {.protocol_version = static_cast<int>(hello.protocol_version()),
                   .run_id = hello.run_id(),
                   .incarnation = Incarnation(hello.incarnation()),
                   .role = hello.role(),
                   .agent_nonce = hello.nonce(),
                   .server_nonce = RandomBytes(kNonceBytes)};
    proto::Challenge challenge;
    challenge.set_nonce(transcript_.server_nonce);
    challenge.set_proof(ProveAsServer(DeriveJobKey(secret, "job"), transcript_));
    return challenge;
  }

  const GrpcLinkOptions options_ = {.host = "there",
                                    .port = 29400,
                                    .secret = {.secret = "ours", .origin = "a file"},
                                    .run_id = "job",
                                    .incarnation = Incarnation(7),
                                    .node_name = "here"};
  LinkAttempt attempt_{options_, {asio::ip::make_address("10.0.0.1"), 29400}, TlsMode::kOn};
  ChallengeTranscript transcript_;
};

TEST_F(LinkAttemptTest, ProvesItselfOnceToWhoHoldsTheSecret) {
  proto::FromAgent message;
  EXPECT_FALSE(attempt_.NextProof(message));
  ASSERT_THAT(attempt_.TakeChallenge(ChallengeBy("ours")), IsOk());
  ASSERT_TRUE(attempt_.NextProof(message));
  EXPECT_EQ(message.proof().proof(), ProveAsAgent(DeriveJobKey("ours", "job"), transcript_));
  EXPECT_FALSE(attempt_.NextProof(message));
}

TEST_F(LinkAttemptTest, ProvesNothingToWhoHoldsAnother) {
  EXPECT_THAT(attempt_.TakeChallenge(ChallengeBy("theirs")),
              StatusIs(absl::StatusCode::kPermissionDenied, ::testing::_));
  proto::Challenge without_nonce = ChallengeBy("ours");
  without_nonce.clear_nonce();
  EXPECT_THAT(attempt_.TakeChallenge(without_nonce),
              StatusIs(absl::StatusCode::kPermissionDenied, ::testing::_));
  proto::FromAgent message;
  EXPECT_FALSE(attempt_.NextProof(message));
}

TEST_F(LinkAttemptTest, EndsForTheReasonForWhichItWasBrokenOffFirst) {
  attempt_.BreakOff(absl::PermissionDeniedError("another secret"));
  attempt_.BreakOff(absl::UnavailableError("and then"));
  const ConnectFailure failure = attempt_.WhyItEnded(1, "CANCELLED");
  EXPECT_EQ(failure.kind, FailureKind::kSecret);
  EXPECT_EQ(failure.detail, "another secret");
  EXPECT_THAT(failure.fatal, StatusIs(absl::StatusCode::kPermissionDenied, ::testing::_));
}

}  // namespace
}  // namespace muster::rendezvous
