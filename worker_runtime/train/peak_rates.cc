#include "worker_runtime/train/peak_rates.h"

#include "absl/strings/match.h"

namespace muster::train {

double PeakOperations(absl::string_view gpu, DType dtype) {
  struct Row {
    absl::string_view name;
    double of_16_bits;
    double of_f32;
  };
  // A name that is part of another comes after it.
  static constexpr Row kRows[] = {
      {"GB200", 2500e12, 80e12},       {"B200", 2250e12, 75e12},    {"H200", 989e12, 67e12},
      {"H100 PCIe", 756e12, 51e12},    {"H100 NVL", 835e12, 60e12}, {"H100", 989e12, 67e12},
      {"A100", 312e12, 19.5e12},       {"L40S", 362e12, 91.6e12},   {"A10G", 70e12, 31.5e12},
      {"RTX 4090", 165.2e12, 82.6e12}, {"RTX 3090", 71e12, 35.6e12}};
  for (const Row& row : kRows) {
    if (!absl::StrContains(gpu, row.name)) continue;
    return SizeOf(dtype) < SizeOf(DType::kF32) ? row.of_16_bits : row.of_f32;
  }
  return 0;
}

double OperationsPerToken(const GptConfig& model) {
  const auto attention = static_cast<double>(model.layers * model.hidden_size * model.context);
  return 6 * static_cast<double>(model.num_parameters()) + 6 * attention;
}

}  // namespace muster::train
