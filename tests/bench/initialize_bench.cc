// Seconds in which the initial values of a GPT's parameters are made, array by array, of which none
// is kept: what a rank that holds all of them takes; one that holds a shard takes its part of it.
//
//   initialize_bench [gpt2-1558m]
#include <chrono>
#include <cstdio>
#include <string>

#include "muster/decoder.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "worker_runtime/plan/known_models.h"

int main(int argc, char** argv) {
  using namespace muster;
  using Clock = std::chrono::steady_clock;
  const std::string name = argc > 1 ? argv[1] : "gpt2-1558m";
  const auto config = plan::FindKnownModel(name);
  ParameterStore store;
  const auto gpt = config.ok() ? Decoder::Create(*config, store) : config.status();
  if (!gpt.ok()) {
    std::fprintf(stderr, "initialize_bench: %s\n", gpt.status().ToString().c_str());
    return 2;
  }
  double seconds = 0;
  for (const auto& parameter : store.parameters()) {
    TensorPool pool;
    const Tensor values = pool.Allocate(parameter->dtype(), parameter->shape());
    const Clock::time_point begin = Clock::now();
    InitializeElements(*parameter, 1, 0, values);
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  std::printf("initial values of %s: %lld parameters in %.2f s\n", name.c_str(),
              static_cast<long long>(store.num_elements()), seconds);
}
