// Numbers of the host on a device and back.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "muster/device.h"
#include "muster/sixteen_bits.h"
#include "muster/tensor.h"
#include "tests/support/status_matchers.h"

namespace muster::testing {

inline std::vector<float> OnHost(const Device& device, const Tensor& x) {
  Queue queue(device);
  std::vector<unsigned char> bytes(x.num_bytes());
  EXPECT_THAT(device.Download(queue, x.raw_data(), bytes.data(), bytes.size()), IsOk());
  std::vector<float> numbers(x.num_elements());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (x.dtype() == DType::kF32) {
      std::memcpy(&numbers[i], &bytes[i * sizeof(float)], sizeof(float));
    } else {
      uint16_t bits;
      std::memcpy(&bits, &bytes[i * sizeof(bits)], sizeof(bits));
      numbers[i] = x.dtype() == DType::kF16 ? FromF16(bits) : FromBf16(bits);
    }
  }
  return numbers;
}

inline double NumberOnHost(const Device& device, const Tensor& x) {
  Queue queue(device);
  double number = 0;
  EXPECT_THAT(device.Download(queue, x.raw_data(), &number, sizeof(number)), IsOk());
  return number;
}

// A new tensor of `numbers`, rounded where the type needs it.
inline Tensor OnDevice(TensorPool& pool, DType dtype, const std::vector<float>& numbers) {
  Queue queue(pool.device());
  const Tensor x = pool.Allocate(dtype, {static_cast<int64_t>(numbers.size())});
  std::vector<uint16_t> narrow;
  for (const float number : numbers) {
    narrow.push_back(dtype == DType::kF16 ? ToF16(number) : ToBf16(number));
  }
  const bool wide = dtype == DType::kF32;
  pool.device().Upload(queue, wide ? static_cast<const void*>(numbers.data()) : narrow.data(),
                       x.raw_data(), x.num_bytes());
  return x;
}

}  // namespace muster::testing
