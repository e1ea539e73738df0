// Ranks as threads of one process meet the contract of Communicator.
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_data.h"
#include "tests/unit/worker_runtime/comm/communicator_contract_failures.h"

namespace muster::comm {
namespace {

std::vector<ContractBackend::Join> MakeLoopback(int size, const CommunicatorOptions& options) {
  auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(
      MakeLoopbackCommunicators({.group = "world", .size = size, .options = options}));
  std::vector<ContractBackend::Join> joins;
  for (int rank = 0; rank < size; ++rank) {
    joins.push_back([ranks, rank] { return std::move((*ranks)[rank]); });
  }
  return joins;
}

INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorContract,
                         ::testing::Values(ContractBackend{"loopback", MakeLoopback}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::comm
