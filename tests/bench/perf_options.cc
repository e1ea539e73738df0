#include "tests/bench/perf_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/help.h"
#include "proto/command_line/values.h"

namespace muster::perf {
namespace {

using command_line::Into;
using command_line::Option;

const std::vector<std::pair<std::string, DType>>& DTypes() {
  static const std::vector<std::pair<std::string, DType>> names = {
      {"float", DType::kF32},     {"double", DType::kF64}, {"half", DType::kF16},
      {"bfloat16", DType::kBf16}, {"int32", DType::kI32},  {"int64", DType::kI64},
      {"uint8", DType::kU8}};
  return names;
}

const std::vector<std::pair<std::string, ReduceOp>>& Ops() {
  static const std::vector<std::pair<std::string, ReduceOp>> names = {
      {"sum", ReduceOp::kSum}, {"max", ReduceOp::kMax}, {"min", ReduceOp::kMin}};
  return names;
}

// "8", "64K", "128M", "1G".
absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  int shift = 0;
  std::string digits = text;
  const std::map<char, int> units = {{'K', 10}, {'M', 20}, {'G', 30}};
  if (!text.empty()) {
    const auto unit = units.find(absl::ascii_toupper(text.back()));
    if (unit != units.end()) {
      shift = unit->second;
      digits.pop_back();
    }
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number <= 0 || number > (int64_t{1} << 40) >> shift) {
    return absl::InvalidArgumentError("expected a size above 0, as 8, 64K, 128M or 1G");
  }
  return number << shift;
}

absl::StatusOr<int> ParseCount(const std::string& text) {
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 1) return number;
  return absl::InvalidArgumentError("expected a whole number above 0");
}

absl::StatusOr<int> ParseWarmUp(const std::string& text) {
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError("expected a whole number of 0 or more");
}

absl::StatusOr<int64_t> ParseFactor(const std::string& text) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 2) return number;
  return absl::InvalidArgumentError("expected a whole number above 1");
}

absl::StatusOr<DType> ParseDType(const std::string& text) {
  return command_line::ParseChoice(text, DTypes());
}

absl::StatusOr<ReduceOp> ParseOp(const std::string& text) {
  return command_line::ParseChoice(text, Ops());
}

absl::StatusOr<Average> ParseAverage(const std::string& text) {
  return command_line::ParseChoice<Average>(text, {{"0", Average::kRankZero},
                                                   {"1", Average::kMean},
                                                   {"2", Average::kMin},
                                                   {"3", Average::kMax}});
}

// An option that has no meaning here but off.
Option OfGpus(char letter, const std::string& name, const std::string& off) {
  return {.name = name,
          .value_name = "N",
          .group = "Of nccl-tests on GPUs",
          .help = absl::StrCat("only ", off, ", which is nccl-tests' default"),
          .read =
              [off](const std::string& text) {
                if (text == off) return absl::OkStatus();
                return absl::InvalidArgumentError(
                    absl::StrCat("expected ", off, ": ranks here are processes without a GPU"));
              },
          .short_name = letter};
}

command_line::Grammar GrammarOf(PerfOptions& options, int& gpus, int& threads, int& root) {
  command_line::Grammar grammar = {
      .program = "all_reduce_perf",
      .usage =
          "usage: all_reduce_perf [options]\n"
          "       muster run --nproc_per_node=N all_reduce_perf [options]\n\n"
          "Bandwidth of all-reduce by size, in nccl-tests' table: all_reduce_perf -b 8 -e 128M -g "
          "4\n",
      .footer =
          "\nOur all-reduce works in place; out of place it is called on a copy, as a caller "
          "would.\n"};
  grammar.options = {
      {.name = "minbytes",
       .value_name = "SIZE",
       .group = "Sizes",
       .help = "smallest size (32M)",
       .read = Into(ParseBytes, options.bytes_min),
       .short_name = 'b'},
      {.name = "maxbytes",
       .value_name = "SIZE",
       .group = "Sizes",
       .help = "largest size (32M)",
       .read = Into(ParseBytes, options.bytes_max),
       .short_name = 'e'},
      {.name = "stepbytes",
       .value_name = "SIZE",
       .group = "Sizes",
       .help = "increment between sizes (none: by --stepfactor)",
       .read = Into(ParseBytes, options.step_bytes),
       .short_name = 'i'},
      {.name = "stepfactor",
       .value_name = "N",
       .group = "Sizes",
       .help = "factor between sizes (2)",
       .read = Into(ParseFactor, options.step_factor),
       .short_name = 'f'},
      {.name = "ngpus",
       .value_name = "N",
       .group = "Ranks",
       .help =
           "ranks per thread; outside of a job, each rank is a process that this one starts (1)",
       .read = Into(ParseCount, gpus),
       .short_name = 'g'},
      {.name = "nthreads",
       .value_name = "N",
       .group = "Ranks",
       .help = "threads per process, each of --ngpus ranks (1)",
       .read = Into(ParseCount, threads),
       .short_name = 't'},
      {.name = "op",
       .value_name = "OP",
       .group = "Operation",
       .help = "sum, max or min (sum)",
       .read = Into(ParseOp, options.op),
       .short_name = 'o'},
      {.name = "datatype",
       .value_name = "TYPE",
       .group = "Operation",
       .help = "float, double, half, bfloat16, int32, int64 or uint8 (float)",
       .read = Into(ParseDType, options.dtype),
       .short_name = 'd'},
      {.name = "root",
       .value_name = "N",
       .group = "Operation",
       .help = "accepted for compatibility; an all-reduce has none",
       .read = Into(command_line::ParseInteger, root),
       .short_name = 'r'},
      {.name = "backend",
       .value_name = "NAME",
       .group = "Operation",
       .help = "communicator (gloo)",
       .read = Into(command_line::ParseName, options.backend),
       .short_name = 'B'},
      {.name = "iters",
       .value_name = "N",
       .group = "Measuring",
       .help = "operations that are timed (20)",
       .read = Into(ParseCount, options.iterations),
       .short_name = 'n'},
      {.name = "warmup_iters",
       .value_name = "N",
       .group = "Measuring",
       .help = "operations before them (1)",
       .read = Into(ParseWarmUp, options.warm_up),
       .short_name = 'w'},
      {.name = "check",
       .value_name = "N",
       .group = "Measuring",
       .help = "0 leaves out the check of results (1)",
       .read = Into(command_line::ParseBool, options.checks),
       .short_name = 'c'},
      {.name = "average",
       .value_name = "N",
       .group = "Measuring",
       .help = "0: time of rank 0; 1, 2, 3: mean, shortest, longest of the ranks (1)",
       .read = Into(ParseAverage, options.average),
       .short_name = 'a'},
      OfGpus('m', "agg_iters", "1"),
      OfGpus('z', "blocking", "0"),
      OfGpus('p', "parallel_init", "0"),
      OfGpus('G', "cudagraph", "0"),
      OfGpus('C', "report_cputime", "0"),
      OfGpus('R', "local_register", "0"),
  };
  return grammar;
}

}  // namespace

std::vector<int64_t> PerfOptions::Sizes() const {
  const auto element = static_cast<int64_t>(SizeOf(dtype));
  std::vector<int64_t> sizes;
  for (int64_t bytes = bytes_min; bytes <= bytes_max;
       bytes = step_bytes > 0 ? bytes + step_bytes : bytes * step_factor) {
    sizes.push_back(std::max(bytes / element, int64_t{1}) * element);
  }
  return sizes;
}

absl::StatusOr<PerfOptions> ParsePerfOptions(const std::vector<std::string>& args) {
  PerfOptions options;
  int gpus = 1;
  int threads = 1;
  int root = 0;
  const command_line::Grammar grammar = GrammarOf(options, gpus, threads, root);
  MUSTER_ASSIGN_OR_RETURN(const command_line::CommandLine line,
                          command_line::Split(grammar, args, {}));
  options.help = line.print;
  if (!options.help.empty()) return options;
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  if (options.bytes_max < options.bytes_min) {
    return absl::InvalidArgumentError(absl::StrCat("--maxbytes is ", options.bytes_max,
                                                   ", less than --minbytes, ", options.bytes_min));
  }
  options.ranks_per_process = gpus * threads;
  return options;
}

std::string NameOf(DType dtype) {
  for (const auto& [name, value] : DTypes()) {
    if (value == dtype) return name;
  }
  return "?";
}

std::string NameOf(ReduceOp op) {
  for (const auto& [name, value] : Ops()) {
    if (value == op) return name;
  }
  return "?";
}

absl::StatusOr<Start> DecideStart(const PerfOptions& options, int world_size, int local_size) {
  const int ranks = options.ranks_per_process;
  if (ranks == 1) return Start{};
  if (world_size == 0) return Start{.ranks = ranks};
  if (ranks == local_size) return Start{};
  return absl::InvalidArgumentError(absl::StrCat(
      "-g asks for ", ranks, " ranks and the job has ", local_size,
      " on this node: each rank is a process here; leave -g out, or start the job with "
      "--nproc_per_node=",
      ranks));
}

}  // namespace muster::perf
