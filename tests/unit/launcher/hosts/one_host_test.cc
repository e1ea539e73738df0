#include "launcher/hosts/one_host.h"

#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/line/flags.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using Args = std::vector<std::string>;

// A machine with GPUs, and with files by their paths.
MachineView With(int gpus, const EnvironmentMap& files = {}) {
  return {.read = [files](const std::string& path) -> absl::StatusOr<std::string> {
            const auto found = files.find(path);
            if (found == files.end()) return absl::NotFoundError("No such file or directory");
            return found->second;
          },
          .count_gpus = [gpus] { return gpus; }};
}

auto ParseOn(const MachineView& machine, Args args) {
  args.insert(args.end(), {"train.py", "--lr", "1"});
  return ParseFlags(args, {{"HOME", "/home/me"}}, "fresh", SchedulerFindings{}, machine);
}

RunFlags Parse(const MachineView& machine, const Args& args) {
  const auto flags = ParseOn(machine, args);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? std::get<RunFlags>(*flags) : RunFlags{};
}

std::string WhyNot(const MachineView& machine, const Args& args) {
  const absl::Status status = ParseOn(machine, args).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(OneHost, StartsTheWorkersOfThisMachineAsDeepSpeedDoes) {
  const RunFlags flags = Parse(With(4), {"--num_gpus=4"});
  EXPECT_THAT(flags.spec.nproc_per_node.gpus, ElementsAre("0", "1", "2", "3"));
  EXPECT_TRUE(flags.spec.is_single_node());
  EXPECT_THAT(flags.spec.program.args, ElementsAre("--local_rank=${local_rank}", "--lr", "1"));
  EXPECT_THAT(flags.environment, Contains(Pair("LOCAL_SIZE", "4")));
  EXPECT_THAT(flags.environment, Contains(Pair("CROSS_RANK", "0")));
  EXPECT_THAT(flags.environment, Contains(Pair("CROSS_SIZE", "1")));
}

TEST(OneHost, ChoosesSlotsOfLocalhost) {
  EXPECT_THAT(Parse(With(4), {"--include", "localhost:0,2"}).spec.nproc_per_node.gpus,
              ElementsAre("0", "2"));
  EXPECT_THAT(Parse(With(3), {"--exclude=localhost:1"}).spec.nproc_per_node.gpus,
              ElementsAre("0", "2"));
  EXPECT_THAT(Parse(With(4), {"--num_gpus=2"}).spec.nproc_per_node.gpus, ElementsAre("0", "1"));
  EXPECT_THAT(Parse(With(2), {"--include=localhost"}).spec.nproc_per_node.gpus,
              ElementsAre("0", "1"));
  EXPECT_THAT(Parse(With(1), {"--num_nodes=1"}).spec.nproc_per_node.gpus, ElementsAre("0"));
  const RunFlags without = Parse(With(2), {"--no_local_rank"});
  EXPECT_THAT(without.spec.nproc_per_node.gpus, ElementsAre("0", "1"));
  EXPECT_THAT(without.spec.program.args, ElementsAre("--lr", "1"));
}

// A machine whose CUDA_VISIBLE_DEVICES a scheduler has set.
MachineView Seeing(const std::vector<std::string>& visible) {
  MachineView machine = With(static_cast<int>(visible.size()));
  machine.visible_gpus = visible;
  return machine;
}

// The workers' GPUs are places in the list: --nproc_per_node=gpu:0,1 counts within it.
TEST(OneHost, TakesSlotsThatCudaVisibleDevicesListsForThoseGpus) {
  const RunFlags same = Parse(Seeing({"4", "5"}), {"--include=localhost:4,5"});
  EXPECT_THAT(same.spec.nproc_per_node.gpus, ElementsAre("0", "1"));
  EXPECT_THAT(same.notes, IsEmpty());
  EXPECT_THAT(Parse(Seeing({"1", "3", "6"}), {"--exclude=localhost:1"}).spec.nproc_per_node.gpus,
              ElementsAre("1", "2"));
  EXPECT_THAT(Parse(Seeing({"5", "4"}), {"--include=localhost:4"}).spec.nproc_per_node.gpus,
              ElementsAre("1"));
  const RunFlags all = Parse(Seeing({"5", "4"}), {"--include=localhost"});
  EXPECT_THAT(all.spec.nproc_per_node.gpus, ElementsAre("0", "1"));
  EXPECT_THAT(all.notes, IsEmpty());
}

TEST(OneHost, SaysWhereSlotsCountWithinCudaVisibleDevices) {
  const RunFlags flags = Parse(Seeing({"4", "5", "6", "7"}), {"--include=localhost:0,1"});
  EXPECT_THAT(flags.spec.nproc_per_node.gpus, ElementsAre("0", "1"));
  EXPECT_THAT(flags.notes,
              ElementsAre("--include=localhost:0,1: CUDA_VISIBLE_DEVICES is 4,5,6,7, and slots "
                          "count from 0 within it: workers get 4,5"));
  EXPECT_THAT(Parse(Seeing({"GPU-a", "GPU-b"}), {"--exclude=localhost:0"}).notes,
              ElementsAre(HasSubstr("workers get GPU-b")));
  EXPECT_THAT(
      WhyNot(Seeing({"4", "5"}), {"--include=localhost:4,6"}),
      AllOf(HasSubstr("localhost has no slot 4"), HasSubstr("CUDA_VISIBLE_DEVICES is 4,5")));
}

TEST(OneHost, RunsOnCpusWhereThereAreNoGpus) {
  const RunFlags flags = Parse(With(0), {"--num_gpus=2"});
  EXPECT_EQ(flags.spec.nproc_per_node.count, 2);
  EXPECT_THAT(flags.environment, Contains(Pair("LOCAL_SIZE", "2")));
  EXPECT_THAT(WhyNot(With(0), {"--include=localhost:0"}), HasSubstr("no GPU was found"));
  EXPECT_THAT(WhyNot(With(0), {"--num_gpus=0"}), HasSubstr("--num_gpus=0"));
}

TEST(OneHost, GivesVariablesOfTheFilesOfDeepSpeed) {
  const MachineView machine =
      With(1, {{"/home/me/.deepspeed_env", "A=1\nB=x\n"}, {"./.deepspeed_env", "B=y=z\n"}});
  const RunFlags flags = Parse(machine, {"--num_gpus=1"});
  EXPECT_THAT(flags.environment, AllOf(Contains(Pair("A", "1")), Contains(Pair("B", "y=z"))));
  EXPECT_THAT(Parse(machine, {}).environment, Not(Contains(Key("A"))));
  EXPECT_THAT(WhyNot(With(1, {{"./.deepspeed_env", "A\n"}}), {"--num_gpus=1"}),
              HasSubstr("'A': expected NAME=value"));
}

TEST(OneHost, NamesWhatThisMachineDoesNotHave) {
  EXPECT_THAT(WhyNot(With(2), {"--include=worker-0:1"}),
              AllOf(HasSubstr("worker-0 is not in the host file"),
                    HasSubstr("there is localhost alone, with 2 slots")));
  EXPECT_THAT(WhyNot(With(2), {"--include=localhost:2"}), HasSubstr("localhost has no slot 2"));
  EXPECT_THAT(WhyNot(With(2), {"--num_gpus=3"}), HasSubstr("--num_gpus=3: localhost has 2 slots"));
  EXPECT_THAT(WhyNot(With(2), {"--num_nodes=2"}), HasSubstr("without --hostfile=FILE"));
  EXPECT_THAT(WhyNot(With(2), {"--ssh_port=22"}), HasSubstr("--ssh_port=22: needs --hostfile"));
  EXPECT_THAT(WhyNot(With(2), {"--num_gpus=2", "--nproc_per_node=2"}),
              HasSubstr("--nproc_per_node=2: cannot be given beside --num_gpus"));
}

TEST(OneHost, TakesTheHostFileAtItsUsualPlace) {
  const MachineView machine = With(2, {{"/job/hostfile", "a slots=2\n"}});
  const auto job = ParseOn(machine, {"--num_nodes=1"});
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(std::holds_alternative<HostJob>(*job));
  EXPECT_EQ(std::get<HostJob>(*job).host_file, "/job/hostfile");
  EXPECT_THAT(Parse(machine, {}).environment, IsEmpty());
}

TEST(OneHost, EachNodeOfSeveralIsStartedSo) {
  const RunFlags flags = Parse(With(2), {"--num_gpus=2", "--nnodes=2", "--node_rank=1",
                                         "--master_addr=n1", "--master_port=7000"});
  EXPECT_THAT(flags.environment, Contains(Pair("CROSS_RANK", "1")));
  EXPECT_THAT(flags.environment, Contains(Pair("CROSS_SIZE", "2")));
}

}  // namespace
}  // namespace muster::launcher
