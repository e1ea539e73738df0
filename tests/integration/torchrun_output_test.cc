// What comes out of muster's console beside what comes out of torchrun's, for the same program and
// options. Skipped where there is no torchrun (`deploy/dev deps --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

constexpr absl::Duration kPatienceWithTorch = absl::Seconds(100);

struct Peer {
  Arguments torchrun;
  std::string python;
};

// PyTorch of PyPI where `deploy/dev deps --peers` has been, else Debian's.
Peer FindPeer() {
  std::string python = PeerPython();
  if (python.empty()) python = "/usr/bin/python3";
  return {{python, "-m", "torch.distributed.run"}, python};
}

class BesideTorchrun : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    const SubprocessResult help =
        StartProgram(peer_.torchrun + Arguments{"--help"}).Wait(kPatienceWithTorch);
    if (help.exit_code != 0) GTEST_SKIP() << "there is no " << peer_.torchrun.front();
    has_hostname_ = absl::StrContains(help.out, "hostname}");
  }

  // The lines of both, sorted: the order of several ranks is nobody's.
  struct Output {
    std::vector<std::string> out;
    std::vector<std::string> err;  // the workers' only
    int exit_code = -1;
  };
  Output Sorted(const SubprocessResult& result) {
    const auto lines = [](const std::string& text) {
      std::vector<std::string> all = absl::StrSplit(text, '\n');
      std::sort(all.begin(), all.end());
      return all;
    };
    Output output{.out = lines(result.out), .exit_code = result.exit_code};
    for (const std::string& line : lines(result.err)) {
      const bool is_of_a_summary = absl::StartsWith(line, " ");
      if (absl::StrContains(line, "a worker's") && !is_of_a_summary) output.err.push_back(line);
    }
    return output;
  }
  void ExpectTheSame(const Arguments& options, const std::string& program) {
    const Arguments rest = options + Arguments{PythonScript("train.py", program)};
    const SubprocessResult theirs = StartProgram(peer_.torchrun + rest).Wait(kPatienceWithTorch);
    const SubprocessResult ours = Run(Arguments{"run"} + rest, {{"PYTHON_EXEC", peer_.python}});
    EXPECT_EQ(Sorted(ours).out, Sorted(theirs).out) << ToString(ours) << ToString(theirs);
    EXPECT_EQ(Sorted(ours).err, Sorted(theirs).err) << ToString(ours) << ToString(theirs);
    EXPECT_EQ(ours.exit_code, theirs.exit_code);
  }

  const Peer peer_ = FindPeer();
  bool has_hostname_ = false;
};

constexpr char kPrints[] = R"(
import os, sys
rank = os.environ['RANK']
sys.stdout.write('{"rank": %s}\n' % rank)
sys.stdout.write('step 1\n\n')
sys.stderr.write("a worker's warning of rank %s\n" % rank)
sys.stdout.write('%s %s %s\n' % (sys.stdout.isatty(), sys.stdin.isatty(), sys.argv[1:]))
)";

TEST_F(BesideTorchrun, OneWorkerWritesTheSameBytes) {
  ExpectTheSame({}, absl::StrCat(kPrints,
                                 "sys.stdout.write('\\r10%\\r20%\\n')\n"
                                 "sys.stdout.buffer.write(b'\\xff\\0\\r\\n')\n"
                                 "sys.stdout.flush(); sys.stdout.write('no end')\n"));
}

TEST_F(BesideTorchrun, SeveralWorkersWriteTheSameLines) {
  ExpectTheSame({"--nproc_per_node=3"}, kPrints);
}

TEST_F(BesideTorchrun, TeedStreamsHaveTheSamePrefixes) {
  ExpectTheSame({"--nproc_per_node=2", "--tee", "3"}, kPrints);
  ExpectTheSame({"--nproc_per_node=2", "--tee", "0:1", "--role", "trainer"}, kPrints);
}

TEST_F(BesideTorchrun, ATemplateGivesTheSamePrefixes) {
  if (!has_hostname_) GTEST_SKIP() << "this torchrun is older than templates";
  ExpectTheSame({"--nproc_per_node=2", "--tee", "3", "--log_line_prefix_template",
                 "<${hostname}|${role_name}|$rank|${local_rank}|$$|$x>"},
                kPrints);
}

TEST_F(BesideTorchrun, OnlyTheListedLocalRanksReachTheConsole) {
  ExpectTheSame({"--nproc_per_node=2", "--tee", "3", "--local_ranks_filter", "1"}, kPrints);
}

TEST_F(BesideTorchrun, AFailureIsOneToo) {
  ExpectTheSame({"--nproc_per_node=2"}, absl::StrCat(kPrints, R"(
import time
done = os.environ['OUT'] + '/rank 0 is done, below %d' % os.getppid()
if rank == '0': open(done, 'w').close()
else:
    while not os.path.exists(done): time.sleep(0.01)
    sys.exit(1)
)"));
}

}  // namespace
}  // namespace muster::testing
