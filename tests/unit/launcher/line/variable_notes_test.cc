#include "launcher/line/variable_notes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NotesOnVariables, NameWhatNobodyReads) {
  EXPECT_THAT(NotesOnVariables({{"NCCL_TIMEOUT", "60"}}),
              ElementsAre(HasSubstr("NCCL_TIMEOUT has no effect: neither NCCL nor PyTorch")));
  EXPECT_THAT(NotesOnVariables({{"NCCL_SOCKET_IFNAMES", "eth0"}, {"NCCL_IB_GID", "3"}}),
              ElementsAre(HasSubstr("NCCL_IB_GID_INDEX is meant?"),
                          HasSubstr("NCCL_SOCKET_IFNAME is meant?")));
}

TEST(NotesOnVariables, NameTheNewNameOfAnOldOne) {
  EXPECT_THAT(NotesOnVariables({{"NCCL_BLOCKING_WAIT", "1"}}),
              ElementsAre(AllOf(HasSubstr("set TORCH_NCCL_BLOCKING_WAIT instead"),
                                HasSubstr("since 2.2"))));
}

TEST(NotesOnVariables, SayNothingOfNamesThatTheyDoNotKnow) {
  EXPECT_THAT(NotesOnVariables({{"NCCL_SOCKET_IFNAME", "eth0"},
                                {"NCCL_SOMETHING_NEW", "1"},
                                {"TORCH_NCCL_BLOCKING_WAIT", "1"},
                                {"NCCL_IB_TIMEOUT", "22"},
                                {"MY_NCCL_TIMEOUT", "1"}}),
              IsEmpty());
}

}  // namespace
}  // namespace muster::launcher
