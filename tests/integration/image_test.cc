// The files of the images that deploy/docker describes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kPython[] = "/usr/bin/python3";

// The words behind each `instruction` of a file of deploy/docker.
std::vector<std::vector<std::string>> Instructions(const std::string& file,
                                                   const std::string& instruction) {
  std::vector<std::vector<std::string>> all;
  for (absl::string_view line :
       absl::StrSplit(ReadFile(absl::StrCat(kSourceDirectory, "/deploy/docker/", file)), '\n')) {
    if (!absl::StartsWith(line, instruction + " ")) continue;
    all.push_back(absl::StrSplit(line.substr(instruction.size()), ' ', absl::SkipEmpty()));
  }
  return all;
}

class Image : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    const SubprocessResult laid =
        StartProgram({kPython,
                      absl::StrCat(kSourceDirectory,
                                   "/deploy/docker/"
                                   "image_layout.py"),
                      absl::StrCat("--build=", Built("..")), "--out=" + root_})
            .Wait(absl::Seconds(100));
    ASSERT_THAT(laid, ExitsWith(0));
  }

  const std::string root_ = directory() + "/image";
};

TEST_F(Image, HasWhatTheDockerfileCopies) {
  const auto copied = Instructions("Dockerfile", "COPY");
  EXPECT_THAT(copied, Not(IsEmpty()));
  std::vector<std::string> folders;
  for (std::vector<std::string> words : copied) {
    if (absl::StartsWith(words.front(), "--")) words.erase(words.begin());
    ASSERT_EQ(words.size(), 2u);
    EXPECT_EQ("/" + words[0], words[1]) << "the layout is the image's";
    EXPECT_TRUE(std::filesystem::is_directory(root_ + "/" + words[0])) << words[0];
    folders.push_back(words[0]);
  }
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    EXPECT_THAT(folders, Contains(entry.path().filename().string()));
  }
}

TEST_F(Image, RunsAJobWithNothingElseOnTheMachine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may change the root directory";
  for (const char* folder : {"dev", "proc"})
    std::filesystem::create_directory(root_ + "/" + folder);
  const std::string program = Instructions("Dockerfile", "ENTRYPOINT")[0][0];
  ASSERT_EQ(program, "[\"/usr/bin/muster\"]");

  // Its user is that of the image, and so is its environment.
  const SubprocessResult result = StartProgram({"/usr/bin/unshare", "--mount", "--pid", "--fork",
                                                "--kill-child", "/bin/sh", "-euc", R"(
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
exec env -i "$2" PATH=/usr/bin HOME=/home/muster /usr/sbin/chroot --userspec=65532:65532 "$1" \
  /usr/bin/muster --nproc_per_node=2 --no_python musterd --version)",
                                                "chroot", root_, mark()})
                                      .Wait(absl::Seconds(100));

  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("gRPC"));
}

TEST(TrainingImage, TakesTheWheelInThreeLines) {
  const std::string file = "pytorch.Dockerfile";
  EXPECT_EQ(Instructions(file, "FROM").size(), 1u);
  const auto copied = Instructions(file, "COPY");
  ASSERT_EQ(copied.size(), 1u);
  EXPECT_THAT(copied[0], ::testing::ElementsAre("muster_launch-*.whl", "/tmp/"));
  ASSERT_EQ(Instructions(file, "RUN").size(), 1u);
  EXPECT_THAT(ReadFile(absl::StrCat(kSourceDirectory, "/deploy/wheel/launch_wheel.py")),
              HasSubstr("NAME = \"muster_launch\""));
}

}  // namespace
}  // namespace muster::testing
