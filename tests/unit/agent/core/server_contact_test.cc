#include "agent/core/server_contact.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/core/turn_fixture.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServerContactTest : public TurnTest {
 protected:
  ServerContactTest() {
    contact_.Begin(now());
    contact_.Change({.up = true, .detail = "connected"});
  }
  bool Hear(int term, int revision, uint64_t answered = 0) {
    return contact_.Hear({.term = ServerTerm(term),
                          .revision = static_cast<uint64_t>(revision),
                          .report_sequence = answered,
                          .body = Wait{}});
  }
  std::string MayPublish() const {
    return std::string(contact_.MayPublish(options_, 2, now()).message());
  }
  ServerContact contact_;
};

TEST_F(ServerContactTest, HearsOnlyWhatIsNewer) {
  EXPECT_TRUE(Hear(1, 5));
  EXPECT_FALSE(Hear(1, 5));
  EXPECT_FALSE(Hear(1, 4));
  EXPECT_TRUE(Hear(2, 1)) << "the next server counts from one";
  EXPECT_FALSE(Hear(1, 9));
  EXPECT_EQ(contact_.term(), ServerTerm(2));
}

TEST_F(ServerContactTest, NumbersReportsAndSaysWhenTheNextIsDue) {
  EXPECT_EQ(contact_.NumberReport(now()), 1u);
  EXPECT_EQ(contact_.NumberReport(now()), 2u);
  EXPECT_EQ(contact_.NextReport(options_.lease), now() + options_.lease.renew_interval);
  contact_.Change({.up = false, .detail = "refused"});
  EXPECT_TRUE(contact_.NextReport(options_.lease).is_infinite());
}

TEST_F(ServerContactTest, LetsPublishForOneLeaseFromWhenTheNewestAnsweredReportWasMade) {
  const uint64_t first = contact_.NumberReport(now());
  Pass(absl::Seconds(3));
  contact_.NumberReport(now());
  Hear(1, 1, first);  // answers the first alone, late
  Pass(options_.lease.duration - options_.lease.margin - absl::Seconds(3) - absl::Milliseconds(1));
  EXPECT_EQ(MayPublish(), "");
  Pass(absl::Milliseconds(1));
  EXPECT_THAT(MayPublish(), HasSubstr("has not answered node1 for 5.7s"));
}

TEST_F(ServerContactTest, CountsByTheLeaseOfTheServerAndSaysOnceThatItsOwnIsAnother) {
  contact_.TakeLease({options_.lease.duration, options_.lease.renew_interval}, turn_);
  EXPECT_THAT(Effects(), IsEmpty());

  const LeaseTold told{absl::Seconds(3), absl::Seconds(1)};
  contact_.TakeLease(told, turn_);
  contact_.TakeLease(told, turn_);

  EXPECT_THAT(Effects(), ElementsAre(AllOf(HasSubstr("leases last 3s and are renewed every 1s"),
                                           HasSubstr("(6s and 2s)"))));
  Hear(1, 1, contact_.NumberReport(now()));
  EXPECT_EQ(contact_.NextReport(options_.lease), now() + absl::Seconds(1));
  Pass(absl::Seconds(3) - options_.lease.margin - absl::Milliseconds(1));
  EXPECT_EQ(MayPublish(), "");
  Pass(absl::Milliseconds(1));
  EXPECT_THAT(MayPublish(), HasSubstr("has not answered"));
}

TEST_F(ServerContactTest, LetsNothingBePublishedWithoutALinkOrWhereItIsNotServed) {
  Hear(1, 1, contact_.NumberReport(now()));
  EXPECT_EQ(MayPublish(), "");
  contact_.NoteUnattended("job_unrecorded", "no record", turn_);
  EXPECT_THAT(MayPublish(), HasSubstr("does not serve this node"));
  EXPECT_FALSE(contact_.is_serving());
  contact_.NoteAttended(turn_);
  EXPECT_EQ(MayPublish(), "");
  contact_.Change({.up = false, .detail = "refused"});
  EXPECT_THAT(MayPublish(), HasSubstr("no connection to"));
}

TEST_F(ServerContactTest, SaysOnceForEachReasonThatItIsNotServedAndThatItIsAgain) {
  contact_.NoteAttended(turn_);
  contact_.NoteUnattended("job_unrecorded", "no record", turn_);
  contact_.NoteUnattended("job_unrecorded", "no record", turn_);
  contact_.NoteUnattended("rendezvous_refuses", "another job", turn_);
  EXPECT_THAT(Effects(), ElementsAre("announce job_unrecorded \"no record\"",
                                     "announce rendezvous_refuses \"another job\""));
  Pass(absl::Seconds(12));
  contact_.NoteAttended(turn_);
  contact_.NoteAttended(turn_);
  EXPECT_THAT(Effects(), ElementsAre(HasSubstr("serves this node again, after 12s")));
}

TEST_F(ServerContactTest, WaitsForAFirstAnswerThenForAnOrphansTimeAndForAnOutcomeLess) {
  EXPECT_EQ(contact_.Deadline(options_, false), now() + options_.settings.join_timeout);
  Hear(1, 1);
  EXPECT_EQ(contact_.Deadline(options_, false), now() + options_.settings.orphan_timeout);
  EXPECT_EQ(contact_.Deadline(options_, true), now() + options_.read_timeout);
  Pass(absl::Seconds(5));
  contact_.NoteAlive(now());
  EXPECT_EQ(contact_.Deadline(options_, true), now() + options_.read_timeout);
  options_.hosts_server = true;
  EXPECT_TRUE(contact_.Deadline(options_, false).is_infinite()) << "it is its own server";
}

TEST_F(ServerContactTest, TakesARefusalForAStrangersOnceItWasAccepted) {
  const Refuse refuse{absl::InvalidArgumentError("another job")};
  EXPECT_FALSE(contact_.IsStranger(refuse));
  contact_.NoteAttended(turn_);
  EXPECT_TRUE(contact_.IsStranger(refuse));
  EXPECT_FALSE(contact_.IsStranger({absl::FailedPreconditionError("the job has ended")}));
  EXPECT_THAT(Effects(), IsEmpty());
}

TEST_F(ServerContactTest, SaysHowLongTheServerHasBeenSilentAndWhatTheLinkSays) {
  contact_.Change({.up = false, .detail = "refused"});
  Pass(absl::Milliseconds(7900));
  EXPECT_EQ(contact_.Silence(now()), "no answer for 7s (refused)");
}

}  // namespace
}  // namespace muster::agent
