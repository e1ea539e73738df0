// Bandwidth of all-reduce by size: nccl-tests' all_reduce_perf, its options and its table.
//
//   all_reduce_perf -b 8 -e 128M -g 4
//   muster run --nproc_per_node=4 all_reduce_perf -b 8 -e 128M
//
// Our all-reduce works in place; the out-of-place columns have it copied first, as a caller would.
// Source of the format: nccl-tests 2.19.6
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "muster/communicator.h"
#include "muster/runtime.h"
#include "muster/sixteen_bits.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "tests/bench/perf_options.h"

namespace muster::perf {
namespace {

template <typename T>
void Fill(std::vector<char>& bytes, T value) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    std::memcpy(bytes.data() + i, &value, sizeof(T));
  }
}

// Elements of `dtype` that are all `number`, which each of them can hold.
std::vector<char> Elements(DType dtype, int64_t count, int number) {
  std::vector<char> bytes(static_cast<size_t>(count) * SizeOf(dtype));
  switch (dtype) {
    case DType::kF64:
      Fill(bytes, static_cast<double>(number));
      break;
    case DType::kF32:
      Fill(bytes, static_cast<float>(number));
      break;
    case DType::kBf16:
      Fill(bytes, ToBf16(static_cast<float>(number)));
      break;
    case DType::kF16:
      Fill(bytes, ToF16(static_cast<float>(number)));
      break;
    case DType::kI64:
      Fill(bytes, static_cast<int64_t>(number));
      break;
    case DType::kI32:
      Fill(bytes, static_cast<int32_t>(number));
      break;
    case DType::kU8:
      Fill(bytes, static_cast<uint8_t>(number));
      break;
  }
  return bytes;
}

// What a rank gives, and what comes of it.
int Contribution(const PerfOptions& options, int rank) {
  return options.op == ReduceOp::kSum ? 1 : rank % 8 + 1;
}
int Result(const PerfOptions& options, int size) {
  switch (options.op) {
    case ReduceOp::kSum:
      return size;
    case ReduceOp::kMax:
      return std::min(size, 8);
    case ReduceOp::kMin:
      return 1;
  }
  return 0;
}

struct Measured {
  double microseconds = 0;
  int64_t wrong = 0;
};

// Measures one all-reduce.
absl::StatusOr<Measured> Measure(Communicator& world, const PerfOptions& options, int64_t count,
                                 bool in_place) {
  const std::vector<char> input =
      Elements(options.dtype, count, Contribution(options, world.rank()));
  std::vector<char> output(input.size());
  const Buffer buffer = {output.data(), count, options.dtype};
  absl::Duration time;
  for (int i = -options.warm_up; i < options.iterations; ++i) {
    std::copy(input.begin(), input.end(), output.begin());
    if (i == 0 || in_place) MUSTER_RETURN_IF_ERROR(world.Barrier().Wait());
    const MonoTime begin = MonoNow();
    if (!in_place) std::copy(input.begin(), input.end(), output.begin());
    MUSTER_RETURN_IF_ERROR(world.AllReduce(buffer, {.op = options.op}).Wait());
    if (i >= 0) time += MonoNow() - begin;
  }
  Measured measured = {.microseconds = absl::ToDoubleMicroseconds(time) / options.iterations};
  if (!options.checks) return measured;
  const std::vector<char> expected = Elements(options.dtype, count, Result(options, world.size()));
  const size_t each = SizeOf(options.dtype);
  for (size_t i = 0; i < expected.size(); i += each) {
    measured.wrong += std::memcmp(expected.data() + i, output.data() + i, each) == 0 ? 0 : 1;
  }
  return measured;
}

// The time that the table shows, from those of all ranks, and the wrong elements of all.
absl::StatusOr<Measured> OfAllRanks(Communicator& world, const PerfOptions& options, Measured own) {
  std::vector<double> time = {own.microseconds};
  std::vector<int64_t> wrong = {own.wrong};
  if (options.average == Average::kRankZero) {
    if (world.rank() != 0) time[0] = 0;
  }
  const ReduceOp op = options.average == Average::kMin   ? ReduceOp::kMin
                      : options.average == Average::kMax ? ReduceOp::kMax
                                                         : ReduceOp::kSum;
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(time), {.op = op}).Wait());
  MUSTER_RETURN_IF_ERROR(world.AllReduce(BufferOf(wrong)).Wait());
  if (options.average == Average::kMean) time[0] /= world.size();
  return Measured{time[0], wrong[0]};
}

void PrintHeader(const Communicator& world, const PerfOptions& options) {
  const bool adds = options.step_bytes > 0;
  absl::PrintF(
      "# nRanks %d minBytes %d maxBytes %d step: %d(%s) warmup iters: %d iters: %d agg iters: 1 "
      "validation: %d graph: 0 backend: %s\n#\n",
      world.size(), options.bytes_min, options.bytes_max,
      adds ? options.step_bytes : options.step_factor, adds ? "bytes" : "factor", options.warm_up,
      options.iterations, options.checks ? 1 : 0, options.backend);
  absl::PrintF("#%56s%35s\n", "out-of-place", "in-place");
  absl::PrintF("#%11s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i)
    absl::PrintF("  %7s  %6s  %6s %6s", "time", "algbw", "busbw", "#wrong");
  absl::PrintF("\n#%11s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) absl::PrintF("  %7s  %6s  %6s %6s", "(us)", "(GB/s)", "(GB/s)", "");
  absl::PrintF("\n");
}

// Four digits that count, as nccl-tests has them.
std::string TimeCell(double microseconds) {
  if (microseconds >= 10000) return absl::StrFormat("%7.0f", microseconds);
  if (microseconds >= 100) return absl::StrFormat("%7.1f", microseconds);
  return absl::StrFormat("%7.2f", microseconds);
}

// The exit code.
absl::StatusOr<int> Run(Runtime& runtime, const PerfOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime.MakeCommunicator("world", options.backend));
  const bool prints = world->rank() == 0;
  if (prints) PrintHeader(*world, options);
  const double factor = 2.0 * (world->size() - 1) / world->size();
  double sum_busbw = 0;
  int64_t columns = 0, wrong = 0;
  for (const int64_t bytes : options.Sizes()) {
    const int64_t count = bytes / static_cast<int64_t>(SizeOf(options.dtype));
    std::string row = absl::StrFormat("%12d  %12d  %8s  %6s  %6s", bytes, count,
                                      NameOf(options.dtype), NameOf(options.op), "-1");
    for (const bool in_place : {false, true}) {
      MUSTER_ASSIGN_OR_RETURN(Measured measured, Measure(*world, options, count, in_place));
      MUSTER_ASSIGN_OR_RETURN(measured, OfAllRanks(*world, options, measured));
      const double algbw = static_cast<double>(bytes) / measured.microseconds / 1e3;
      absl::StrAppendFormat(&row, "  %s  %6.2f  %6.2f %6s", TimeCell(measured.microseconds), algbw,
                            algbw * factor, options.checks ? absl::StrCat(measured.wrong) : "N/A");
      sum_busbw += algbw * factor;
      wrong += measured.wrong;
      ++columns;
    }
    if (!prints) continue;
    absl::PrintF("%s\n", row);
    std::fflush(stdout);
  }
  if (prints) {
    absl::PrintF("# Out of bounds values : %d %s\n", wrong, wrong == 0 ? "OK" : "FAILED");
    absl::PrintF("# Avg bus bandwidth    : %g\n#\n",
                 columns == 0 ? 0 : sum_busbw / static_cast<double>(columns));
  }
  MUSTER_RETURN_IF_ERROR(runtime.Finish(columns));
  return wrong == 0 ? 0 : 1;
}

// Becomes `muster run` with so many of this program; returns only if that cannot be.
absl::Status StartRanks(int ranks, char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError("/proc/self/exe cannot be read");
  const std::filesystem::path beside = self.parent_path() / "muster";
  const std::string muster = std::filesystem::exists(beside, error) ? beside.string() : "muster";
  std::vector<std::string> words = {muster, "run", absl::StrCat("--nproc_per_node=", ranks),
                                    self.string()};
  for (char** arg = argv + 1; *arg != nullptr; ++arg) words.emplace_back(*arg);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  return absl::NotFoundError(absl::StrCat(
      "-g starts ", ranks, " ranks by the program muster, which lies neither beside this one nor ",
      "in PATH (", std::strerror(errno), "); start them by another launcher, without -g"));
}

int Say(const absl::Status& status) {
  const std::string text(status.message());
  std::fprintf(stderr, "all_reduce_perf: %s\n", text.c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  const auto options = ParsePerfOptions({argv + 1, argv + argc});
  if (!options.ok()) return Say(options.status());
  if (!options->help.empty()) {
    std::fputs(options->help.c_str(), stdout);
    return 0;
  }
  const char* world_size = std::getenv("WORLD_SIZE");
  if (world_size == nullptr) {
    const auto start = DecideStart(*options, 0, 0);
    if (start.ok() && start->ranks > 0) return Say(StartRanks(start->ranks, argv));
  }
  const auto runtime = Runtime::FromEnvironment();
  if (!runtime.ok()) return Say(runtime.status());
  if (world_size != nullptr) {
    const absl::Status fits =
        DecideStart(*options, (*runtime)->size(), (*runtime)->local_size()).status();
    if (!fits.ok()) return Say(fits);
  }
  const absl::StatusOr<int> code = Run(**runtime, *options);
  return code.ok() ? *code : Say(code.status());
}

}  // namespace
}  // namespace muster::perf

int main(int argc, char** argv) { return muster::perf::Main(argc, argv); }
