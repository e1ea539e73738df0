// What comes out of muster's console, and what workers find, beside torchrun's for the same program
// and options. What it does is recorded (support/peer_record.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"

namespace muster::testing {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kPatienceWithTorch = absl::Seconds(100);

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

class BesideTorchrun : public JobTest {
 protected:
  void ExpectTheSame(const Arguments& options, const std::string& program) const {
    const Arguments rest = options + Arguments{PythonScript("train.py", program)};
    const Json theirs = record_.Outcome(absl::StrJoin(options, " "), [&] {
      const SubprocessResult result =
          StartProgram(Arguments{PeerPython(), "-m", "torch.distributed.run"} + rest)
              .Wait(kPatienceWithTorch);
      return result.ended ? Comparable(result) : Json();
    });
    const SubprocessResult ours = Run(Arguments{"run"} + rest);
    EXPECT_EQ(Comparable(ours), theirs) << ToString(ours);
  }

 private:
  // The output without what only this machine and this test have; of the standard error, what
  // workers say.
  Json Comparable(const SubprocessResult& result) const {
    std::vector<std::string> said;
    for (const std::string& line : Sorted(result.err)) {
      const bool is_of_a_summary = absl::StartsWith(line, " ");
      if (absl::StrContains(line, "warning of rank") && !is_of_a_summary) said.push_back(line);
    }
    return {{"out", Sorted(result.out)}, {"err", said}, {"exit_code", result.exit_code}};
  }
  // The order of several ranks is nobody's.
  std::vector<std::string> Sorted(const std::string& text) const {
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    for (std::string& line : lines) {
      line = absl::CEscape(absl::StrReplaceAll(
          line, {{"<" + HostName() + "|", "<(host)|"}, {directory(), "(directory)"}}));
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  const PeerRecord record_{"torchrun", "torch"};
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

// All variables, but for values that differ from job to job, and for what ours adds
// (deploy/docs/torchrun.md).
TEST_F(BesideTorchrun, WorkersFindTheSameVariables) {
  ExpectTheSame({"--nproc_per_node=2"}, R"(
import os, sys
values_differ = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
lines = ""
for name, value in os.environ.items():
    is_our_own = (name in ("TF_CONFIG", "TRACEPARENT") or name.startswith("MUSTER_") or
                  name == "PYTHONPATH" and value.endswith("/python") or
                  (name, value) == ("TORCH_FR_BUFFER_SIZE", "512"))
    if is_our_own or name.endswith("SAN_OPTIONS"):  # a sanitizer's
        continue
    lines += f"rank {os.environ['RANK']} {name}{'' if name in values_differ else '=' + value}\n"
sys.stdout.write(lines)
)");
}

}  // namespace
}  // namespace muster::testing
