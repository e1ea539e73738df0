// What the guides say can be typed: each block that begins with "```sh run" runs as it stands, with
// our programs on the PATH and in an empty directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"

namespace muster::testing {
namespace {

std::string Docs() { return absl::StrCat(kSourceDirectory, "/deploy/docs"); }

std::vector<std::string> BlocksThatRun(const std::string& guide) {
  const std::string fence = "```sh run\n";
  std::vector<std::string> blocks;
  for (size_t at = guide.find(fence); at != std::string::npos; at = guide.find(fence, at)) {
    at += fence.size();
    blocks.push_back(guide.substr(at, guide.find("\n```", at) - at));
  }
  return blocks;
}

std::vector<std::string> GuidesThatRun() {
  std::vector<std::string> guides;
  for (const std::string& file : FilesBelow(Docs())) {
    if (!BlocksThatRun(ReadFile(absl::StrCat(Docs(), "/", file))).empty()) guides.push_back(file);
  }
  return guides;
}

class Guides : public JobTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(Guides, RunAsTheyStand) {
  const LoopbackPort port;  // in the place of the one that a guide names
  for (const std::string& block : BlocksThatRun(ReadFile(absl::StrCat(Docs(), "/", GetParam())))) {
    const std::string commands =
        absl::StrReplaceAll(block, {{"29555", absl::StrCat(port.number())}});
    SubprocessOptions options = OptionsFor({});
    options.argv = {"/bin/bash", "-euc", commands};
    options.environment["PATH"] = absl::StrCat(kBinaryDirectory, ":", options.environment["PATH"]);
    options.environment["GUIDE_TEXT"] = absl::StrCat(kSourceDirectory, "/tests/data/prose.txt");
    options.working_directory = out();
    EXPECT_THAT(Subprocess(options).Wait(absl::Seconds(100)), ExitsWith(0)) << commands;
  }
}

INSTANTIATE_TEST_SUITE_P(Docs, Guides, ::testing::ValuesIn(GuidesThatRun()), [](const auto& info) {
  return info.param.substr(0, info.param.find('.'));
});

TEST(GuidesList, HasABlockThatRunsInEveryGuideWithCommands) {
  EXPECT_THAT(
      GuidesThatRun(),
      ::testing::IsSupersetOf({"hangs.md", "install.md", "migrate.md", "networks.md", "operate.md",
                               "plan.md", "recover.md", "run.md", "schedulers.md", "see.md",
                               "ssh.md", "torchrun.md", "train.md"}));
}

}  // namespace
}  // namespace muster::testing
