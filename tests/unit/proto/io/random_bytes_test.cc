#include "proto/io/random_bytes.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

namespace muster {
namespace {

// The sandbox of a container may do this.
void ForbidGetrandom() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {.len = 4, .filter = filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST(RandomBytes, DifferEachTime) { EXPECT_NE(RandomBytes(32), RandomBytes(32)); }

TEST(RandomBytesDeathTest, ThatTheKernelDoesNotGiveEndTheProcessWithASentence) {
  EXPECT_EXIT(
      {
        ForbidGetrandom();
        RandomBytes(8);
      },
      ::testing::ExitedWithCode(1), "no random bytes .getrandom: Operation not permitted");
}

}  // namespace
}  // namespace muster
