// A fixture for ranks of PyTorch that go on in the same processes where another dies:
// programs/survive_torch.py under muster.survive.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/peer_python.h"

namespace muster::testing {

inline constexpr absl::Duration kLong = absl::Seconds(200);
inline constexpr int kSteps = 12;

class TorchSurvive : public SeveralNodes {
 protected:
  void SetUp() override {
    SeveralNodes::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  static Environment WithTorch() {
    return {{"PYTHONPATH", absl::StrCat(kSourceDirectory, "/deploy/python")},
            {"PYTHON_EXEC", PeerPython()},
            {"PYTHONDONTWRITEBYTECODE", "1"},
            {"GLOO_SOCKET_IFNAME", "lo"},
            {"OMP_NUM_THREADS", "1"}};
  }
  Arguments Program(const Arguments& how = {}, int steps = kSteps) const {
    return Arguments{absl::StrCat(kSourceDirectory, "/tests/integration/programs/survive_torch.py"),
                     out(), absl::StrCat(steps)} +
           how;
  }
  Subprocess StartRanks(int ranks, const Arguments& options = {}, const Arguments& how = {},
                        int steps = kSteps) const {
    return Start(
        Arguments{"run", absl::StrCat("--nproc_per_node=", ranks)} + options + Program(how, steps),
        WithTorch());
  }
  // The program of deploy/docs/recover.md below the heading, as it stands there, is short, and runs
  // under us as it does under torchrun.
  void RunProgramOfTheGuide(const std::string& heading, int ranks) const;

  void Hold(int step) const { WriteFile(Out(absl::StrCat("hold.", step)), ""); }
  void LetGo(int step) const { WriteFile(Out(absl::StrCat("go.", step)), ""); }

  // Waits until the rank has begun with the step; returns its pid.
  pid_t PidAt(int attempt, int rank, int step) const {
    pid_t pid = 0;
    int begun = -1;
    EXPECT_TRUE(WaitUntil(
        [&] {
          const std::vector<std::string> words =
              absl::StrSplit(ReadOut(absl::StrCat("at.", attempt, ".", rank)), ' ');
          return words.size() == 2 && absl::SimpleAtoi(words[0], &pid) &&
                 absl::SimpleAtoi(words[1], &begun) && begun >= step;
        },
        kLong))
        << "rank " << rank << " of attempt " << attempt << " has not begun step " << step;
    return pid;
  }
  std::vector<pid_t> PidsAt(int attempt, int ranks, int step) const {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) pids.push_back(PidAt(attempt, rank, step));
    return pids;
  }

  // A job of which some ranks are killed at once, when all have begun with the step.
  SubprocessResult RunWithDeaths(int ranks, int step, const std::vector<int>& dying,
                                 const Arguments& how = {}) const {
    Hold(step);
    Subprocess job = StartRanks(ranks, {"--max_restarts=3"}, how);
    const std::vector<pid_t> pids = PidsAt(0, ranks, step);
    if (!HasFailure()) {
      for (const int rank : dying) EXPECT_EQ(kill(pids[rank], SIGKILL), 0);
    }
    LetGo(step);
    SubprocessResult result = job.Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    return result;
  }

  // The losses where nobody dies. Nothing else is left of that run.
  std::map<int, double> UndisturbedLosses(int ranks, const Arguments& how) {
    EXPECT_THAT(StartRanks(ranks, {}, how).Wait(kLong), ExitsWith(0));
    const std::map<int, double> losses = Losses(0);
    EXPECT_EQ(losses.size(), static_cast<size_t>(kSteps));
    for (const std::string& file : FilesBelow(out())) unlink(Out(file).c_str());
    return losses;
  }

  // The losses that this rank's process saw, by step.
  std::map<int, double> Losses(int rank) const {
    std::map<int, double> losses;
    for (absl::string_view line :
         absl::StrSplit(ReadOut(absl::StrCat("losses.", rank)), '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      double loss = 0;
      if (words.size() == 2 && absl::SimpleAtod(words[1], &loss)) {
        losses[std::stoi(words[0])] = loss;
      }
    }
    return losses;
  }
  void ExpectLossesOf(const std::map<int, double>& undisturbed, int rank) const {
    for (const auto& [step, loss] : Losses(rank)) {
      EXPECT_NEAR(loss, undisturbed.at(step), 1e-5 * undisturbed.at(step)) << rank << ", " << step;
    }
  }
  // At each of the steps, in order, the rank dies that is named. Every rank's turn comes.
  SubprocessResult ReplaceEachInTurn(const std::map<int, int>& dies, const Arguments& how);

  // Descriptors and threads of a survivor do not become more from round to round. Its first round
  // is left out: what a process of PyTorch opens once, it opens by its second.
  void ExpectNothingHeldOfEarlierRounds(int attempts, int ranks) const {
    std::set<int> known;                     // pids
    std::map<int, std::vector<int>> second;  // by pid
    int compared = 0;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<int> held;
        for (absl::string_view word : absl::StrSplit(
                 ReadOut(absl::StrCat("held.", attempt, ".", rank)), ' ', absl::SkipEmpty())) {
          held.push_back(std::stoi(std::string(word)));
        }
        if (held.size() != 4) continue;  // it died before its first step had ended
        if (known.insert(held[0]).second) continue;
        const auto [before, is_new] = second.emplace(held[0], held);
        if (is_new) continue;
        ++compared;
        EXPECT_LE(held[1], before->second[1] + 1) << "descriptors, " << attempt << ", " << rank;
        EXPECT_LE(held[2], before->second[2] + 3) << "threads, " << attempt << ", " << rank;
        EXPECT_LE(held[3], before->second[3] + 100'000) << "KiB, " << attempt << ", " << rank;
      }
    }
    EXPECT_GT(compared, 0);
  }
  void ExpectOneEnd(int ranks) const {
    EXPECT_NE(ReadOut("end.0"), "");
    for (int rank = 1; rank < ranks; ++rank) {
      EXPECT_EQ(ReadOut(absl::StrCat("end.", rank)), ReadOut("end.0")) << rank;
    }
  }
};

inline SubprocessResult TorchSurvive::ReplaceEachInTurn(const std::map<int, int>& dies,
                                                        const Arguments& how) {
  const int ranks = static_cast<int>(dies.size());
  const std::map<int, double> undisturbed = UndisturbedLosses(ranks, how);
  for (const auto& death : dies) Hold(death.first);
  Subprocess job = StartRanks(ranks, {absl::StrCat("--max_restarts=", ranks), "--warm=auto"}, how);
  EXPECT_TRUE(job.WaitForOutput("the warm process is ready", kLong));
  int attempt = 0;
  for (const auto& death : dies) {
    const std::vector<pid_t> before = PidsAt(attempt, ranks, death.first);
    if (HasFailure()) break;
    EXPECT_EQ(kill(before[death.second], SIGKILL), 0);
    LetGo(death.first);
    ++attempt;
    const std::vector<pid_t> after = PidsAt(attempt, ranks, death.first);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(after[rank] == before[rank], rank != death.second) << rank;
    }
  }
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  for (const auto& death : dies) {  // since it came
    EXPECT_EQ(Losses(death.second).size(), static_cast<size_t>(kSteps - death.first));
    ExpectLossesOf(undisturbed, death.second);
  }
  return result;
}

inline void TorchSurvive::RunProgramOfTheGuide(const std::string& heading, int ranks) const {
  const std::string guide = ReadFile(absl::StrCat(kSourceDirectory, "/deploy/docs/recover.md"));
  const std::string fence = "```python\n";
  const size_t begin = guide.find(fence, guide.find(heading)) + fence.size();
  const std::string program = guide.substr(begin, guide.find("\n```", begin) - begin) + "\n";
  EXPECT_LT(std::count(program.begin(), program.end(), '\n'), 50);
  const std::string script = PythonScript("train.py", program);
  const std::string nproc = absl::StrCat("--nproc_per_node=", ranks);
  const SubprocessResult ours = Start({"run", nproc, script}, WithTorch()).Wait(kLong);
  EXPECT_THAT(ours, ExitsWith(0));
  EXPECT_THAT(ours.out, ::testing::HasSubstr("step 200  loss "));
  const SubprocessResult theirs =
      StartProgram({PeerPython(), "-m", "torch.distributed.run", "--standalone", nproc, script},
                   WithTorch())
          .Wait(kLong);
  EXPECT_THAT(theirs, ExitsWith(0));
  EXPECT_EQ(theirs.out, ours.out);
}

}  // namespace muster::testing
