#include "agent/torch_store/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr StoreConnection kFirst(1), kSecond(2);

class WaitsTest : public ::testing::Test {
 protected:
  WaitsTest() {
    waits_.Open(kFirst);
    waits_.Open(kSecond);
  }
  static MonoTime At(int seconds) { return MonoTime::At(absl::Seconds(seconds)); }
  void Wait(StoreConnection connection, const std::string& key, int at) {
    const StoreWait wait{.absent = {key}};
    waits_.Note(connection, &wait, /*cancelled=*/false, barriers_, At(at));
  }
  void End(StoreConnection connection, bool cancelled, int at) {
    waits_.Note(connection, nullptr, cancelled, barriers_, At(at));
  }

  Barriers barriers_{2};
  Waits waits_;
};

TEST_F(WaitsTest, AreHeldSinceTheyBegan) {
  Wait(kSecond, "k", 10);
  Wait(kFirst, "k", 11);
  Wait(kFirst, "another", 12);  // one of its keys has come
  EXPECT_THAT(waits_.held(), ElementsAre(Pair(At(10), kSecond), Pair(At(11), kFirst)));
  EXPECT_THAT(waits_.at_barrier(), IsEmpty());
  End(kSecond, /*cancelled=*/false, 13);
  EXPECT_THAT(waits_.held(), ElementsAre(Pair(At(11), kFirst)));
  EXPECT_FALSE(waits_.Of(kSecond).GoesOn(At(13))) << "it was answered";
}

TEST_F(WaitsTest, GoOnOverAShortPauseForTheSameKey) {
  Wait(kFirst, "k", 10);
  End(kFirst, /*cancelled=*/true, 20);
  EXPECT_TRUE(waits_.Of(kFirst).GoesOn(At(25)));
  EXPECT_FALSE(waits_.Of(kFirst).GoesOn(At(26)));
  Wait(kFirst, "k", 25);
  EXPECT_THAT(waits_.held(), ElementsAre(Pair(At(10), kFirst)));
  End(kFirst, /*cancelled=*/true, 30);
  Wait(kFirst, "another", 31);
  EXPECT_THAT(waits_.held(), ElementsAre(Pair(At(31), kFirst)));
}

TEST_F(WaitsTest, AtABarrierEndWithIt) {
  const StoreWait wait{.barrier = "b"};
  barriers_.Note(kFirst, {.command = StoreCommand::kBarrier, .keys = {"b"}, .numbers = {2}}, &wait);
  waits_.Note(kFirst, &wait, /*cancelled=*/false, barriers_, At(1));
  EXPECT_THAT(waits_.at_barrier(), ElementsAre(Pair(At(1), kFirst)));
  waits_.LeaveBarrier(kFirst);
  EXPECT_THAT(waits_.at_barrier(), IsEmpty());
  EXPECT_THAT(waits_.held(), ElementsAre(Pair(At(1), kFirst)));
  waits_.Close(kFirst);
  EXPECT_THAT(waits_.held(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
