// What a machine without NVIDIA hardware says when the nccl backend is asked for. The backend
// itself is tested in tests/gpu.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/communicator_registry.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(NcclBackend, SaysWhatIsMissingWhereItCannotRun) {
  const auto made = MakeCommunicator(
      "nccl",
      {.membership = {.group = "dp"}, .store = std::make_shared<MemoryStore>(), .prefix = "test"});
  if (made.ok()) GTEST_SKIP() << "this machine has a GPU: see tests/gpu";
  EXPECT_THAT(made,
              AnyOf(StatusIs(absl::StatusCode::kUnimplemented,
                             HasSubstr("this program is linked without NCCL; use gloo")),
                    StatusIs(absl::StatusCode::kUnavailable,
                             AllOf(HasSubstr("backend nccl on rank 0 of group dp"),
                                   AnyOf(HasSubstr("no NVIDIA driver"), HasSubstr("no NVIDIA GPU"),
                                         HasSubstr("NCCL library")),
                                   HasSubstr("gloo")))));
}

}  // namespace
}  // namespace muster::comm
