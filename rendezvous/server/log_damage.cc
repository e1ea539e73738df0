#include "rendezvous/server/log_damage.h"

#include <cstddef>
#include <cstdint>

namespace muster::rendezvous {
namespace {

constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kMagic = 0x377f0682;  // its last bit: checksums are of big-endian words
constexpr uint32_t kLargestPage = 65536;

uint32_t BigEndian(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

uint32_t LittleEndian(const std::string& bytes, size_t at) {
  return __builtin_bswap32(BigEndian(bytes, at));
}

struct Sum {
  uint32_t first = 0;
  uint32_t second = 0;
  void Add(const std::string& bytes, size_t from, size_t size, bool is_big_endian) {
    for (size_t at = from; at < from + size; at += 8) {
      const auto word = [&](size_t place) {
        return is_big_endian ? BigEndian(bytes, place) : LittleEndian(bytes, place);
      };
      first += word(at) + second;
      second += word(at + 4) + first;
    }
  }
  bool Is(const std::string& bytes, size_t at) const {
    return first == BigEndian(bytes, at) && second == BigEndian(bytes, at + 4);
  }
};

}  // namespace

bool HasLostTransactions(const std::string& log) {
  if (log.size() < kHeaderBytes) return false;
  const uint32_t magic = BigEndian(log, 0), page = BigEndian(log, 8);
  const bool is_big_endian = (magic & 1) != 0;
  Sum sum;
  sum.Add(log, 0, 24, is_big_endian);
  const bool is_header_whole = (magic & ~1u) == kMagic && sum.Is(log, 24);
  // The header is durable before the first frame.
  if (!is_header_whole) return log.size() > kHeaderBytes;
  if (page < 512 || page > kLargestPage) return false;
  const size_t frame = kFrameHeaderBytes + page;
  const size_t num_frames = (log.size() - kHeaderBytes) / frame;
  bool is_whole = true;
  int ends = 0;              // of transactions that SQLite passes over
  int ends_of_this_log = 0;  // up to the last frame that is of this use of the file
  for (size_t i = 0; i < num_frames; ++i) {
    const size_t at = kHeaderBytes + i * frame;
    const bool is_of_this_log = log.compare(at + 8, 8, log, 16, 8) == 0;
    if (is_whole) {
      sum.Add(log, at, 8, is_big_endian);
      sum.Add(log, at + kFrameHeaderBytes, page, is_big_endian);
      is_whole = is_of_this_log && sum.Is(log, at + 16);
    }
    if (is_whole) continue;
    ends += BigEndian(log, at + 4) != 0;
    if (is_of_this_log) ends_of_this_log = ends;
  }
  return ends_of_this_log > 1;
}

}  // namespace muster::rendezvous
