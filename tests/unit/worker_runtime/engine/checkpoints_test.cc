#include "worker_runtime/engine/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/whole_checkpoint_files.h"
#include "tests/unit/worker_runtime/engine/kept_state.h"

namespace muster::engine {
namespace {

using ::muster::testing::Alone;
using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::muster::testing::Kept;
using ::muster::testing::OnRanks;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallTraining;
using ::muster::testing::StatusIs;
using ::muster::testing::TemporaryDirectory;
using ::muster::testing::Under;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

Plan PlanOf(const std::string& preset, int ranks) {
  return Under(preset, SmallPlan(SumMode::kOrdered, 12 / ranks), ranks);
}

// A training of one rank that has moments.
void Train(const std::string& directory) {
  Alone([&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf("ddp", 1));
    EXPECT_THAT((*training)->Steps(2), IsOk());
    EXPECT_THAT((*training)->engine().Save(directory, {}), IsOk());
  });
}

// So many ranks load `from` and save it as theirs.
void SaveUnder(const std::string& preset, int ranks, const std::string& from,
               const std::string& to) {
  OnRanks<int>(ranks, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf(preset, ranks));
    EXPECT_THAT((*training)->engine().Load(from), IsOk());
    EXPECT_THAT((*training)->engine().Save(to, {}), IsOk());
    return 0;
  });
}

// After one more step, to which the moments have added.
std::string HashAfter(const std::string& preset, int ranks, const std::string& directory) {
  const std::vector<std::string> hashes = OnRanks<std::string>(ranks, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf(preset, ranks));
    EXPECT_THAT((*training)->engine().Load(directory), IsOk());
    EXPECT_THAT((*training)->Steps(1), IsOk());
    return (*training)->engine().ParameterHash().value_or("none");
  });
  EXPECT_THAT(hashes, Each(hashes[0]));
  return hashes[0];
}

TEST(Checkpoints, LoadWhatAnotherHasSaved) {
  Alone([](Communicator& world) {
    TemporaryDirectory directory;
    Kept from(world, 1), to(world, 2);
    from.progress.step = 9;
    ASSERT_THAT(from.checkpoints.Save(directory.File("saved"), {{"by", "me"}}), IsOk());
    EXPECT_NE(to.Hash(), from.Hash());
    to.progress.is_torn = true;
    const auto loaded = to.checkpoints.Load(directory.File("saved"));
    ASSERT_THAT(loaded, IsOk());
    EXPECT_EQ(loaded->metadata.at("by"), "me");
    EXPECT_EQ(to.Hash(), from.Hash());
    EXPECT_EQ(to.progress.step, 9);
    EXPECT_FALSE(to.progress.is_torn);
  });
}

TEST(Checkpoints, OfAnyNumberOfRanksGoOnAtAnyOtherToTheSameBits) {
  const TemporaryDirectory one;
  Train(one.path());
  const std::string expected = HashAfter("ddp", 1, one.path());
  for (const char* preset : {"ddp", "zero-1", "zero-2", "full-shard", "hybrid-shard"}) {
    for (const int ranks : {2, 3, 4}) {
      const TemporaryDirectory directory;
      SaveUnder(preset, ranks, one.path(), directory.path());
      EXPECT_EQ(HashAfter("ddp", 1, directory.path()), expected) << preset << " " << ranks;
      EXPECT_EQ(HashAfter("full-shard", 3, directory.path()), expected) << preset << " " << ranks;
      EXPECT_EQ(HashAfter(preset, ranks, one.path()), expected) << preset << " " << ranks;
    }
  }
}

// The sizes of the files that ranks have written, by rank.
std::vector<int64_t> SizesIn(const TemporaryDirectory& directory) {
  std::vector<int64_t> sizes;
  for (const std::string& file : FilesBelow(directory.path())) {
    if (file.find("slices_") == std::string::npos) continue;
    sizes.push_back(static_cast<int64_t>(std::filesystem::file_size(directory.File(file))));
  }
  return sizes;
}

// Replicas share what all of them have.
TEST(Checkpoints, AreWrittenByAllRanksAlike) {
  const TemporaryDirectory one;
  Train(one.path());
  for (const char* preset : {"ddp", "zero-2"}) {
    const TemporaryDirectory directory;
    SaveUnder(preset, 4, one.path(), directory.path());
    const std::vector<int64_t> sizes = SizesIn(directory);
    const int64_t quarter = std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) / 4;
    ASSERT_THAT(sizes, SizeIs(4)) << preset;
    EXPECT_THAT(sizes, Each(AllOf(Ge(quarter * 8 / 10), Le(quarter * 12 / 10)))) << preset;
  }
}

// What this thread has read by system calls so far.
int64_t BytesReadHere() {
  std::ifstream io("/proc/thread-self/io");
  std::string key;
  int64_t bytes = -1;
  io >> key >> bytes;
  return key == "rchar:" ? bytes : -1;
}

TEST(Checkpoints, AreReadByEachRankInItsOwnPart) {
  const TemporaryDirectory one, directory;
  Train(one.path());
  SaveUnder("full-shard", 4, one.path(), directory.path());
  const std::vector<int64_t> sizes = SizesIn(directory);
  int64_t beside = 0;  // manifest and digests
  for (const std::string& file : FilesBelow(directory.path())) {
    if (file.find("slices_") != std::string::npos) continue;
    beside += static_cast<int64_t>(std::filesystem::file_size(directory.File(file)));
  }
  OnRanks<int>(4, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf("full-shard", 4));
    const int64_t before = BytesReadHere();
    EXPECT_THAT((*training)->engine().Load(directory.path()), IsOk());
    const int64_t read = BytesReadHere() - before;
    EXPECT_GE(read, sizes[world.rank()] * 7 / 10) << "all but the file's header";
    EXPECT_LE(read, sizes[world.rank()] + beside + 4096);
    return 0;
  });
}

// Writes it again, the model as `dtype` of what bf16 has of its elements.
void RewriteModelAs(DType dtype, const std::string& from, const std::string& to) {
  const auto saved = checkpoint::Checkpoint::Open(from);
  ASSERT_THAT(saved, IsOk());
  std::vector<checkpoint::ArrayToWrite> arrays;
  std::vector<checkpoint::Slice> slices;
  std::vector<std::string> contents;
  for (const bool is_of_model : {true, false}) {
    const auto& those = is_of_model ? saved->manifest().model : saved->manifest().optimizer;
    for (const auto& [name, array] : those) {
      std::vector<uint32_t> bits(array.num_elements());
      ASSERT_THAT(saved->Read(those, name, 0,
                              {bits.data(), static_cast<int64_t>(bits.size()), DType::kF32}),
                  IsOk());
      const DType type = is_of_model ? dtype : DType::kF32;
      std::string& bytes = contents.emplace_back();
      for (uint32_t element : bits) {
        if (is_of_model) element &= 0xffff0000;
        const char* begin = reinterpret_cast<const char*>(&element);
        bytes.append(begin + sizeof(element) - SizeOf(type), SizeOf(type));
      }
      slices.push_back({arrays.size(), 0, array.num_elements()});
      arrays.push_back({name, type, array.shape, is_of_model});
    }
  }
  auto made = checkpoint::NewCheckpoint::Begin(to, saved->state());
  ASSERT_THAT(made, IsOk());
  const auto file = checkpoint::WriteSlices(
      made->hidden(), checkpoint::NameOfSlices(0), arrays, slices,
      [&](size_t array, int64_t first, int64_t count) -> absl::StatusOr<absl::string_view> {
        const int64_t size = static_cast<int64_t>(SizeOf(arrays[array].dtype));
        return absl::string_view(contents[array]).substr(first * size, count * size);
      });
  ASSERT_THAT(file, IsOk());
  const auto manifest = checkpoint::ManifestOf(saved->state(), arrays, {*file});
  ASSERT_THAT(manifest, IsOk());
  ASSERT_THAT(made->Publish(*manifest), IsOk());
}

TEST(Checkpoints, OfSixteenBitsAreTakenAsTheMastersThatTheyAreTheBitsOf) {
  const TemporaryDirectory directory;
  Train(directory.path());
  const std::string saved = directory.File("step_00000002");
  RewriteModelAs(DType::kF32, saved, directory.File("wide"));
  RewriteModelAs(DType::kBf16, saved, directory.File("narrow"));
  const std::string expected = HashAfter("ddp", 1, directory.File("wide"));
  EXPECT_NE(expected, HashAfter("ddp", 1, saved));
  EXPECT_EQ(HashAfter("ddp", 1, directory.File("narrow")), expected);
  EXPECT_EQ(HashAfter("full-shard", 3, directory.File("narrow")), expected);
}

TEST(Checkpoints, OfBeforeThereWereSlicesGoOnAtAnyNumberOfRanks) {
  const TemporaryDirectory directory, whole;
  Train(directory.path());
  const auto saved = checkpoint::Checkpoint::Open(directory.File("step_00000002"));
  ASSERT_THAT(saved, IsOk());
  for (const bool has_checksums : {true, false}) {
    testing::WholeCheckpointFiles files = {.state = saved->state(), .has_checksums = has_checksums};
    std::deque<std::vector<float>> contents;
    for (const bool is_of_model : {true, false}) {
      const auto& those = is_of_model ? saved->manifest().model : saved->manifest().optimizer;
      for (const auto& [name, array] : those) {
        std::vector<float>& elements = contents.emplace_back(array.num_elements());
        ASSERT_THAT(saved->Read(those, name, 0, BufferOf(elements)), IsOk());
        (is_of_model ? files.model : files.optimizer)
            .push_back({name, array.shape, ConstBufferOf(elements)});
      }
    }
    testing::WriteWholeCheckpoint(whole.path(), files);
    const std::string expected = HashAfter("ddp", 1, directory.path());
    EXPECT_EQ(HashAfter("ddp", 1, whole.path()), expected);
    EXPECT_EQ(HashAfter("full-shard", 3, whole.path()), expected);
  }
}

TEST(Checkpoints, AskTheFenceBeforeASaveCounts) {
  Alone([](Communicator& world) {
    TemporaryDirectory directory;
    int64_t asked = 0;
    Kept from(world, 0, {.commit = [&](int64_t step) {
                asked = step;
                return absl::AbortedError("another round has it");
              }});
    from.progress.step = 4;
    EXPECT_THAT(std::string(from.checkpoints.Save(directory.File("saved"), {}).message()),
                HasSubstr("another round has it"));
    EXPECT_EQ(asked, 4);
    EXPECT_THAT(from.checkpoints.Load(directory.File("saved")),
                StatusIs(absl::StatusCode::kNotFound));
  });
}

TEST(Checkpoints, AreKeptInTheNumberThatTheEngineIsToldOf) {
  const TemporaryDirectory directory;
  OnRanks<int>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf("zero-2", 2), DType::kF32, nullptr,
                                          {.keeps_checkpoints = 2});
    for (int step = 0; step < 4; ++step) {
      EXPECT_THAT((*training)->engine().Save(directory.path(), {}), IsOk());
      EXPECT_THAT((*training)->Steps(1), IsOk());
    }
    return 0;
  });
  EXPECT_THAT(std::filesystem::exists(directory.File("step_00000001")), false);
  EXPECT_THAT(std::filesystem::exists(directory.File("step_00000002")), true);
  EXPECT_THAT(std::filesystem::exists(directory.File("step_00000003")), true);
}

TEST(Checkpoints, AreNotSavedOfAStateThatIsOfNoStep) {
  const TemporaryDirectory directory;
  const std::vector<absl::Status> saved = OnRanks<absl::Status>(2, [&](Communicator& world) {
    Kept from(world);
    from.progress.is_torn = world.rank() == 1;
    return from.checkpoints.Save(directory.path(), {});
  });
  EXPECT_THAT(saved, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("rank 1: the state is of no step"))));
  EXPECT_THAT(FilesBelow(directory.path()), IsEmpty());
}

// What a rank cannot write, no rank has saved; what was there stays.
TEST(Checkpoints, LeaveNothingWhereARankCannotWrite) {
  const TemporaryDirectory directory;
  Train(directory.path());
  const std::vector<std::string> before = FilesBelow(directory.path());
  const std::string expected = HashAfter("ddp", 1, directory.path());
  const std::vector<absl::Status> saved = OnRanks<absl::Status>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, PlanOf("full-shard", 2));
    EXPECT_THAT((*training)->Steps(2), IsOk());
    // Once rank 1 is writing its file, a directory takes its name.
    (*training)->engine().OnPhase([&](int64_t, Phase phase) {
      if (world.rank() == 0 || phase != Phase::kSave) return;
      for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
        if (entry.path().filename().string()[0] != '.') continue;
        std::filesystem::create_directory(entry.path() / checkpoint::NameOfSlices(1));
      }
    });
    return (*training)->engine().Save(directory.path(), {});
  });
  EXPECT_THAT(saved, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("rank 1: "), HasSubstr("slices_00001")))));
  EXPECT_EQ(FilesBelow(directory.path()), before);
  EXPECT_EQ(HashAfter("ddp", 1, directory.path()), expected);
}

}  // namespace
}  // namespace muster::engine
