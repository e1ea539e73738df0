// Every file of scenarios/ says what it expects. `scenario_test --rewrite` writes what happens;
// review it as a diff.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/simulation/scenario_runner.h"
#include "tests/support/files.h"

namespace muster::simulation {
namespace {

std::vector<std::filesystem::path> ScenarioFiles() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat(testing::kSourceDirectory, "/tests/simulation/scenarios"))) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string Read(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class ScenarioTest : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(ScenarioTest, HappensAsWritten) {
  const std::string text = Read(GetParam());
  EXPECT_EQ(RunScenario(text), text) << "if this is meant, run scenario_test --rewrite";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, ScenarioTest, ::testing::ValuesIn(ScenarioFiles()),
                         [](const auto& info) { return info.param.stem().string(); });

TEST(RunScenario, ShowsWhatHappensInThePlaceOfWhatWasExpected) {
  EXPECT_EQ(RunScenario("start min=2\njoin n1\n----\nnonsense\n"),
            "start min=2\njoin n1\n----\nannounce node_seen round=-1 \"node n1 (n1) is here\"\n"
            "to n1: wait \"waiting for 1 more of 2 nodes\"\n");
}

}  // namespace
}  // namespace muster::simulation

int main(int argc, char** argv) {
  if (argc == 2 && absl::string_view(argv[1]) == "--rewrite") {
    for (const std::filesystem::path& file : muster::simulation::ScenarioFiles()) {
      const std::string text = muster::simulation::Read(file);
      std::ofstream(file) << muster::simulation::RunScenario(text);
    }
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
