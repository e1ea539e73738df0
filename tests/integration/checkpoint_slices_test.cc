// Checkpoints of which each rank writes a part: what goes on from them, what is exported, and what
// is said where the parts do not come together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/integration/sliced_training.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

namespace fs = std::filesystem;

class OfType : public SlicedTraining, public ::testing::WithParamInterface<const char*> {
 protected:
  Arguments Typed(const Arguments& more) const {
    return more + Arguments{absl::StrCat("--dtype=", GetParam())};
  }
  std::string Whole(const std::string& steps) const { return HashOf(OnRanks(1, Typed({steps}))); }
};

TEST_P(OfType, GoOnOnAnyNumberOfRanksUnderAnyPlanAndBack) {
  HashOf(OnRanks(4, Typed({"--steps=2", "--plan=zero-3", "--save", Out("four")})));
  EXPECT_THAT(FilesBelow(Out("four/step_00000002")),
              ElementsAre("digests.sha256", "slices_00000.safetensors", "slices_00001.safetensors",
                          "slices_00002.safetensors", "slices_00003.safetensors", "training.json"));
  const Arguments more = Typed({"--steps=4", "--resume", Out("four")});
  const std::string four = Whole("--steps=4");
  EXPECT_THAT(four, ContainsRegex("^hash=[0-9a-f]{64}$"));
  EXPECT_EQ(HashOf(OnRanks(1, more)), four);
  EXPECT_EQ(HashOf(OnRanks(2, more + Arguments{"--plan=ddp"})), four);
  EXPECT_EQ(HashOf(OnRanks(3, more + Arguments{"--plan=zero-3"})), four);
  EXPECT_EQ(HashOf(OnRanks(2, more + Arguments{"--stages=2", "--save", Out("stages")}, 2)), four);
  EXPECT_EQ(HashOf(OnRanks(4, Typed({"--steps=6", "--plan=zero-3", "--resume", Out("stages")}))),
            Whole("--steps=6"));
}

TEST_P(OfType, GoOnFromTheirExportAsWell) {
  HashOf(OnRanks(3, Typed({"--steps=2", "--plan=zero-3", "--save", Out("saved")})));
  const SubprocessResult exported = Run({"export", Out("saved"), Out("exported")});
  ASSERT_THAT(exported, ExitsWith(0));
  EXPECT_THAT(exported.out,
              ContainsRegex(absl::StrCat("^exported ", Out("saved/step_00000002"), " to ",
                                         Out("exported"), ": [0-9]+ arrays, [0-9]+ bytes\n$")));
  EXPECT_THAT(exported.err, IsEmpty());
  EXPECT_THAT(FilesBelow(Out("exported")), ElementsAre("digests.sha256", "model.safetensors",
                                                       "optimizer.safetensors", "training.json"));
  const Arguments more = Typed({"--steps=4", "--plan=zero-2", "--resume", Out("exported")});
  EXPECT_EQ(HashOf(OnRanks(2, more)), Whole("--steps=4"));
}

INSTANTIATE_TEST_SUITE_P(Types, OfType, ::testing::Values("f32", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

class Exporting : public SlicedTraining {
 protected:
  // Checkpoints of the steps 1 and 2, by two ranks.
  void Save() const { HashOf(OnRanks(2, {"--steps=2", "--save_every=1", "--save", Out("saved")})); }
  void DamageTheNewest() const {
    const std::string path = Out("saved/step_00000002/slices_00001.safetensors");
    std::string bytes = ReadFile(path);
    bytes.back() = static_cast<char>(~bytes.back());
    WriteFile(path, bytes);
  }
};

TEST_F(Exporting, PassesOverANewerOneThatIsDamagedAndSaysSo) {
  Save();
  DamageTheNewest();
  const SubprocessResult result = Run({"export", Out("saved"), Out("exported")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("saved/step_00000001 to "));
  EXPECT_THAT(result.err, ContainsRegex("^muster export: passed over: .*step_00000002/"
                                        "slices_00001.safetensors is damaged: .*\n$"));
}

TEST_F(Exporting, OfADamagedOneThatWasNamedLeavesNothing) {
  Save();
  DamageTheNewest();
  const SubprocessResult result = Run({"export", Out("saved/step_00000002"), Out("exported")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err,
              ContainsRegex("^muster export: .*slices_00001.safetensors is damaged: .*\n$"));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out())) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ElementsAre("saved"));
}

TEST_F(Exporting, LeavesAloneWhatIsNoCheckpoint) {
  Save();
  fs::create_directory(Out("thesis"));
  WriteFile(Out("thesis/thesis.tex"), "text");
  const SubprocessResult result = Run({"export", Out("saved"), Out("thesis")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr(Out("thesis") + ": it is not a checkpoint alone"));
  EXPECT_THAT(FilesBelow(Out("thesis")), ElementsAre("thesis.tex"));
}

TEST_F(Exporting, SaysThatThereIsNothing) {
  const SubprocessResult result = Run({"export", Out("nowhere"), Out("exported")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, AllOf(HasSubstr("muster export: "), HasSubstr(Out("nowhere"))));
}

TEST_F(Exporting, RefusesALineThatIsNotOfTwoDirectories) {
  for (const Arguments& words :
       {Arguments{}, Arguments{"saved"}, Arguments{"saved", "exported", "more"}}) {
    const SubprocessResult result = Run(Arguments{"export"} + words);
    EXPECT_THAT(result, ExitsWith(2));
    EXPECT_THAT(result.err, HasSubstr("muster export: expected a checkpoint and a directory "
                                      "(muster export CHECKPOINT DIR)"));
  }
  EXPECT_THAT(Run({"export", "saved", "exported", "--fast"}), ExitsWith(2));
}

TEST_F(SlicedTraining, LosesNoCheckpointToKillsInTheMidstOfSaves) {
  ExpectThatKilledSavesLeaveACheckpoint(Out("saved"), 8);
}

// Files of the other rank still fit.
TEST_F(SlicedTraining, GoesOnWhereThePartOfOneRankDoesNotFit) {
  Subprocess job = Start(OnRanks(2, {"--steps=100000000", "--plan=zero-3", "--save", Out("saved"),
                                     "--save_every=50", "--log_every=1000"}));
  ASSERT_TRUE(job.WaitForOutput("\nsaved after step 50 "));
  const pid_t worker = WorkerOf(1);
  ASSERT_GT(worker, 0);
  rlimit before = {};
  const rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &limit, &before), 0);
  ASSERT_TRUE(job.WaitForOutput("not saved after step "));
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &before, nullptr), 0);
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.out,
              ContainsRegex("\nnot saved after step [0-9]+: .*slices_00001.safetensors: it needs "
                            "[0-9]+ bytes.*; earlier checkpoints stay; training goes on\n"));
  const int64_t lost = FirstNumber(result.out, "\nnot saved after step ");
  EXPECT_FALSE(fs::exists(Out(absl::StrFormat("saved/step_%08d", lost))));
  const int64_t saved = LastNumber(result.out, "\nsaved after step ");
  EXPECT_GT(saved, lost);
  EXPECT_THAT(Run(OnRanks(1, {"--steps=1", "--resume", Out("saved")})).out,
              HasSubstr(absl::StrCat(", after step ", saved)));
}

class ApartFromEachOther : public SlicedTraining {
 protected:
  // Two ranks, each of which has a directory of its own under the same relative name.
  SubprocessResult TrainApart(const Arguments& more) const {
    for (const char* rank : {"0", "1"}) fs::create_directories(Out(rank));
    const std::string apart = ShellScript("apart.sh", "cd $OUT/$RANK && exec \"$@\"");
    return Start(Arguments{"run", "--nproc_per_node=2", apart} + Training(2, more)).Wait(kLong);
  }
};

TEST_F(ApartFromEachOther, RanksThatSaveAreToldThatTheDirectoryMustBeOne) {
  const SubprocessResult result = TrainApart({"--steps=2", "--save", "saved"});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: rank 1: cannot save in saved: it is not the "
                                        "directory that rank 0 has .*all nodes share"));
  EXPECT_THAT(result.out, Not(HasSubstr("step 1")));
  EXPECT_THAT(FilesBelow(Out("0")), IsEmpty());
  EXPECT_THAT(FilesBelow(Out("1")), IsEmpty());
}

TEST_F(ApartFromEachOther, RanksThatLoadAreToldThatTheDirectoryMustBeOne) {
  for (const char* rank : {"0", "1"}) {
    HashOf(OnRanks(1, {absl::StrCat("--seed=", rank), "--steps=1", "--save",
                       absl::StrCat(Out(rank), "/saved")}));
  }
  const SubprocessResult result = TrainApart({"--steps=2", "--resume", "saved"});
  EXPECT_THAT(result, ExitsWith(1)) << "it may have been replaced just then";
  EXPECT_THAT(result.err, ContainsRegex("muster-train: .*rank 1.*must be one for all nodes"));
}

TEST_F(ApartFromEachOther, ARankThatFindsNoCheckpointIsNamed) {
  HashOf(OnRanks(1, {"--steps=1", "--save", Out("0/saved")}));
  const SubprocessResult result = TrainApart({"--steps=2", "--resume", "saved"});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("muster-train: .*rank 1.*must be one for all nodes"));
}

}  // namespace
}  // namespace muster::testing
