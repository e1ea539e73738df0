// Bandwidth of all-reduce by size, in the table of nccl-tests' all_reduce_perf.
//
//   muster run --nproc_per_node=2 all_reduce_perf [-b 8] [-e 128M] [-f 4] [-n 20] [-w 5] [-B gloo]
//
// Our all-reduce works in place; the out-of-place columns have it copied first, as a caller would.
// Source of the format: nccl-tests 2.19.6
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/communicator.h"
#include "muster/runtime.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

struct Options {
  int64_t bytes_min = 8;
  int64_t bytes_max = 128 << 20;
  int64_t factor = 4;
  int iterations = 20;
  int warm_up = 5;
  std::string backend = "gloo";
};

// "8", "64K", "128M", "1G"; 0 if it is none of these.
int64_t ParseBytes(const std::string& text) {
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  switch (std::toupper(*end)) {
    case 'K':
      return number << 10;
    case 'M':
      return number << 20;
    case 'G':
      return number << 30;
    case '\0':
      return number;
  }
  return 0;
}

bool ParseOptions(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int64_t value = ParseBytes(argv[i + 1]);
    if (flag == "-B") {
      options.backend = argv[i + 1];
      continue;
    }
    if (value <= 0) return false;
    if (flag == "-b")
      options.bytes_min = value;
    else if (flag == "-e")
      options.bytes_max = value;
    else if (flag == "-f")
      options.factor = value;
    else if (flag == "-n")
      options.iterations = static_cast<int>(value);
    else if (flag == "-w")
      options.warm_up = static_cast<int>(value);
    else
      return false;
  }
  return argc % 2 == 1 && options.factor > 1 && options.bytes_min >= 4;
}

struct Measured {
  double microseconds = 0;
  int64_t wrong = 0;
};

// Mean time of one all-reduce of `count` floats.
absl::StatusOr<Measured> Measure(Communicator& world, const Options& options, int64_t count,
                                 bool in_place) {
  std::vector<float> input(count, 1.0f), output(count);
  absl::Duration time;
  for (int i = -options.warm_up; i < options.iterations; ++i) {
    std::copy(input.begin(), input.end(), output.begin());
    if (i == 0 || in_place) MUSTER_RETURN_IF_ERROR(world.Barrier().Wait());
    const MonoTime begin = MonoNow();
    if (!in_place) std::copy(input.begin(), input.end(), output.begin());
    MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(output)).Wait());
    if (i >= 0) time += MonoNow() - begin;
  }
  const auto wrong = std::count_if(output.begin(), output.end(), [&](float sum) {
    return sum != static_cast<float>(world.size());
  });
  return Measured{absl::ToDoubleMicroseconds(time) / options.iterations, wrong};
}

void PrintHeader(const Communicator& world, const Options& options) {
  std::printf(
      "# nRanks %d minBytes %lld maxBytes %lld step: %lld(factor) warmup iters: %d iters: %d"
      " backend: %s\n#\n",
      world.size(), static_cast<long long>(options.bytes_min),
      static_cast<long long>(options.bytes_max), static_cast<long long>(options.factor),
      options.warm_up, options.iterations, options.backend.c_str());
  std::printf("#%58s%32s\n", "out-of-place", "in-place");
  std::printf("#%11s %12s %8s %6s %6s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i) std::printf(" %7s %6s %6s %6s", "time", "algbw", "busbw", "#wrong");
  std::printf("\n#%11s %12s %8s %6s %6s", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) std::printf(" %7s %6s %6s %6s", "(us)", "(GB/s)", "(GB/s)", "");
  std::printf("\n");
}

absl::Status Run(const Options& options) {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world", options.backend));
  const bool prints = world->rank() == 0;
  if (prints) PrintHeader(*world, options);
  const double factor = 2.0 * (world->size() - 1) / world->size();
  double sum_busbw = 0;
  int64_t rows = 0, wrong = 0;
  for (int64_t bytes = options.bytes_min; bytes <= options.bytes_max; bytes *= options.factor) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::string row;
    for (const bool in_place : {false, true}) {
      MUSTER_ASSIGN_OR_RETURN(const Measured measured, Measure(*world, options, count, in_place));
      const double algbw = bytes / measured.microseconds / 1e3;
      char cells[80];
      std::snprintf(cells, sizeof(cells), " %7.1f %6.2f %6.2f %6lld", measured.microseconds, algbw,
                    algbw * factor, static_cast<long long>(measured.wrong));
      row += cells;
      sum_busbw += algbw * factor;
      wrong += measured.wrong;
      ++rows;
    }
    if (!prints) continue;
    std::printf("%12lld %12lld %8s %6s %6s%s\n", static_cast<long long>(bytes),
                static_cast<long long>(count), "float", "sum", "-1", row.c_str());
    std::fflush(stdout);
  }
  if (prints) {
    std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong),
                wrong == 0 ? "OK" : "FAILED");
    std::printf("# Avg bus bandwidth    : %g\n#\n", rows == 0 ? 0 : sum_busbw / rows);
  }
  return runtime->Finish(rows);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  muster::Options options;
  if (!muster::ParseOptions(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: all_reduce_perf [-b MINBYTES] [-e MAXBYTES] [-f FACTOR] [-n ITERATIONS] "
                 "[-w WARMUP] [-B BACKEND]\n");
    return 2;
  }
  const absl::Status status = muster::Run(options);
  if (!status.ok()) std::fprintf(stderr, "all_reduce_perf: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
