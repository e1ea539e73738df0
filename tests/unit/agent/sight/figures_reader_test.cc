#include "agent/sight/figures_reader.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/fake_nvml.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Figures : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(testing::Built("libfake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    nvml_ = reinterpret_cast<FakeNvmlFunction>(dlsym(library_, "fake_nvml"))();
  }
  void TearDown() override {
    nvml_->num_gpus = 1;
    nvml_->gpus[0] = {};
    nvml_->gpus[1] = {};
    dlclose(library_);
  }

  void* library_ = nullptr;
  FakeNvml* nvml_ = nullptr;
  FiguresReader reader_{{.nvml = testing::Built("libfake_nvml.so")}};
};

TEST_F(Figures, OfAProcessAreItsUseOfProcessorAndMemory) {
  const status::RankFigures self{.rank = 3, .pid = getpid()};
  const MonoTime start = MonoNow();
  EXPECT_EQ(reader_.Read({self}, {}, start).ranks[0].cpu_percent, -1) << "of the first look: none";
  volatile int64_t turns = 0;
  while (MonoNow() < start + absl::Milliseconds(200)) turns = turns + 1;
  const status::FiguresOfNode figures = reader_.Read({self}, {}, MonoNow());
  ASSERT_THAT(figures.ranks, SizeIs(1));
  EXPECT_GT(figures.ranks[0].cpu_percent, 0);
  EXPECT_GT(figures.ranks[0].memory_mib, 0);
  EXPECT_GT(figures.node.cpus, 0);
  EXPECT_GT(figures.node.memory_mib, figures.node.memory_used_mib);
}

TEST_F(Figures, OfGpusAreWhatTheDriverTells) {
  nvml_->num_gpus = 2;
  nvml_->gpus[1] = {.bus_id = "00000000:5E:00.0",
                    .pid = static_cast<unsigned>(getpid()),
                    .kernel_percent = 97,
                    .memory_mib = 1000,
                    .used_mib = 400,
                    .slow_reasons = 0x40};
  const status::FiguresOfNode figures = reader_.Read({{.rank = 0, .pid = getpid()}}, {}, MonoNow());
  ASSERT_THAT(figures.gpus, SizeIs(2));
  EXPECT_EQ(figures.gpus[1].busy_percent, 97);
  EXPECT_EQ(figures.gpus[1].memory_used_mib, 400);
  EXPECT_EQ(figures.gpus[1].memory_mib, 1000);
  EXPECT_EQ(figures.gpus[1].slowed_by, "heat");
  EXPECT_EQ(figures.gpus[1].power_watts, -1) << "this driver does not tell it";
  EXPECT_THAT(figures.ranks[0].gpus, ElementsAre(1));
}

TEST_F(Figures, NameAFaultOfAGpu) {
  const status::FiguresOfNode figures = reader_.Read(
      {}, {"NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus."},
      MonoNow());
  ASSERT_THAT(figures.gpus, SizeIs(1));
  EXPECT_EQ(figures.gpus[0].fault, "Xid 79");
  nvml_->gpus[0].recovery_action = 1;
  EXPECT_EQ(reader_.Read({}, {}, MonoNow()).gpus[0].fault, "needs a reset");
}

TEST(FiguresWithoutNvml, AreThoseOfTheKernel) {
  FiguresReader reader({.nvml = "/nonexistent/libnvidia-ml.so"});
  const status::FiguresOfNode figures = reader.Read({{.pid = getpid()}}, {}, MonoNow());
  EXPECT_THAT(figures.gpus, IsEmpty());
  EXPECT_GT(figures.ranks[0].memory_mib, 0);
}

}  // namespace
}  // namespace muster::agent
