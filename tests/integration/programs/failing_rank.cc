// Rank 1 of a job fails in one of several ways while the others call collectives:
//
//   failing_rank dies|midway|absent|size|type|slow
//
// The others print what they were told, with how long that took, and end with 1. They ignore
// SIGTERM, so that the agent, which stops the job as soon as rank 1 is gone, does not silence them.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/communicator.h"
#include "muster/runtime.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr int64_t kCount = 1 << 16;

// Waits for the end that others bring.
[[noreturn]] void SleepForever() {
  for (;;) pause();
}

// Long enough to be killed in.
constexpr int64_t kLongCount = int64_t{1} << 26;  // 256 MiB

absl::Status RunWell(Communicator& world) {
  std::vector<float> ones(kCount, 1);
  for (int i = 0; i < 1'000'000; ++i) {
    MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(ones)).Wait());
  }
  return absl::OkStatus();
}

// Rank 1 is ended at the beginning of a long message of rank 0, who does nothing else by which it
// could notice; rank 2 only waits for rank 0.
absl::Status SendToTheDying(Communicator& world) {
  if (world.rank() == 2) {
    std::vector<float> few(kCount);
    return world.Recv(BufferOf(few), 0).Wait();
  }
  std::vector<float> many(kLongCount, world.rank() == 0 ? 1 : 0);
  if (world.rank() == 0) return world.Send(ConstBufferOf(many), 1).Wait();
  const Work receive = world.Recv(BufferOf(many), 0);
  // Written by the receive; a volatile read is enough to see it come.
  const volatile float& arrived = many[0];
  while (arrived == 0) std::this_thread::yield();
  std::raise(SIGKILL);
  return absl::OkStatus();
}

// Ends or misbehaves after a few calls like everybody's.
absl::Status RunBadly(Communicator& world, const std::string& how) {
  std::vector<float> ones(kCount, 1);
  for (int i = 0; i < 10; ++i) {
    MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(ones)).Wait());
  }
  if (how == "dies") std::raise(SIGKILL);
  if (how == "slow") SleepForever();
  if (how == "type") {
    std::vector<double> other(kCount, 1);
    return world.AllReduce(BufferOf(other)).Wait();
  }
  std::vector<float> other(kCount + 1, 1);
  return world.AllReduce(BufferOf(other)).Wait();
}

absl::Status Run(const std::string& how) {
  std::signal(SIGTERM, SIG_IGN);
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  const bool fails = runtime->rank() == 1;
  if (fails && how == "absent") SleepForever();
  MUSTER_ASSIGN_OR_RETURN(
      const auto world,
      runtime->MakeCommunicator("world", "",
                                {.timeout = absl::Seconds(how == "midway" ? 600 : 3),
                                 .connect_timeout = absl::Seconds(3)}));
  if (how == "midway") return SendToTheDying(*world);
  return fails ? RunBadly(*world, how) : RunWell(*world);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const absl::Status status = muster::Run(argv[1]);
  std::fprintf(stderr, "told: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
