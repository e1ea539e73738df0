#include "rendezvous/core/effect_gate.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::rendezvous {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Effects = std::vector<JobTable::JobEffect>;

const JobKey kJob{"", "a"};

JobTable::JobEffect Say(const std::string& what, uint64_t to = 1) {
  return {kJob, SendDirective{Incarnation(to), Directive{.body = Wait{what}}}};
}
JobTable::JobEffect Keep() { return {kJob, KeepJob{}}; }

std::vector<std::string> Texts(const Effects& effects) {
  std::vector<std::string> texts;
  for (const auto& effect : effects) {
    const auto* send = std::get_if<SendDirective>(&effect.effect);
    texts.push_back(send == nullptr ? "reply" : std::get<Wait>(send->directive.body).text);
  }
  return texts;
}

TEST(EffectGate, LetsPassWhatFollowsFromNothingNew) {
  EffectGate gate;
  const EffectGate::Passed passed = gate.Push({Say("a")});
  EXPECT_THAT(Texts(passed.leaving), ElementsAre("a"));
  EXPECT_THAT(passed.to_write, IsEmpty());
}

TEST(EffectGate, HoldsATurnBackUntilItsRecordIsDurable) {
  EffectGate gate;
  const EffectGate::Passed passed = gate.Push({Keep(), Say("a"), Say("b", 2)});
  EXPECT_THAT(Texts(passed.leaving), IsEmpty());
  EXPECT_EQ(passed.to_write.size(), 1u);
  EXPECT_THAT(Texts(gate.OnDurable(passed.ticket)), ElementsAre("a", "b"));
}

TEST(EffectGate, HoldsEverythingBackUntilTheServersOwnTermIsDurable) {
  EffectGate gate;
  const uint64_t term = gate.Hold();
  EXPECT_THAT(Texts(gate.Push({Say("a")}).leaving), IsEmpty());
  EXPECT_THAT(Texts(gate.OnDurable(term)), ElementsAre("a"));
}

TEST(EffectGate, HoldsBackLaterTurnsToo) {
  EffectGate gate;
  const uint64_t first = gate.Push({Keep(), Say("a")}).ticket;
  EXPECT_THAT(Texts(gate.Push({Say("b")}).leaving), IsEmpty());
  const uint64_t second = gate.Push({Keep(), Say("c")}).ticket;
  EXPECT_THAT(Texts(gate.OnDurable(first)), ElementsAre("a", "b"));
  EXPECT_THAT(Texts(gate.OnDurable(second)), ElementsAre("c"));
  EXPECT_THAT(Texts(gate.Push({Say("d")}).leaving), ElementsAre("d"));
}

TEST(EffectGate, LetsAnswersOfTheStorePass) {
  EffectGate gate;
  gate.Push({Keep()});
  const JobTable::JobEffect reply{kJob, SendStoreReply{Incarnation(1), {}}, false};
  EXPECT_THAT(Texts(gate.Push({Say("a"), reply}).leaving), ElementsAre("reply"));
}

TEST(EffectGate, KeepsTheNewestOfEachAgentWhereTheDiskTakesNothingForLong) {
  EffectGate gate;
  const uint64_t ticket = gate.Push({Keep()}).ticket;
  for (size_t i = 0; i <= EffectGate::kPruneAt; ++i)
    gate.Push({Say("n" + std::to_string(i), i % 2)});
  EXPECT_LE(gate.num_held(), 3u);
  const std::vector<std::string> left = Texts(gate.OnDurable(ticket));
  EXPECT_EQ(left.back(), "n" + std::to_string(EffectGate::kPruneAt));
}

}  // namespace
}  // namespace muster::rendezvous
