// What PyTorch's clients send, byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/torch_store/request.h"

namespace muster::agent {

template <typename T>
std::string Number(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
inline std::string Text(const std::string& text) { return Number<uint64_t>(text.size()) + text; }
inline std::string Byte(int value) { return std::string(1, static_cast<char>(value)); }
inline std::string Validate() { return Byte(0) + Number<uint32_t>(kTorchValidateMagic); }

// Bytes of commands behind VALIDATE; PyTorch 1 has no VALIDATE, and its own numbers below 9.
enum Code {
  kSetCode = 1,
  kCompareSetCode,
  kGetCode,
  kAddCode,
  kCheckCode,
  kWaitCode,
  kGetNumKeysCode,
  kDeleteKeyCode,
  kAppendCode,
  kMultiGetCode,
  kMultiSetCode,
  kCancelWaitCode,
  kPingCode,
  kQueuePushCode,
  kQueuePopCode,
  kQueueLenCode,
  kListKeysCode,
  kBarrierCode,
};

inline std::string SetBytes(const std::string& key, const std::string& value) {
  return Byte(kSetCode) + Text(key) + Text(value);
}
inline std::string AddBytes(const std::string& key, int64_t amount) {
  return Byte(kAddCode) + Text(key) + Number<int64_t>(amount);
}
inline std::string WaitBytes(const std::vector<std::string>& keys) {
  std::string out = Byte(kWaitCode) + Number<uint64_t>(keys.size());
  for (const std::string& key : keys) out += Text(key);
  return out;
}
inline std::string BarrierBytes(const std::string& key, int64_t world_size) {
  return Byte(kBarrierCode) + Text(key) + Number<int64_t>(world_size);
}
inline std::string Arrival() { return Validate() + AddBytes("init/", 1); }

}  // namespace muster::agent
