#include "rendezvous/hangs/evidence/incident_parts.h"

#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

constexpr char kWait[] = "wait at /usr/lib/python3.11/threading.py:320";
constexpr char kResult[] = "result at /usr/lib/python3.11/concurrent/futures/_base.py:451";

TEST(PythonInWords, PassesOverPythonsOwnLibraryUnlessThereIsNothingElse) {
  EXPECT_EQ(PythonInWords({kWait, kResult, "save at /a/train.py:9", "main at /a/train.py:40"}),
            "save at train.py:9 < main at train.py:40");
  EXPECT_EQ(PythonInWords({kWait, kResult}), kWait);
  EXPECT_EQ(PythonInWords({}), "");
}

TEST(PythonInWords, HasTheInnermostAndTheOutermostOfManyFrames) {
  EXPECT_EQ(PythonInWords({"a at /x/m.py:1", "b at /x/m.py:2", "c at /x/m.py:3", "d at /x/m.py:4",
                           "e at /x/m.py:5"}),
            "a at m.py:1 < b at m.py:2 < c at m.py:3 < e at m.py:5");
}

TEST(PythonInWords, HasTheInnermostOfTheProgramsOwnFilesBehindThoseOfPackages) {
  const std::string torch = " at /v/site-packages/torch/distributed/x.py:1";
  const std::vector<std::string> frames = {"recv" + torch, "fetch at /a/own.py:2",
                                           "load at /a/own.py:3"};
  std::vector<std::string> of_thread = frames;
  of_thread[0] = "thread of RPC: " + of_thread[0];
  EXPECT_EQ(PythonInWords(of_thread), "its thread of RPC in recv at x.py:1 < fetch at own.py:2");
  EXPECT_EQ(PythonInWords({"a" + torch, "b" + torch, "c" + torch, frames[0], frames[1], frames[2]}),
            "a at x.py:1 < b at x.py:1 < c at x.py:1 < fetch at own.py:2");
}

TEST(PythonInWords, NamesTheThreadThatTheMainOneWaitsFor) {
  EXPECT_EQ(PythonInWords({kWait, kResult, "main at /a/train.py:40",
                           "thread Saver_0: sleep at /usr/lib/python3.11/x.py:3",
                           "write at /a/saver.py:7", "save at /a/saver.py:20",
                           "thread B: read at /a/data.py:1", "thread C: f at /a/data.py:2"}),
            "main at train.py:40; its thread Saver_0 in write at saver.py:7 < save at saver.py:20; "
            "its thread B in read at data.py:1");
  EXPECT_EQ(PythonInWords({"thread B: read at /a/data.py:1"}), "its thread B in read at data.py:1");
}

}  // namespace
}  // namespace muster::hangs
