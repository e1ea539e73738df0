#include "launcher/config/instructlab_config.h"
#include "absl/strings/str_cat.h"

#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/line/flags.h"
#include "tests/support/files.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string TheConfig() {
  return muster::testing::ReadFile(
      absl::StrCat(testing::kSourceDirectory, "/tests/unit/launcher/configs/instructlab.yaml"));
}

LaunchConfig Read(const std::string& text) {
  auto config = LaunchOfInstructLab(text, "");
  EXPECT_TRUE(config.ok()) << text << ": " << config.status();
  return config.value_or(LaunchConfig{});
}

std::string WhyNot(const std::string& text) {
  const absl::Status status = LaunchOfInstructLab(text, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(LaunchOfInstructLab, TakesWorkersAndLeavesTheRestToTheProgram) {
  const LaunchConfig config = Read(TheConfig());
  EXPECT_THAT(config.options,
              ElementsAre(TakenOption{"nproc_per_node", "4", "line 4: train.num_gpus", true}));
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_THAT(config.notes[0], AllOf(HasSubstr("10 keys of train (deepspeed.enabled"),
                                     HasSubstr("for the program")));
}

TEST(LaunchOfInstructLab, TakesTheKeysOfInstructLabItself) {
  const LaunchConfig config = Read(
      "version: 1.0.0\nserve:\n  vllm:\n    args: [[a]]\ntrain:\n  nproc_per_node: 8\n"
      "  nnodes: 2\n  node_rank: 1\n  rdzv_id: 123\n  rdzv_endpoint: '10.0.0.1:12222'\n"
      "  additional_args:\n    warmup_steps: 25\n  training_journal: null\n");
  EXPECT_THAT(config.options,
              ElementsAre(TakenOption{"nproc_per_node", "8", "line 6: train.nproc_per_node", true},
                          TakenOption{"nnodes", "2", "line 7: train.nnodes", true},
                          TakenOption{"node_rank", "1", "line 8: train.node_rank", true},
                          TakenOption{"rdzv_id", "123", "line 9: train.rdzv_id", true},
                          TakenOption{"rdzv_endpoint", "10.0.0.1:12222",
                                      "line 10: train.rdzv_endpoint", true}));
  EXPECT_THAT(Read("train:\n  nproc_per_node: gpu").notes, IsEmpty());
  EXPECT_THAT(Read("train:\n").options, IsEmpty());
}

TEST(LaunchOfInstructLab, KnowsABlockThatIsLeftEmpty) {
  EXPECT_THAT(Read("train:\n  num_gpus: 2\n  model:\n  deepspeed: null\n").options,
              ElementsAre(TakenOption{"nproc_per_node", "2", "line 2: train.num_gpus", true}));
  EXPECT_THAT(WhyNot("train:\n  model: 7"),
              HasSubstr("line 2: train.model: 7: expected a map of keys and values"));
}

TEST(LaunchOfInstructLab, NamesWhatItCannotTake) {
  EXPECT_THAT(WhyNot("train:\n  num_gpu: 4"),
              AllOf(HasSubstr("line 2: unknown key 'num_gpu' in train"), HasSubstr("num_gpus")));
  EXPECT_THAT(WhyNot("trian:\n  num_gpus: 4"), HasSubstr("the section train is missing"));
  EXPECT_THAT(WhyNot("train:\n  num_gpus: 4\nsevre: {}"),
              AllOf(HasSubstr("line 3: "), HasSubstr("did you mean serve")));
  EXPECT_THAT(WhyNot("train:\n  num_gpus: none"), HasSubstr("train.num_gpus: none: expected"));
  EXPECT_THAT(WhyNot("train:\n  num_gpus: 0"), HasSubstr("line 2: train.num_gpus: 0: expected"));
  EXPECT_THAT(WhyNot("train:\n  num_gpus: 4\n  nproc_per_node: 4"),
              HasSubstr("says the same as num_gpus"));
  EXPECT_THAT(WhyNot("train:\n  distributed: false\n  num_gpus: 4"),
              HasSubstr("train.distributed: False: one process, but train.num_gpus is 4"));
  EXPECT_THAT(WhyNot("train: 4"), HasSubstr("line 1"));
  EXPECT_THAT(WhyNot("train: &a\n  model: *a"), HasSubstr("line "));
}

TEST(ParseFlags, TakesAFileOfInstructLabsWithAScript) {
  const MachineView machine = {
      .read = [](const std::string&) -> absl::StatusOr<std::string> { return TheConfig(); }};
  const auto parse = [&](const std::vector<std::string>& args) {
    return ParseFlags(args, {}, "fresh", SchedulerFindings{}, machine);
  };
  const auto flags = parse({"--ilab", "i.yaml", "train.py", "--lr", "1"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(std::get<RunFlags>(*flags).spec.nproc_per_node.count, 4);
  EXPECT_THAT(std::get<RunFlags>(*flags).spec.program.args, ElementsAre("--lr", "1"));
  EXPECT_THAT(std::get<RunFlags>(*flags).notes, ElementsAre(HasSubstr("--ilab=i.yaml: 10 keys")));
  const auto given = parse({"--ilab=i.yaml", "--nproc_per_node=2", "train.py"});
  EXPECT_EQ(std::get<RunFlags>(*given).spec.nproc_per_node.count, 2);
  EXPECT_THAT(
      parse({"--ilab=i.yaml"}).status().message(),
      AllOf(HasSubstr("no script was given"), HasSubstr("muster run --ilab=i.yaml SCRIPT")));
  EXPECT_THAT(parse({"--ilab=i.yaml", "--config_file=a.yaml", "t.py"}).status().message(),
              HasSubstr("--ilab=i.yaml: cannot be given beside --config_file"));
}

}  // namespace
}  // namespace muster::launcher
