// What is said where ranks of PyTorch wait for something that no recorder has: whoever waits for
// something of its own accuses nobody. One or two programs of each kind; all of them, over more
// ranks and nodes: torch_kinds_test.cc.
#include "tests/integration/torch_kinds.h"

namespace muster::testing {
namespace {

constexpr Shape kThree = {.num_local = 3};

TEST_F(TorchWaits, AreNoHangOfRanksThatIdleByIntention) { ExpectNoHangs(kThree); }

TEST_F(TorchWaits, NameWhoIsMissing) {
  ExpectSaid(HangsOf(3, {"monitored_barrier", "rpc_shutdown", "roots", "no_member", "saver"}),
             kThree, {"--hang_timeout=12"});
}

TEST_F(TorchWaits, NameWhatIsWaitedForWhereNobodyIsAccused) {
  ExpectSaid(HangsOf(3, {"rpc_never", "rpc_alone", "key", "own_store", "own_receive"}), kThree,
             {"--hang_timeout=12"});
}

TEST_F(TorchWaits, NameWhoDoesNotEnd) {
  ExpectSaid(HangsOf(3, {"end_destroy", "end_elsewhere", "end_atexit"}), kThree, {});
}

}  // namespace
}  // namespace muster::testing
