// What is asked of NCCL to register memory, by a table of functions in its place.
#include "worker_runtime/comm/nccl/nccl_registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace muster::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

// What was called, in order, and what the next call answers. NCCL's functions know no more of their
// caller.
std::vector<std::string> calls;
ncclResult_t answer = ncclSuccess;

ncclComm_t Comm() {
  static int comm = 0;
  return reinterpret_cast<ncclComm_t>(&comm);
}
void* Handle() {
  static int handle = 0;
  return &handle;
}

NcclLibrary FakeLibrary() {
  calls.clear();
  answer = ncclSuccess;
  NcclLibrary library;
  library.name = "NCCL 2.18.5";
  library.comm_register = [](const ncclComm_t comm, void* data, size_t bytes, void** handle) {
    calls.push_back(absl::StrCat("register ", comm == Comm(), " ",
                                 std::string(1, *static_cast<char*>(data)), " ", bytes));
    if (answer == ncclSuccess) *handle = Handle();
    return answer;
  };
  library.comm_deregister = [](const ncclComm_t comm, void* handle) {
    calls.push_back(absl::StrCat("deregister ", comm == Comm(), " ", handle == Handle()));
    return answer;
  };
  library.get_error_string = [](ncclResult_t) { return "unhandled system error"; };
  library.get_last_error = [](ncclComm_t) { return "ibv_reg_mr failed"; };
  return library;
}

TEST(NcclRegistration, TellsNcclOfAllBytesAndGivesUpWhatItGotForThem) {
  const NcclLibrary library = FakeLibrary();
  std::vector<char> memory(40, '7');
  const auto handle = RegisterMemory(library, Comm(), {memory.data(), 10, DType::kF32});
  ASSERT_THAT(handle, IsOkAndHolds(Handle()));
  EXPECT_THAT(DeregisterMemory(library, Comm(), *handle), IsOk());
  EXPECT_THAT(calls, ElementsAre("register 1 7 40", "deregister 1 1"));
}

TEST(NcclRegistration, FailsInNcclsWords) {
  const NcclLibrary library = FakeLibrary();
  std::vector<char> memory(40, '7');
  answer = ncclSystemError;
  EXPECT_THAT(RegisterMemory(library, Comm(), {memory.data(), 10, DType::kF32}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("registering 40 bytes failed in NCCL"),
                             HasSubstr("ibv_reg_mr failed"))));
  EXPECT_THAT(DeregisterMemory(library, Comm(), Handle()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("giving up registered memory")));
}

TEST(NcclRegistration, IsUnknownToNcclBeforeItsVersion219) {
  NcclLibrary library = FakeLibrary();
  library.comm_register = nullptr;
  library.comm_deregister = nullptr;
  std::vector<char> memory(40, '7');
  EXPECT_THAT(RegisterMemory(library, Comm(), {memory.data(), 10, DType::kF32}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("from version 2.19 on, and this is NCCL 2.18.5")));
  EXPECT_THAT(calls, IsEmpty());
}

}  // namespace
}  // namespace muster::comm
