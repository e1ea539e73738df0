#include "launcher/node/node_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/files.h"

namespace muster::launcher {
namespace {

using ::muster::testing::TemporaryDirectory;
using ::muster::testing::WriteFile;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(PackageVersion, IsThatOfTheFolderOfItsName) {
  const std::vector<std::string> names = {"torchvision-0.20.1.dist-info", "torch",
                                          "torch-2.15.0+cu130.dist-info", "nvidia_nccl_cu12",
                                          "numpy-2.1.0.egg-info"};
  EXPECT_EQ(PackageVersion(names, "torch"), "2.15.0+cu130");
  EXPECT_EQ(PackageVersion(names, "numpy"), "2.1.0");
  EXPECT_EQ(PackageVersion(names, "nvidia_nccl_cu12"), "");
  EXPECT_EQ(PackageVersion({}, "torch"), "");
}

class NodeFactsOf : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.File(name); }

 private:
  const TemporaryDirectory directory_;
};

// The interpreter is that of a virtual environment, a link to another place.
TEST_F(NodeFactsOf, AnInterpreterAreThoseOfItsEnvironment) {
  for (const char* folder : {"bin", "lib/python3.12/site-packages/torch-2.15.0.dist-info",
                             "lib/python3.12/site-packages/nvidia_nccl_cu13-2.28.9.dist-info",
                             "lib/other/site-packages/torch-1.0.dist-info"}) {
    std::filesystem::create_directories(Path(folder));
  }
  std::filesystem::create_symlink("/usr/bin/true", Path("bin/python"));
  const agent::NodeFacts facts = GatherNodeFacts({.python = Path("bin/python")});
  EXPECT_THAT(facts, Contains(Pair("PyTorch", "2.15.0")));
  EXPECT_THAT(facts, Contains(Pair("NCCL", "2.28.9")));
  const agent::NodeFacts without = GatherNodeFacts({});
  EXPECT_THAT(without, Contains(Key("kernel")));
  EXPECT_THAT(without, Not(Contains(Key("PyTorch"))));
}

TEST_F(NodeFactsOf, AScriptFollowFromItsText) {
  const auto hash_of = [&](const std::string& path) {
    const agent::NodeFacts facts = GatherNodeFacts({.script = path});
    const auto found = facts.find("script (hash)");
    return found == facts.end() ? "" : found->second;
  };
  WriteFile(Path("one.py"), "print(1)");
  WriteFile(Path("same.py"), "print(1)");
  WriteFile(Path("other.py"), "print(2)");
  EXPECT_EQ(hash_of(Path("one.py")).size(), 16u);
  EXPECT_EQ(hash_of(Path("one.py")), hash_of(Path("same.py")));
  EXPECT_NE(hash_of(Path("one.py")), hash_of(Path("other.py")));
  // What is read once, by the worker, is not opened: without a writer that would wait for ever.
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(hash_of(Path("pipe")), "");
  EXPECT_EQ(hash_of(Path("missing.py")), "");
}

TEST_F(NodeFactsOf, TheEnvironmentAreTheVariablesThatMustAgree) {
  const agent::NodeFacts facts =
      GatherNodeFacts({.environment = {{"NCCL_ALGO", "Ring"}, {"HOME", "/home/me"}}});
  EXPECT_THAT(facts, Contains(Pair("NCCL_ALGO", "Ring")));
  EXPECT_THAT(facts, Contains(Pair("PYTHONHASHSEED", "no value")));
  EXPECT_THAT(facts, Not(Contains(Key("HOME"))));
}

}  // namespace
}  // namespace muster::launcher
