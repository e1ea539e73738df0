#include "launcher/line/rendezvous_conf.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Message(const std::string& text) {
  const absl::Status status = ParseRendezvousConf(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(ParseRendezvousConf, ReadsTorchrunsKeysAndOurs) {
  const absl::StatusOr<RendezvousConf> conf = ParseRendezvousConf(
      "timeout=900,join_timeout=1,last_call_timeout=2,close_timeout=3,read_timeout=4,"
      "is_host=True,store_type=tcp,rank=1,lease=5s,renew_interval=0.5,orphan_timeout=10m");
  ASSERT_TRUE(conf.ok()) << conf.status();
  EXPECT_EQ(conf->timeout, absl::Seconds(900));
  EXPECT_EQ(conf->join_timeout, absl::Seconds(1));
  EXPECT_EQ(conf->last_call_timeout, absl::Seconds(2));
  EXPECT_EQ(conf->close_timeout, absl::Seconds(3));
  EXPECT_EQ(conf->read_timeout, absl::Seconds(4));
  EXPECT_EQ(conf->is_host, true);
  EXPECT_EQ(conf->rank, 1);
  EXPECT_EQ(conf->lease, absl::Seconds(5));
  EXPECT_EQ(conf->renew_interval, absl::Milliseconds(500));
  EXPECT_EQ(conf->orphan_timeout, absl::Minutes(10));
}

TEST(ParseRendezvousConf, ReportsKeysThatLeasesReplace) {
  EXPECT_THAT(
      ParseRendezvousConf("heartbeat_timeout=5,keep_alive_interval=5,keep_alive_max_attempt=3")
          ->warnings,
      ElementsAre(HasSubstr("heartbeat_timeout has no effect: leases"),
                  HasSubstr("keep_alive_interval"), HasSubstr("keep_alive_max_attempt")));
}

TEST(ParseRendezvousConf, AcceptsTheKeysOfTorchrunsOwnBackEnds) {
  for (const char* item : {"use_libuv=0", "store_type=file", "cas_backoff_max_seconds=1",
                           "etcd_prefix=/x", "protocol=https", "cacert=/a", "ssl_cert=/b"}) {
    const absl::StatusOr<RendezvousConf> conf = ParseRendezvousConf(item);
    ASSERT_TRUE(conf.ok()) << conf.status();
    EXPECT_THAT(conf->warnings, ElementsAre(HasSubstr("has no effect"))) << item;
  }
  EXPECT_TRUE(ParseRendezvousConf("store_type=tcp")->warnings.empty());
}

TEST(ParseRendezvousConf, TakesQuotesOffValuesAndOffTheWhole) {
  EXPECT_EQ(ParseRendezvousConf("timeout=\"900\",is_host='1'")->timeout, absl::Seconds(900));
  EXPECT_EQ(ParseRendezvousConf("'timeout=900,rank=2'")->rank, 2);
  EXPECT_EQ(ParseRendezvousConf("\"timeout=900\"")->timeout, absl::Seconds(900));
}

TEST(ParseRendezvousConf, IsEmptyForEmptyText) {
  EXPECT_TRUE(ParseRendezvousConf("").ok());
  EXPECT_TRUE(ParseRendezvousConf(" ").ok());
}

TEST(ParseRendezvousConf, RefusesItemsWithoutValue) {
  EXPECT_THAT(Message("join_timeout"), StartsWith("'join_timeout' is not of the form KEY=VALUE"));
  EXPECT_THAT(Message("join_timeout="), StartsWith("'join_timeout=' is not of the form KEY=VALUE"));
  EXPECT_THAT(Message("rank=1,"), StartsWith("'' is not of the form KEY=VALUE"));
  EXPECT_THAT(Message("=3"), StartsWith("'=3' is not of the form KEY=VALUE"));
}

TEST(ParseRendezvousConf, NamesTheNearestKeyForAnUnknownOne) {
  EXPECT_EQ(Message("join_timout=3"), "unknown key 'join_timout'; did you mean join_timeout?");
  EXPECT_THAT(Message("colour=red"), HasSubstr("expected join_timeout, last_call_timeout"));
}

TEST(ParseRendezvousConf, RefusesAnUnknownTypeOfStore) {
  EXPECT_THAT(Message("store_type=etcd"), StartsWith("store_type=etcd: expected tcp or file"));
}

TEST(ParseRendezvousConf, NamesTheKeyOfABadValue) {
  EXPECT_THAT(Message("lease=soon"), StartsWith("lease=soon: expected seconds"));
  EXPECT_THAT(Message("is_host=maybe"), StartsWith("is_host=maybe: expected 1 or 0"));
  EXPECT_THAT(Message("keep_alive_interval=x"), StartsWith("keep_alive_interval=x: expected"));
}

}  // namespace
}  // namespace muster::launcher
