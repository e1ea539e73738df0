// What this machine's ranks multiply and exchange, as options of `muster plan`:
//
//   muster run --nproc_per_node=2 machine_rates
//   --gemm_gflops=98.1 --link_gigabytes=2.4
//
// Rates are by the time of processors, of all threads of a rank, averaged over the ranks: on an
// idle machine with a core for each that is the time that passes, and on a busy one others do not
// count. Ranks measure at the same time, as they work in a step. One rank has no link to measure.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

#include "muster/communicator.h"
#include "muster/runtime.h"
#include "proto/base/status_macros.h"
#include "tests/bench/gemm_rate.h"

namespace muster {
namespace {

constexpr int64_t kRows = 1024;                  // of muster-train's default micro-batch
constexpr int64_t kElements = int64_t{1} << 21;  // of a bucket
constexpr int kCalls = 8;
constexpr int kRuns = 5;
// Together as long as a step, so that both see as much of what else runs.
constexpr int kGemmRuns = 5;

double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double MeasureGemmRate() {
  double rates = 0;
  for (int run = 0; run < kGemmRuns; ++run) rates += bench::MeasureGemmRate(DecoderConfig(), kRows);
  return rates / kGemmRuns;
}

// Bytes that a rank sends per second of its processor's time, of reductions of buckets.
absl::StatusOr<double> MeasureLinkRate(Communicator& world) {
  std::vector<float> bucket(kElements);
  std::vector<double> rates;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = ProcessorSeconds();
    const int64_t sent = world.bytes_sent();
    for (int call = 0; call < kCalls; ++call) {
      MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(bucket)).Wait());
    }
    rates.push_back(static_cast<double>(world.bytes_sent() - sent) / (ProcessorSeconds() - begin));
  }
  std::nth_element(rates.begin(), rates.begin() + kRuns / 2, rates.end());
  return rates[kRuns / 2];
}

absl::Status Run() {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world"));
  std::vector<double> sums = {MeasureGemmRate(), 0};
  if (world->size() > 1) {
    MUSTER_ASSIGN_OR_RETURN(sums[1], MeasureLinkRate(*world));
  }
  MUSTER_RETURN_IF_ERROR(world->AllReduce(BufferOf(sums)).Wait());
  const double each = 1e9 * world->size();
  if (world->rank() == 0) {
    std::printf("--gemm_gflops=%.4g", sums[0] / each);
    if (world->size() > 1) std::printf(" --link_gigabytes=%.3g", sums[1] / each);
    std::printf("\n");
  }
  return runtime->Finish(0);
}

}  // namespace
}  // namespace muster

int main() {
  const absl::Status status = muster::Run();
  if (!status.ok()) std::fprintf(stderr, "machine_rates: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
