#include "agent/machine/signal_death.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

TEST(SignalDeath, SaysWhereTheCoreLies) {
  EXPECT_EQ(WhereTheCoreIs("core.%p\n", 17),
            "its core file lies in its working directory as core.17");
  EXPECT_EQ(WhereTheCoreIs("/var/cores/%p", 17), "its core file lies as /var/cores/17");
  EXPECT_EQ(WhereTheCoreIs("/cores/%e.%t", 17), "its core file lies by the pattern /cores/%e.%t");
  EXPECT_EQ(WhereTheCoreIs("|/lib/systemd/systemd-coredump %P %u", 17),
            "its core was given to /lib/systemd/systemd-coredump");
  EXPECT_EQ(WhereTheCoreIs("", 17), "a core of it was written");
}

TEST(SignalDeath, IsExplainedByTheKernelWhereItSpeaks) {
  EXPECT_EQ(Explain({.pid = 17,
                     .signal = SIGSEGV,
                     .has_core = true,
                     .kernel_lines = {"train[17]: segfault at 0 ip 1 sp 2 error 4 in libfoo.so[1]"},
                     .core_pattern = "core"}),
            "the kernel says: train[17]: segfault at 0 ip 1 sp 2 error 4 in libfoo.so[1]; its core "
            "file lies in its working directory as core");
}

TEST(SignalDeath, SaysThatAKillCameFromElsewhere) {
  EXPECT_THAT(Explain({.pid = 17, .signal = SIGKILL}), HasSubstr("muster did not send"));
  EXPECT_EQ(Explain({.pid = 17, .signal = SIGKILL, .was_ours = true}), "");
  EXPECT_EQ(Explain({.pid = 17, .signal = SIGKILL, .was_out_of_memory = true}), "");
  EXPECT_EQ(Explain({.pid = 17,
                     .signal = SIGKILL,
                     .was_out_of_memory = true,
                     .kernel_lines = {"Memory cgroup out of memory: Killed process 17 (train) "
                                      "total-vm:1kB, anon-rss:1kB"}}),
            "the kernel says: Memory cgroup out of memory: Killed process 17 (train) total-vm:1kB, "
            "anon-rss:1kB");
}

TEST(SignalDeath, HasNothingToSayOfAnOrdinarySignal) {
  EXPECT_EQ(Explain({.pid = 17, .signal = SIGABRT}), "");
}

}  // namespace
}  // namespace muster::agent
