#include "agent/machine/kernel_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::muster::testing::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ParseXid, ReadsWhatDriversWrite) {
  EXPECT_EQ(
      ParseXid("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the "
               "bus."),
      (Xid{"0000:3b:00", 79, 1234, "GPU has fallen off the bus."}));
  EXPECT_EQ(ParseXid("NVRM: Xid (PCI:0000:06:00): 48, pid='<unknown>', name=<unknown>, DBE (double "
                     "bit error)"),
            (Xid{"0000:06:00", 48, 0, "DBE (double bit error)"}));
  EXPECT_EQ(ParseXid("NVRM: Xid (0000:03:00): 13, 0003 00000000 00009197, more"),
            (Xid{"0000:03:00", 13, 0, "0003 00000000 00009197, more"}));
}

TEST(ParseXid, IsNothingForOtherLines) {
  for (const char* line : {"", "eth0: link down", "NVRM: loading", "NVRM: Xid (PCI:0000:3b:00",
                           "NVRM: Xid (PCI:0000:3b:00): none", "NVRM: Xid (): -3, pid=1"}) {
    EXPECT_FALSE(ParseXid(line).has_value()) << line;
  }
}

TEST(AdviceFor, TellsProgramsFromGpusAndNodes) {
  EXPECT_THAT(AdviceFor({.number = 13}), HasSubstr("program"));
  EXPECT_THAT(AdviceFor({.number = 95}), HasSubstr("reset"));
  EXPECT_THAT(AdviceFor({.number = 79}), HasSubstr("node"));
  EXPECT_THAT(AdviceFor({.number = 999}), HasSubstr("catalog"));
}

TEST(WhatTheKernelSays, TellsOfTheProcessAndOfGpusAndOfNothingElse) {
  const std::vector<std::string> lines = {
      "python[1234]: segfault at 0 ip 00007f sp 00007f error 4 in libfoo.so[7f+1000]",
      "python[12345]: segfault at 0 ip 00007f sp 00007f error 4 in libbar.so[7f+1000]",
      "traps: python[1234] general protection fault ip:7f sp:7f error:0",
      "NVRM: Xid (PCI:0000:3b:00): 31, pid=777, name=other, Ch 8",
      "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."};
  EXPECT_THAT(WhatTheKernelSays(lines, 1234),
              AllOf(HasSubstr("in libfoo.so"), HasSubstr("general protection fault"),
                    HasSubstr("GPU 0000:3b:00: Xid 79 (GPU has fallen off the bus.): the node"),
                    Not(HasSubstr("libbar")), Not(HasSubstr("Xid 31"))));
  EXPECT_EQ(WhatTheKernelSays({"Out of memory: Killed process 1234 (python) total-vm:1kB"}, 1234),
            "the kernel says: Out of memory: Killed process 1234 (python) total-vm:1kB");
  EXPECT_EQ(WhatTheKernelSays({"Out of memory: Killed process 12345 (python)"}, 1234), "");
}

TEST(XidsOf, AreThoseOfOneProcess) {
  const std::vector<std::string> lines = {
      "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=other, MMU Fault",
      "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
      "NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', name=<unknown>, DBE",
      "Out of memory: Killed process 1234 (python)"};
  EXPECT_EQ(XidsOf(lines, 1234),
            "GPU 0000:3b:00: Xid 79 (GPU has fallen off the bus.): the node needs a look: its GPU, "
            "its links or its power");
  EXPECT_EQ(XidsOf(lines, 12), "");
}

TEST(AllXids, AreThoseOfEveryProcessOnceEach) {
  const std::string fault = "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=other, MMU Fault";
  EXPECT_THAT(AllXids({fault, "eth0: link down", fault,
                       "NVRM: Xid (PCI:0000:5e:00): 48, pid='<unknown>', name=<unknown>, DBE"}),
              ElementsAre("GPU 0000:3b:00: Xid 31 (MMU Fault): most often a fault of the program, "
                          "not of the GPU",
                          "GPU 0000:5e:00: Xid 48 (DBE): the node needs a look: its GPU, its links "
                          "or its power"));
  EXPECT_THAT(AllXids({}), IsEmpty());
}

// A pipe that gives a record for each write, as the kernel does.
TEST(KernelLog, GivesTheTextOfRecordsUntilItForgets) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/kmsg";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  KernelLog log = KernelLog::Open(path);
  const int writer = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(writer, 0);
  EXPECT_THAT(log.Lines(), IsEmpty());
  const std::string record = "6,17,5,-;python[3]: segfault at 0\n SUBSYSTEM=x\n";
  ASSERT_EQ(::write(writer, record.data(), record.size()), static_cast<ssize_t>(record.size()));
  EXPECT_THAT(log.Lines(), ElementsAre("python[3]: segfault at 0"));
  EXPECT_THAT(log.Lines(), ElementsAre("python[3]: segfault at 0"));
  log.Forget();
  EXPECT_THAT(log.Lines(), IsEmpty());
  ::close(writer);
}

TEST(KernelLog, IsSilentWhereItMayNotBeRead) {
  EXPECT_THAT(KernelLog::Open("/nowhere/kmsg").Lines(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
