#include "agent/machine/device_binding.h"

#include <string>
#include <vector>

#include "agent/machine/gpu_inventory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = ProcessesPerNode::Kind;

DeviceRequest EightGpus(ProcessesPerNode nproc) {
  return {.nproc_per_node = std::move(nproc), .num_gpus = 8, .num_cpus = 64};
}
ProcessesPerNode List(std::vector<std::string> gpus) {
  return {.kind = Kind::kGpuList, .gpus = std::move(gpus)};
}
ProcessesPerNode Count(int count) { return {.count = count}; }

std::string ErrorOf(const DeviceRequest& request) {
  const absl::StatusOr<DeviceBinding> binding = PlanDevices(request);
  EXPECT_EQ(binding.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(binding.status().message());
}

TEST(PlanDevices, LeavesTheVariableAloneForANumber) {
  EXPECT_EQ(*PlanDevices(EightGpus(Count(3))), (DeviceBinding{3, {"", "", ""}}));
}

TEST(PlanDevices, MeansGpusByAutoIfThereAreAny) {
  EXPECT_EQ(PlanDevices(EightGpus({.kind = Kind::kAuto}))->num_workers, 8);
}

TEST(PlanDevices, MeansCpusByAutoWithoutGpus) {
  EXPECT_EQ(PlanDevices({.nproc_per_node = {.kind = Kind::kAuto}, .num_cpus = 6})->num_workers, 6);
}

TEST(PlanDevices, MeansCpusByCpuAlsoWithGpus) {
  EXPECT_EQ(PlanDevices(EightGpus({.kind = Kind::kCpu}))->num_workers, 64);
}

TEST(PlanDevices, RefusesGpuWithoutOne) {
  EXPECT_THAT(ErrorOf({.nproc_per_node = {.kind = Kind::kGpu}}),
              AllOf(HasSubstr("--nproc_per_node=gpu"), HasSubstr("no usable GPU")));
}

TEST(PlanDevices, SaysThatTheVariableHidesTheGpus) {
  EXPECT_THAT(ErrorOf({.nproc_per_node = {.kind = Kind::kGpu}, .visible_devices = ""}),
              HasSubstr("CUDA_VISIBLE_DEVICES is \"\""));
}

TEST(PlanDevices, GivesEveryWorkerTheWholeList) {
  EXPECT_EQ(*PlanDevices(EightGpus(List({"1", "3"}))), (DeviceBinding{2, {"1,3", "1,3"}}));
}

TEST(PlanDevices, MapsIdsThroughTheInheritedList) {
  DeviceRequest request{.nproc_per_node = List({"1", "3"}), .visible_devices = "4,5,6,GPU-abc"};
  EXPECT_THAT(PlanDevices(request)->visible_devices, Each("5,GPU-abc"));
}

TEST(PlanDevices, TakesUuidsAsTheyAre) {
  DeviceRequest request{.nproc_per_node = List({"GPU-abc", "0"}), .visible_devices = "4,5"};
  EXPECT_THAT(PlanDevices(request)->visible_devices, Each("GPU-abc,4"));
}

TEST(PlanDevices, RefusesAnIdBeyondTheInheritedList) {
  EXPECT_THAT(ErrorOf({.nproc_per_node = List({"0", "2"}), .visible_devices = "4,5"}),
              AllOf(HasSubstr("no GPU 2"), HasSubstr("\"4,5\""), HasSubstr("0 to 1")));
}

TEST(PlanDevices, RefusesAnIdBeyondTheGpusOfTheNode) {
  EXPECT_THAT(ErrorOf(EightGpus(List({"8"}))), AllOf(HasSubstr("no GPU 8"), HasSubstr("8 GPUs")));
}

TEST(PlanDevices, RefusesANegativeId) {
  EXPECT_THAT(ErrorOf(EightGpus(List({"-1"}))), HasSubstr("no GPU -1"));
}

TEST(PlanDevices, RefusesAGpuThatIsListedTwice) {
  EXPECT_THAT(ErrorOf(EightGpus(List({"1", "1"}))), HasSubstr("GPU 1 is listed twice"));
}

TEST(PlanDevices, RefusesAListWithoutAnyGpu) {
  EXPECT_THAT(ErrorOf({.nproc_per_node = List({"0"})}),
              HasSubstr("--nproc_per_node=gpu:0: this node has no usable GPU"));
}

TEST(PlanDevices, ShowsEachWorkerOneDeviceOfTheInheritedList) {
  DeviceRequest request{
      .nproc_per_node = Count(2), .virtual_local_rank = true, .visible_devices = "6, 7"};
  EXPECT_THAT(PlanDevices(request)->visible_devices, ElementsAre("6", "7"));
}

TEST(PlanDevices, ShowsEachWorkerOneDeviceOfTheGivenList) {
  DeviceRequest request = EightGpus(List({"1", "3"}));
  request.virtual_local_rank = true;
  EXPECT_THAT(PlanDevices(request)->visible_devices, ElementsAre("1", "3"));
}

TEST(PlanDevices, NamesTheLocalRankThatHasNoDevice) {
  EXPECT_THAT(
      ErrorOf({.nproc_per_node = Count(3), .virtual_local_rank = true, .visible_devices = "6,7"}),
      AllOf(HasSubstr("local rank 2"), HasSubstr("\"6,7\"")));
}

TEST(PlanDevices, NumbersDevicesByLocalRankWithoutAList) {
  DeviceRequest request{.nproc_per_node = Count(2), .virtual_local_rank = true};
  EXPECT_THAT(PlanDevices(request)->visible_devices, ElementsAre("0", "1"));
}

TEST(PlanDevices, LeavesGpusHiddenThatWereHiddenOnPurpose) {
  DeviceRequest request{
      .nproc_per_node = Count(2), .virtual_local_rank = true, .visible_devices = "-1"};
  EXPECT_THAT(PlanDevices(request)->visible_devices, ElementsAre("", ""));
}

TEST(NeedsGpuCount, SparesPlainNumbersTheDriver) {
  EXPECT_FALSE(NeedsGpuCount({.nproc_per_node = Count(8)}));
  EXPECT_FALSE(NeedsGpuCount({.nproc_per_node = List({"0"}), .visible_devices = "1"}));
  EXPECT_TRUE(NeedsGpuCount({.nproc_per_node = List({"0"})}));
  EXPECT_TRUE(NeedsGpuCount({.nproc_per_node = {.kind = Kind::kAuto}}));
}

TEST(SplitVisibleDevices, StopsAtTheFirstEntryThatNamesNoDevice) {
  EXPECT_THAT(SplitVisibleDevices("0, 2,-1,3"), ElementsAre("0", "2"));
  EXPECT_THAT(SplitVisibleDevices(""), IsEmpty());
}

const std::vector<Gpu> kGpus = {{.uuid = "GPU-aa11", .numa_node = 0},
                                {.uuid = "GPU-bb22", .numa_node = 1}};

TEST(SelectVisibleGpus, TakesAllWithoutTheVariable) {
  EXPECT_THAT(SelectVisibleGpus(kGpus, std::nullopt), SizeIs(2));
}

TEST(SelectVisibleGpus, FollowsTheOrderOfTheVariable) {
  const std::vector<Gpu> visible = SelectVisibleGpus(kGpus, "1,0");
  ASSERT_THAT(visible, SizeIs(2));
  EXPECT_EQ(visible[0].numa_node, 1);
}

TEST(SelectVisibleGpus, UnderstandsShortenedUuids) {
  const std::vector<Gpu> visible = SelectVisibleGpus(kGpus, "GPU-bb");
  ASSERT_THAT(visible, SizeIs(1));
  EXPECT_EQ(visible[0].numa_node, 1);
}

TEST(SelectVisibleGpus, StopsAtADeviceThatIsNotThere) {
  EXPECT_THAT(SelectVisibleGpus(kGpus, "0,7,1"), SizeIs(1));
}

TEST(SelectVisibleGpus, CountsMigDevices) {
  EXPECT_THAT(SelectVisibleGpus(kGpus, "MIG-1,MIG-2,MIG-3"), SizeIs(3));
}

TEST(SelectVisibleGpus, HasNoneWithoutGpus) {
  EXPECT_THAT(SelectVisibleGpus({}, "0,1"), IsEmpty());
}

TEST(CountGpus, IsZeroWhereTheVariableHidesAll) {
  EXPECT_EQ(CountGpus(""), 0);
  EXPECT_EQ(CountGpus("-1"), 0);
}

TEST(ListGpus, AgreesWithCountGpus) {
  EXPECT_EQ(static_cast<int>(ListGpus().size()), CountGpus(std::nullopt));
}

}  // namespace
}  // namespace muster::agent
