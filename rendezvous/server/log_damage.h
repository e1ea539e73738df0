// Whether an SQLite write-ahead log has lost transactions that were durable. SQLite itself takes a
// damaged frame for the end of the log, as after a crash, and goes on without those behind it.
//
// Threads: pure.
// Source:  SQLite, "WAL-mode File Format" (sqlite.org/walformat.html).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster::rendezvous {

// The end of a log once a transaction in it was durable. It is kept outside the log, since nothing
// in the log itself tells a last transaction that is damaged from one that never was whole.
struct LogEnd {
  std::string salts;  // of the log's header: of this use of the file
  uint64_t num_frames = 0;
  friend bool operator==(const LogEnd&, const LogEnd&) = default;
};
std::string Encode(const LogEnd& end);
// None if `bytes` are not those that were written.
std::optional<LogEnd> DecodeLogEnd(const std::string& bytes);

// The offset of the salts in the log.
inline constexpr int kLogSaltsAt = 16;
inline constexpr int kLogSaltsBytes = 8;

enum class LogTail {
  kWhole,
  kTorn,  // of a last transaction that is not whole: most likely it was being written
  kLost,  // what was durable is lost
};

// `log` is the whole file, and `end` an end that it has had, if one is known. A transaction begins
// after the one before it is durable: where a frame is damaged and two transactions end there or
// behind it, the first of them was.
LogTail JudgeLog(const std::string& log, const std::optional<LogEnd>& end);

}  // namespace muster::rendezvous
