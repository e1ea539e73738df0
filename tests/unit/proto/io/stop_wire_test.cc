// What an agent tells its workers of a stop survives the wire, and what nobody means is refused.
#include "proto/io/stop_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "proto/agent.pb.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

proto::StopState Encoded(const StopState& stop) {
  proto::StopState message;
  Encode(stop, &message);
  proto::StopState received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return received;
}

TEST(StopWire, TellsAStopThatIsNotNamedFromOneAtStepZeroAndFromNone) {
  const StopState states[] = {{},
                              {.is_stopping = true, .reason = "a person asked"},
                              {.is_stopping = true, .step = 0, .reason = "a person asked"},
                              {.is_stopping = true, .step = int64_t{1} << 40}};
  for (const StopState& stop : states) EXPECT_THAT(Decode(Encoded(stop)), IsOkAndHolds(stop));
}

TEST(StopWire, CutsAReasonThatIsTooLong) {
  const auto stop = Decode(Encoded({.is_stopping = true, .reason = std::string(10000, 'r')}));
  ASSERT_TRUE(stop.ok()) << stop.status();
  EXPECT_THAT(stop->reason, SizeIs(kMaxStopReasonBytes));
}

TEST(StopWire, RefusesANegativeStep) {
  proto::StopState message = Encoded({.is_stopping = true});
  message.set_step(-1);
  EXPECT_THAT(Decode(message),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop.step is -1")));
}

TEST(StopWire, RefusesAStepWithoutAStop) {
  EXPECT_THAT(Decode(Encoded({.is_stopping = false, .step = 3})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop.step")));
}

TEST(StopWire, RefusesAReasonOverItsBound) {
  proto::StopState message = Encoded({.is_stopping = true});
  message.set_reason(std::string(kMaxStopReasonBytes + 1, 'r'));
  EXPECT_THAT(Decode(message),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop.reason")));
}

}  // namespace
}  // namespace muster
