// That the interpreter finds what a GPU would leave to chance, on kernels of a few lines.
#include "tests/unit/worker_runtime/cuda/ptx/ptx_interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Runs `body` for a warp, with %rd1 the address of an array of `size` bytes, all written as 0, 1,
// 2, ….
class PtxInterpreter : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 256;

  void SetUp() override {
    array_ = static_cast<unsigned char*>(memory_.Take(kSize));
    for (size_t i = 0; i < kSize; ++i) array_[i] = static_cast<unsigned char>(i);
    memory_.MarkWritten(array_, kSize);
  }

  std::string Run(const std::string& body, unsigned threads = 32, uint64_t seed = 1) {
    const auto entry = ParsePtx(
        absl::StrCat(".entry test(.param .u64 test_param_0)\n{\n.reg .b32 %r<9>;\n"
                     "ld.param.u64 %rd1, [test_param_0];\nmov.u32 %r1, %tid.x;\n"
                     "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nshl.b32 %r2, %r1, 2;\n"
                     "mov.u32 %r3, shared_memory;\nadd.s32 %r4, %r3, %r2;\n",
                     body, "\nret;\n}\n"),
        "test");
    if (!entry.ok()) return std::string(entry.status().message());
    std::vector<unsigned char> arguments(8);
    std::memcpy(arguments.data(), &array_, 8);
    return RunPtx(*entry, {.threads = threads, .shared_bytes = 4 * threads}, arguments, memory_,
                  seed, &traffic_);
  }
  uint32_t Word(size_t index) const {
    uint32_t word;
    std::memcpy(&word, array_ + 4 * index, sizeof(word));
    return word;
  }

  PtxMemory memory_;
  unsigned char* array_ = nullptr;
  PtxTraffic traffic_;
};

TEST_F(PtxInterpreter, CountsWhatLanesReadAndWrite) {
  EXPECT_EQ(Run("ld.global.u32 %r5, [%rd3];\nadd.s32 %r5, %r5, 1;\nst.global.u32 [%rd3], %r5;"),
            "");
  EXPECT_EQ(Word(1), 0x07060505u);
  EXPECT_EQ(traffic_.bytes_read, 128);
  EXPECT_EQ(traffic_.bytes_written, 128);
}

TEST_F(PtxInterpreter, FindsAccessesThatAreMisalignedOutsideOrToWhatNobodyWrote) {
  EXPECT_THAT(Run("ld.global.u32 %r5, [%rd3+2];"), HasSubstr("is no multiple of 4"));
  EXPECT_THAT(Run("ld.global.v2.u32 {%r5, %r6}, [%rd3];"), HasSubstr("is no multiple of 8"));
  EXPECT_THAT(Run("ld.global.u32 %r5, [%rd3+256];"),
              AnyOf(HasSubstr("of an array of 256"), HasSubstr("in no array")));
  EXPECT_THAT(Run("ld.shared.u32 %r5, [%r4];"), HasSubstr("nobody wrote"));
  EXPECT_THAT(Run("st.shared.u32 [%r4+128], %r1;"), HasSubstr("of shared memory"));
  EXPECT_THAT(Run("st.global.u32 [%rd3], %r7;"), HasSubstr("no value"));
}

TEST_F(PtxInterpreter, FindsABarrierThatIsMissing) {
  const auto exchange = [&](const std::string& between) {
    return Run(absl::StrCat("st.shared.u32 [%r4], %r1;\n", between,
                            "\nxor.b32 %r5, %r2, 128;\nadd.s32 %r5, %r3, %r5;\n"
                            "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd3], %r6;"),
               64);
  };
  EXPECT_EQ(exchange("bar.sync 0;"), "");
  EXPECT_EQ(Word(0), 32u);
  EXPECT_NE(exchange(""), "");
  EXPECT_THAT(exchange("bar.warp.sync -1;"), HasSubstr("shared memory"));
}

TEST_F(PtxInterpreter, FindsWritesOverWhatOthersStillRead) {
  const auto overwrite = [&](const std::string& between) {
    return Run(
        absl::StrCat("st.shared.u32 [%r4], %r1;\nbar.warp.sync -1;\nxor.b32 %r5, %r2, 4;\n"
                     "add.s32 %r5, %r3, %r5;\nld.shared.u32 %r6, [%r5];\n",
                     between, "\nst.shared.u32 [%r4], %r6;"));
  };
  EXPECT_EQ(overwrite("bar.warp.sync -1;"), "");
  EXPECT_THAT(overwrite(""), HasSubstr("since they last met"));
}

TEST_F(PtxInterpreter, CopiesArriveWhenTheyAreWaitedForAndNotBefore) {
  const auto copy = [&](const std::string& wait) {
    return Run(absl::StrCat(
        "mul.lo.s32 %r5, %r1, 16;\nand.b32 %r5, %r5, 127;\nadd.s32 %r5, %r3, %r5;\n"
        "setp.ge.u32 %p1, %r1, 8;\n@%p1 bra $L_end;\n"
        "cp.async.cg.shared.global [%r5], [%rd1], 16, 16;\n",
        wait, "\nld.shared.u32 %r6, [%r5+4];\nst.global.u32 [%rd3+32], %r6;\n$L_end:"));
  };
  EXPECT_EQ(copy("cp.async.wait_all;"), "");
  EXPECT_EQ(Word(8), 0x07060504u);
  EXPECT_THAT(copy(""), HasSubstr("was not waited for"));
}

TEST_F(PtxInterpreter, LanesAndThreadsMeetAtOnePlaceOrNotAtAll) {
  const std::string half = "setp.ge.u32 %p1, %r1, 16;\n";
  EXPECT_THAT(Run(half + "@%p1 bra $L_end;\nbar.warp.sync -1;\n$L_end:"), HasSubstr("have ended"));
  EXPECT_THAT(Run(half + "@%p1 bra $L_else;\nbar.warp.sync -1;\nbra.uni $L_end;\n"
                         "$L_else:\nbar.warp.sync -1;\n$L_end:"),
              HasSubstr("different places"));
  EXPECT_THAT(Run("setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $L_end;\nbar.sync 0;\n$L_end:", 64),
              HasSubstr("have ended"));
}

TEST_F(PtxInterpreter, SaysWhatItDoesNotKnow) {
  EXPECT_THAT(Run("atom.global.add.u32 %r5, [%rd3], 1;"), HasSubstr("atom.global.add.u32"));
}

}  // namespace
}  // namespace muster::testing
