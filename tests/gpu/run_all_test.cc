// The script for the day a GPU is lent, rehearsed where there is none: from a bundle as it is
// carried, with every GPU hidden; and in a bare root directory with CUDA's libraries where pip puts
// PyTorch's, with programs in the place of those that would find a GPU and fail late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

SubprocessResult RunScript(std::vector<std::string> argv) {
  const char* path = std::getenv("PATH");
  return Subprocess({.argv = std::move(argv),
                     .environment = {{"PATH", path == nullptr ? "/usr/bin:/bin" : path},
                                     {"CUDA_VISIBLE_DEVICES", ""}}})
      .Wait();
}

// The rows below the first table's head.
std::vector<std::string> PartsOf(const std::string& results) {
  std::vector<std::string> rows;
  for (const absl::string_view line : absl::StrSplit(results, '\n')) {
    if (absl::StartsWith(line, "| ") && !absl::StartsWith(line, "| part") &&
        !absl::StartsWith(line, "| ---")) {
      rows.emplace_back(line);
    }
  }
  return rows;
}

TEST(RunAll, WithoutAGpuEveryPartSaysThatItWasSkippedAndWhy) {
  const TemporaryDirectory directory;
  const std::string bundle = directory.File("bundle");
  const std::string make = absl::StrCat(kSourceDirectory, "/tests/gpu/make_bundle");
  const auto made = RunScript({make, bundle, Built("..")});
  ASSERT_EQ(made.exit_code, 0) << ToString(made);
  EXPECT_THAT(ReadFile(bundle + "/expected"),
              ::testing::AllOf(HasSubstr("tokens|124M|cudnn|"), HasSubstr("tokens|1.5B|own|"),
                               HasSubstr("kernel|our attention's gradient|"),
                               HasSubstr("kernel|embedding's gradients|")));

  const auto ran = RunScript({bundle + "/run_all", directory.File("output")});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  const std::string results = ReadFile(directory.File("output/results.md"));
  const auto parts = PartsOf(results);
  EXPECT_THAT(parts, SizeIs(21)) << results;
  for (const std::string& part : parts) {
    const std::vector<std::string> cells = absl::StrSplit(part, " | ");
    ASSERT_THAT(cells, SizeIs(3)) << part;
    EXPECT_EQ(cells[1], "skipped") << part;
    EXPECT_GT(cells[2].size(), 10u) << part;
  }
}

TEST(RunAll, ABundleWithoutProgramsSaysWhichAreMissing) {
  const TemporaryDirectory directory;
  const std::string script = absl::StrCat(kSourceDirectory, "/tests/gpu/run_all");
  const auto ran = RunScript({script, directory.path()});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  EXPECT_THAT(
      ran.out,
      HasSubstr("| tests: kernels | skipped | cuda_kernels_gpu_test is not in the bundle |"));
}

TEST(RunAll, RunsOnlyThePartsThatAreNamed) {
  const TemporaryDirectory directory;
  const std::string script = absl::StrCat(kSourceDirectory, "/tests/gpu/run_all");
  const auto ran = RunScript({script, directory.path(), "racecheck", "tokens/s of 350M"});
  EXPECT_EQ(ran.exit_code, 0) << ToString(ran);
  const auto parts = PartsOf(ReadFile(directory.File("results.md")));
  ASSERT_THAT(parts, SizeIs(3));
  EXPECT_THAT(parts[0], HasSubstr("| figures: tokens/s of 350M, attention cudnn |"));
  EXPECT_THAT(parts[1], HasSubstr("| figures: tokens/s of 350M, attention own |"));
  EXPECT_THAT(parts[2], HasSubstr("| sanitizers: kernels under racecheck |"));
}

// $1: the root directory, $2: the script.
constexpr char kMakeBareRoot[] = R"sh(
set -e; root=$1
mkdir -p $root/{tmp,proc,dev,etc,bundle/bin,usr/bin}
for d in bin lib lib64; do
  mkdir -p $root/usr/$d
  if [[ -L /$d ]]; then ln -s usr/$d $root/$d; else mkdir -p $root/$d; fi
done
for tool in bash env timeout date sed grep awk tr head tail cut ls mkdir cat tee rm readlink tar \
    gzip sort sleep dirname; do
  program=$(readlink -f "$(command -v $tool)"); cp "$program" $root/usr/bin/$tool
  ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root${library%/*}"; cp -Ln "$library" "$root$library"
  done
done
mknod -m 666 $root/dev/null c 1 3
mknod -m 666 $root/dev/urandom c 1 9
mknod -m 666 $root/dev/zero c 1 5
nvidia=$root/usr/local/lib/python3.12/site-packages/nvidia
mkdir -p $nvidia/{cu13,cudnn,nccl}/lib
touch $nvidia/cu13/lib/libcublasLt.so.13 $nvidia/cudnn/lib/libcudnn.so.9
touch $nvidia/nccl/lib/libnccl.so.2
cp "$2" $root/bundle/
)sh";

// A root directory with the tools that the script needs and the libraries of those, and nothing
// else.
class BareRoot {
 public:
  BareRoot() {
    made_ = RunScript({"/bin/bash", "-c", kMakeBareRoot, "make", root(),
                       absl::StrCat(kSourceDirectory, "/tests/gpu/run_all")});
  }
  const SubprocessResult& made() const { return made_; }
  std::string root() const { return directory_.File("root"); }

  // Puts a script in the place of a program of the bundle, or of the machine's.
  void Put(const std::string& program, const std::string& script,
           const std::string& folder = "/bundle/bin/") {
    const std::string path = absl::StrCat(root(), folder, program);
    WriteFile(path, "#!/bin/bash\n" + script);
    chmod(path.c_str(), 0755);
  }
  SubprocessResult Run(const std::vector<std::string>& words) {
    std::vector<std::string> argv = {"/bundle/run_all", "/tmp/out"};
    argv.insert(argv.end(), words.begin(), words.end());
    return Start(argv);
  }
  // Programs find a /proc there, as on every machine.
  SubprocessResult Start(const std::vector<std::string>& words) {
    std::vector<std::string> argv = {
        "/usr/bin/unshare",
        "--mount",
        "/bin/sh",
        "-c",
        "mount -t proc proc \"$0/proc\" && exec /usr/sbin/chroot \"$0\" \"$@\"",
        root()};
    argv.insert(argv.end(), words.begin(), words.end());
    return Subprocess({.argv = std::move(argv),
                       .environment = {{"PATH", "/usr/bin:/bin"},
                                       {"HOME", "/root"},
                                       {"RUN_ALL_LIMIT", "2"}}})
        .Wait();
  }

 private:
  const TemporaryDirectory directory_;
  SubprocessResult made_;
};

// The driver is a file that is no library, as where a container has lost it.
TEST(RunAll, ProgramsOfTheBundleStartWithNothingButTheBundle) {
  if (geteuid() != 0) GTEST_SKIP() << "a root directory of its own needs root";
  BareRoot bare;
  ASSERT_EQ(bare.made().exit_code, 0) << ToString(bare.made());
  const auto made = RunScript({absl::StrCat(kSourceDirectory, "/tests/gpu/make_bundle"),
                               bare.root() + "/bundle", Built("..")});
  ASSERT_EQ(made.exit_code, 0) << ToString(made);
  std::filesystem::create_directories(bare.root() + "/usr/lib/x86_64-linux-gnu");
  WriteFile(bare.root() + "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
  int programs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(bare.root() + "/bundle/bin")) {
    const std::string name = entry.path().filename(), program = "/bundle/bin/" + name;
    const bool is_test = absl::EndsWith(name, "_test");
    const auto ran = bare.Start(is_test ? std::vector<std::string>{program}
                                        : std::vector<std::string>{program, "--help"});
    if (is_test) {
      EXPECT_EQ(ran.exit_code, 0) << name << ToString(ran);
      EXPECT_THAT(ran.out, HasSubstr("[  SKIPPED ]")) << name;
    } else if (name == "kernel_figures") {
      EXPECT_EQ(ran.exit_code, 77) << ToString(ran);
      EXPECT_THAT(ran.out, HasSubstr("no GPU: CUDA driver")) << ToString(ran);
    } else {
      EXPECT_EQ(ran.exit_code, 0) << name << ToString(ran);
    }
    ++programs;
  }
  EXPECT_GE(programs, 2);
  WriteFile(bare.root() + "/tmp/text", std::string(4000, 'm'));
  const auto trained =
      bare.Start({"/bundle/bin/muster", "run", "--nproc_per_node=2", "/bundle/bin/muster-train",
                  "--data=/tmp/text", "--layers=1", "--heads=2", "--width=32", "--context=16",
                  "--batch_size=2", "--steps=3", "--sample_tokens=0"});
  EXPECT_EQ(trained.exit_code, 0) << ToString(trained);
  EXPECT_THAT(trained.out, HasSubstr("step 3/3")) << ToString(trained);
  const auto refused =
      bare.Start({"/bundle/bin/muster-train", "--device=cuda", "--data=/tmp/text", "--steps=1"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("driver")) << ToString(refused);
}

TEST(RunAll, InABareRootItFindsPipsLibrariesAndSaysOfEachPartHowItEnded) {
  if (geteuid() != 0) GTEST_SKIP() << "a root directory of its own needs root";
  BareRoot bare;
  ASSERT_EQ(bare.made().exit_code, 0) << ToString(bare.made());
  bare.Put("kernel_figures", R"(
if [[ ${1-} == --device ]]; then echo 'a stand-in for a GPU, 132 multiprocessors'; exit 0; fi
echo '| kernel | ms |'; echo 'kernel_figures: an illegal memory access was encountered'; exit 1)");
  // The first model trains, the second is lost late, the third hangs, the fourth has no memory.
  bare.Put("muster-train", R"(
echo "libraries in $LD_LIBRARY_PATH"
echo 'step  5/25  loss 10.9  norm 1.0  lr 3.0e-04  312k tok/s  74 ms/step  left 0:02'
case "$*" in
  *--layers=12*)
    echo 'step 25/25  loss 9.8  norm 1.0  lr 3.0e-04  441k tok/s  74 ms/step  left 0:00' ;;
  *--layers=24*) echo 'muster-train: error: cublasLtMatmul failed: the GPU is lost'; exit 1 ;;
  *--layers=36*) sleep 1000 ;;
  *) echo 'device cuda: no memory for 7 bytes more, an error'; kill -ABRT $$ ;;
esac)");
  WriteFile(bare.root() + "/bundle/expected", "tokens|124M|cudnn|480k\ntokens|124M|own|407k\n");
  bare.Put("cuda_api_test", "echo '[  PASSED  ] 9 tests.'");
  bare.Put("cuda_kernels_gpu_test",
           "echo '[  FAILED  ] RowKernels/bf16.BiasAndGeluTogether (3 ms)'; exit 1");
  bare.Put("nccl_communicator_test", R"(
if [[ $1 == --gtest_list_tests ]]; then
  printf 'Nccl.\n  Meets\n  Hangs\nNcclThree.\n  GoesOn\n'
  exit 0
fi
case $1 in *Hangs) sleep 1000 ;; esac)");
  bare.Put("muster", "exit 0");
  bare.Put("python3", R"(
if [[ $1 == -c ]]; then exit 0; fi
echo 'ddp: passed: back in 1.43 s (36 s)'
echo 'hsdp: FAILED: the job ended with 1 (85 s)'; exit 1)",
           "/usr/bin/");

  const auto ran = bare.Run({});
  EXPECT_EQ(ran.exit_code, 1) << ToString(ran);
  const std::string results = ReadFile(bare.root() + "/tmp/out/results.md");
  for (const char* said :
       {"a stand-in for a GPU, 132 multiprocessors",
        "* libcublasLt.so.13: "
        "/usr/local/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
        "* libcudnn.so.9: /usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "* libnccl.so.2: /usr/local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "| figures: tokens/s of 124M, attention cudnn | passed | 441k tok/s",
        "| figures: tokens/s of 350M, attention cudnn | failed | muster-train: error: "
        "cublasLtMatmul failed: the GPU is lost",
        "| figures: tokens/s of 774M, attention own | ended | ended after 2 s",
        "| figures: tokens/s of 1.5B, attention own | failed | device cuda: no memory for 7 bytes "
        "more",
        "| figures: kernels | failed | exit code 1: kernel_figures: an illegal memory access was",
        "| figures: a step's time by kernel | skipped | ncu is not installed here |",
        "| tests: streams, events and graphs | passed | 9 tests",
        "| tests: kernels | failed | [  FAILED  ] RowKernels/bf16.BiasAndGeluTogether",
        "| tests: training | skipped | training_gpu_test is not in the bundle |",
        "| nccl: two and three ranks on one GPU | failed | 2 passed, 0 skipped; Nccl.Hangs: ended "
        "after 2 s",
        "| torch: ranks that die or hang over NCCL | failed | hsdp: FAILED: the job ended with 1",
        "| sanitizers: kernels under memcheck | skipped | compute-sanitizer is not installed here "
        "|",
        "| 124M | own | 32 x 1024 | 441k | 35.8% | 407k | 500k |"}) {
    EXPECT_THAT(results, HasSubstr(said));
  }
  EXPECT_THAT(PartsOf(results.substr(0, results.find("| GPT |"))), SizeIs(21));
  EXPECT_THAT(
      ReadFile(bare.root() + "/tmp/out/train_124M_own.log"),
      HasSubstr("nvidia/cu13/lib:/usr/local/lib/python3.12/site-packages/nvidia/cudnn/lib:"));
  EXPECT_TRUE(std::filesystem::exists(bare.root() + "/tmp/out.tar.gz"));
}

}  // namespace
}  // namespace muster::testing
