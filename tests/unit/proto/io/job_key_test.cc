#include "proto/io/job_key.h"

#include <gtest/gtest.h>

#include "proto/io/challenge.h"
#include "proto/io/identity.h"

namespace muster {
namespace {

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

TEST(JobKey, IsTheSameForTheSameSecretAndRunId) {
  EXPECT_EQ(DeriveJobKey(kSecret, "j7"), DeriveJobKey(kSecret, "j7"));
}

TEST(JobKey, DiffersByRunId) {
  EXPECT_NE(DeriveJobKey(kSecret, "j7"), DeriveJobKey(kSecret, "j8"));
}

TEST(JobKey, DiffersBySecret) {
  EXPECT_NE(DeriveJobKey(kSecret, "j7"), DeriveJobKey("another secret of a user", "j7"));
}

TEST(JobKey, DiffersFromTheChannelKey) {
  EXPECT_NE(DeriveJobKey(kSecret, ""), DeriveChannelKey(kSecret));
}

TEST(JobKey, TakesARunIdOfAnyLength) {
  EXPECT_NE(DeriveJobKey(kSecret, std::string(100000, 'x')),
            DeriveJobKey(kSecret, std::string(99999, 'x')));
}

TEST(ChannelName, IsAHostNameThatDependsOnTheSecret) {
  const std::string name = ChannelName(DeriveChannelKey(kSecret));
  EXPECT_EQ(name.size(), std::string("0123456789abcdef.muster").size());
  EXPECT_NE(name, ChannelName(DeriveChannelKey("another secret of a user")));
}

TEST(LifeKey, IsAnotherForEachLifeAndSoIsItsIncarnation) {
  const Key first = DrawLifeKey();
  EXPECT_NE(first, DrawLifeKey());
  EXPECT_EQ(IncarnationOf(first), IncarnationOf(first));
  Key other = first;
  other[0] ^= 1;
  EXPECT_NE(IncarnationOf(first), IncarnationOf(other));
}

TEST(Identity, IsTheSameInEachProcess) {
  const Identity a = MakeIdentity(DeriveChannelKey(kSecret), TlsRole::kServer);
  const Identity b = MakeIdentity(DeriveChannelKey(kSecret), TlsRole::kServer);
  EXPECT_EQ(a.certificate_pem, b.certificate_pem);
  EXPECT_EQ(a.private_key_pem, b.private_key_pem);
}

TEST(Identity, SharesTheAuthorityBetweenRolesOnly) {
  const Identity server = MakeIdentity(DeriveChannelKey(kSecret), TlsRole::kServer);
  const Identity agent = MakeIdentity(DeriveChannelKey(kSecret), TlsRole::kAgent);
  EXPECT_EQ(server.authority_pem, agent.authority_pem);
  EXPECT_NE(server.private_key_pem, agent.private_key_pem);
  EXPECT_NE(
      server.authority_pem,
      MakeIdentity(DeriveChannelKey("another secret of a user"), TlsRole::kServer).authority_pem);
}

ChallengeTranscript Transcript() {
  return {.protocol_version = 1,
          .run_id = "j7",
          .incarnation = Incarnation(5),
          .role = 1,
          .agent_nonce = std::string(kNonceBytes, 'a'),
          .server_nonce = std::string(kNonceBytes, 's')};
}

TEST(Challenge, ProvesTheSameTranscriptAlike) {
  const Key key = DeriveJobKey(kSecret, "j7");
  EXPECT_TRUE(IsSameProof(ProveAsAgent(key, Transcript()), ProveAsAgent(key, Transcript())));
}

TEST(Challenge, DoesNotAcceptTheOtherDirectionsProof) {
  const Key key = DeriveJobKey(kSecret, "j7");
  EXPECT_FALSE(IsSameProof(ProveAsAgent(key, Transcript()), ProveAsServer(key, Transcript())));
}

TEST(Challenge, BindsEveryPartOfTheTranscript) {
  const Key key = DeriveJobKey(kSecret, "j7");
  const std::string proof = ProveAsAgent(key, Transcript());
  std::vector<ChallengeTranscript> others(6, Transcript());
  others[0].protocol_version = 2;
  others[1].run_id = "j8";
  others[2].incarnation = Incarnation(6);
  others[3].role = 2;
  others[4].agent_nonce[0] = 'b';
  others[5].server_nonce[0] = 't';
  for (const ChallengeTranscript& other : others)
    EXPECT_FALSE(IsSameProof(proof, ProveAsAgent(key, other)));
}

TEST(Challenge, CannotBeShiftedFromOnePartToTheNext) {
  const Key key = DeriveJobKey(kSecret, "j7");
  ChallengeTranscript a = Transcript(), b = Transcript();
  a.agent_nonce = "xy";
  a.server_nonce = "z";
  b.agent_nonce = "x";
  b.server_nonce = "yz";
  EXPECT_FALSE(IsSameProof(ProveAsAgent(key, a), ProveAsAgent(key, b)));
}

}  // namespace
}  // namespace muster
