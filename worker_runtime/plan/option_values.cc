#include "worker_runtime/plan/option_values.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

absl::Status Expected(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what));
}

// SimpleAtoi and SimpleAtod would trim it.
bool HasSpace(absl::string_view text) {
  for (const char c : text) {
    if (absl::ascii_isspace(c)) return true;
  }
  return false;
}

}  // namespace

absl::Status AtOption(absl::string_view name, absl::string_view value, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", name, "=", absl::Utf8SafeCHexEscape(value),
                                                  ": ", status.message()));
}

absl::Status ReadInteger(absl::string_view text, int64_t& out) {
  if (!HasSpace(text) && absl::SimpleAtoi(text, &out)) return absl::OkStatus();
  return Expected("a whole number");
}

absl::Status ReadSeed(absl::string_view text, uint64_t& out) {
  if (!HasSpace(text) && absl::SimpleAtoi(text, &out)) return absl::OkStatus();
  return Expected("a whole number between 0 and 18446744073709551615");
}

absl::Status ReadNumber(absl::string_view text, double& out) {
  if (!HasSpace(text) && absl::SimpleAtod(text, &out) && std::isfinite(out)) {
    return absl::OkStatus();
  }
  return Expected("a number, such as 0.1 or 3e-4");
}

absl::Status ReadMode(absl::string_view text, SumMode& out) {
  for (const SumMode mode : {SumMode::kFast, SumMode::kOrdered}) {
    if (text != ToString(mode)) continue;
    out = mode;
    return absl::OkStatus();
  }
  return Expected("fast or ordered");
}

absl::Status ReadSchedule(absl::string_view text, LearningRateSchedule::Kind& out) {
  using Kind = LearningRateSchedule::Kind;
  for (const Kind kind : {Kind::kConstant, Kind::kLinear, Kind::kCosine}) {
    if (text != ToString(kind)) continue;
    out = kind;
    return absl::OkStatus();
  }
  return Expected("constant, linear or cosine");
}

absl::Status ReadDType(absl::string_view text, DType& out) {
  struct Spelling {
    absl::string_view text;
    DType dtype;
  };
  constexpr Spelling kSpellings[] = {
      {"f32", DType::kF32},   {"fp32", DType::kF32},      {"float32", DType::kF32},
      {"f64", DType::kF64},   {"fp64", DType::kF64},      {"float64", DType::kF64},
      {"bf16", DType::kBf16}, {"bfloat16", DType::kBf16}, {"f16", DType::kF16},
      {"fp16", DType::kF16},  {"float16", DType::kF16},
  };
  for (const Spelling& spelling : kSpellings) {
    if (text != spelling.text) continue;
    if (spelling.dtype != DType::kF32 && spelling.dtype != DType::kF64) {
      return absl::UnimplementedError(
          absl::StrCat(text, " is not in this version yet; what there is: f32, f64"));
    }
    out = spelling.dtype;
    return absl::OkStatus();
  }
  return Expected("f32 or f64");
}

absl::Status CheckDevice(absl::string_view text) {
  if (text == "cpu") return absl::OkStatus();
  if (text == "cuda" || text == "gpu") {
    return absl::UnimplementedError("this build trains on the CPU alone; what there is: cpu");
  }
  return Expected("cpu");
}

absl::Status ReadMebibytes(absl::string_view text, int64_t& out_bytes) {
  constexpr double kMost = 1 << 20;
  double value = 0;
  MUSTER_RETURN_IF_ERROR(ReadNumber(text, value));
  const double bytes = value * (1 << 20);
  if (!(bytes >= 1 && value <= kMost)) {
    return Expected(absl::StrCat("a size in MiB above 0 and at most ", kMost));
  }
  out_bytes = static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

}  // namespace muster::plan
