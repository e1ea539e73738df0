#include "rendezvous/server/log_damage.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

// Both of a frame's salts are others in another use of the file; one is where a bit has flipped.
bool HasSalt(const std::string& log, size_t frame, size_t which) {
  return BigEndian(log, frame + 8 + which) == BigEndian(log, kLogSaltsAt + which);
}

uint32_t Sum32(const std::string& text) {
  uint32_t sum = 0x811c9dc5;  // FNV-1a
  for (const char c : text) sum = (sum ^ static_cast<uint8_t>(c)) * 0x01000193;
  return sum;
}

}  // namespace

std::string Encode(const LogEnd& end) {
  const std::string said = absl::StrCat(absl::Hex(BigEndian(end.salts, 0), absl::kZeroPad8),
                                        absl::Hex(BigEndian(end.salts, 4), absl::kZeroPad8), " ",
                                        absl::Hex(end.num_frames, absl::kZeroPad16));
  return absl::StrCat(said, " ", absl::Hex(Sum32(said), absl::kZeroPad8), "\n");
}

std::optional<LogEnd> DecodeLogEnd(const std::string& bytes) {
  const std::vector<std::string> words = absl::StrSplit(bytes, absl::ByAnyChar(" \n"));
  LogEnd end;
  if (words.size() != 4 || words[0].size() != 2 * kLogSaltsBytes) return std::nullopt;
  for (size_t at = 0; at < words[0].size(); at += 2) {
    uint32_t byte = 0;
    if (!absl::SimpleHexAtoi(words[0].substr(at, 2), &byte)) return std::nullopt;
    end.salts.push_back(static_cast<char>(byte));
  }
  if (!absl::SimpleHexAtoi(words[1], &end.num_frames)) return std::nullopt;
  return Encode(end) == bytes ? std::optional(std::move(end)) : std::nullopt;
}

LogTail JudgeLog(const std::string& log, const std::optional<LogEnd>& end) {
  if (log.size() < kHeaderBytes) return LogTail::kWhole;
  const uint32_t magic = BigEndian(log, 0), page = BigEndian(log, 8);
  const bool is_big_endian = (magic & 1) != 0;
  Sum sum;
  sum.Add(log, 0, 24, is_big_endian);
  const bool is_header_whole = (magic & ~1u) == kMagic && sum.Is(log, 24);
  // The header is durable before the first frame.
  if (!is_header_whole) return log.size() > kHeaderBytes ? LogTail::kLost : LogTail::kTorn;
  if (page < 512 || page > kLargestPage) return LogTail::kWhole;
  const size_t frame = kFrameHeaderBytes + page;
  const size_t num_frames = (log.size() - kHeaderBytes) / frame;
  bool is_whole = true;
  uint64_t num_whole = 0;    // frames up to the end of the last transaction that SQLite finds
  int ends = 0;              // of transactions that SQLite passes over
  int ends_of_this_log = 0;  // up to the last frame that is of this use of the file
  uint64_t num_begun = 0;    // frames up to that one
  for (size_t i = 0; i < num_frames; ++i) {
    const size_t at = kHeaderBytes + i * frame;
    const bool is_of_this_log = HasSalt(log, at, 0) || HasSalt(log, at, 4);
    if (is_whole) {
      sum.Add(log, at, 8, is_big_endian);
      sum.Add(log, at + kFrameHeaderBytes, page, is_big_endian);
      is_whole = HasSalt(log, at, 0) && HasSalt(log, at, 4) && sum.Is(log, at + 16);
    }
    const bool is_end = BigEndian(log, at + 4) != 0;
    if (is_of_this_log) num_begun = i + 1;
    if (is_whole && is_end) num_whole = i + 1;
    if (is_whole) continue;
    ends += is_end;
    if (is_of_this_log) ends_of_this_log = ends;
  }
  const size_t rest = kHeaderBytes + num_frames * frame;  // of a frame that is cut off
  const bool is_cut = log.size() >= rest + 16 && HasSalt(log, rest, 0) && HasSalt(log, rest, 4);
  if (is_cut) num_begun = num_frames + 1;
  const bool is_its_end = end && log.compare(kLogSaltsAt, kLogSaltsBytes, end->salts) == 0;
  if (ends_of_this_log > 1 || (is_its_end && num_whole < end->num_frames)) return LogTail::kLost;
  return num_whole < num_begun ? LogTail::kTorn : LogTail::kWhole;
}

}  // namespace muster::rendezvous
