#include "agent/sight/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/console/error_file.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using status::ErrorOfRank;
using status::LogPiece;
using status::LogPlace;
using status::LogsOfNode;

constexpr const char* kStreams[] = {"stdout", "stderr"};
// The bytes that the names and numbers of a piece take beside its text.
constexpr size_t kPieceBytes = 160;
constexpr size_t kWindowBytesMin = 256;
constexpr size_t kErrorBytesMax = size_t{8} << 10;
// So much of a log is searched for the first error.
constexpr int64_t kSearchedBytesMax = int64_t{16} << 20;
// So many attempts are looked through for the newest log of a rank, or its first error: their
// number is the server's word.
constexpr int kAttemptsSearchedMax = 10000;

struct OpenLog {
  UniqueFd fd;
  int64_t size = 0;
  int64_t modified_millis = 0;
};

std::optional<OpenLog> Open(const std::string& path) {
  OpenLog log{.fd = UniqueFd(
                  ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY))};
  struct stat info;
  if (!log.fd || ::fstat(log.fd.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_uid != ::geteuid()) {
    return std::nullopt;
  }
  log.size = info.st_size;
  log.modified_millis = int64_t{info.st_mtim.tv_sec} * 1000 + info.st_mtim.tv_nsec / 1000000;
  return log;
}

std::string ReadAt(const OpenLog& log, int64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t count = ::pread(log.fd.get(), text.data() + filled, bytes - filled,
                                  static_cast<off_t>(offset + static_cast<int64_t>(filled)));
    if (count <= 0) break;
    filled += static_cast<size_t>(count);
  }
  text.resize(filled);
  return text;
}

class Reader {
 public:
  Reader(const LogFiles& files, const status::LogsAsk& ask, size_t window)
      : files_(files), ask_(ask), window_(window) {}

  bool HasFound() const { return has_found_; }

  // Nothing: there is no news.
  std::optional<LogPiece> Read(int rank, const std::string& stream) {
    const auto place =
        std::find_if(ask_.places.begin(), ask_.places.end(),
                     [&](const LogPlace& at) { return at.rank == rank && at.stream == stream; });
    if (place != ask_.places.end()) return GoOn(*place);
    const int oldest = std::max(0, files_.attempt - kAttemptsSearchedMax);
    for (int attempt = files_.attempt; attempt >= oldest; --attempt) {
      std::optional<OpenLog> log = OpenOf(rank, stream, attempt);
      if (!log) continue;  // a worker that was kept writes on in the folder of an earlier attempt
      LogPiece piece{.from = {.rank = rank, .stream = stream, .attempt = attempt},
                     .size = log->size};
      return ask_.tail_lines < 0 ? Forward(*log, std::move(piece)) : Tail(*log, std::move(piece));
    }
    return std::nullopt;
  }

 private:
  std::optional<OpenLog> OpenOf(int rank, const std::string& stream, int attempt) {
    std::optional<OpenLog> log = Open(absl::StrCat(files_.run_directory, "/attempt_", attempt, "/",
                                                   rank - files_.first_rank, "/", stream, ".log"));
    has_found_ = has_found_ || log.has_value();
    return log;
  }

  // What is left of that attempt; then the next that has a log.
  std::optional<LogPiece> GoOn(const LogPlace& place) {
    const int newest = std::min(files_.attempt, place.attempt + kAttemptsSearchedMax);
    for (int attempt = place.attempt; attempt <= newest; ++attempt) {
      const std::optional<OpenLog> log = OpenOf(place.rank, place.stream, attempt);
      LogPiece piece{.from = place};
      piece.from.attempt = attempt;
      if (attempt != place.attempt) piece.from.offset = 0;
      if (!log || (attempt == place.attempt && log->size <= place.offset)) continue;
      piece.size = log->size;
      if (auto read = Forward(*log, std::move(piece))) return read;
    }
    return std::nullopt;
  }

  std::optional<LogPiece> Forward(const OpenLog& log, LogPiece piece) const {
    const int64_t left = log.size - piece.from.offset;
    if (left <= 0) return std::nullopt;
    piece.text = ReadAt(log, piece.from.offset,
                        std::min(window_, static_cast<size_t>(std::min(left, int64_t{1} << 40))));
    const size_t end = piece.text.rfind('\n');
    if (end != std::string::npos) {
      piece.text.resize(end + 1);
    } else if (piece.text.size() < window_) {
      return std::nullopt;  // a line that is being written
    }
    piece.next = piece.from.offset + static_cast<int64_t>(piece.text.size());
    return piece;
  }

  std::optional<LogPiece> Tail(const OpenLog& log, LogPiece piece) const {
    const auto bytes = static_cast<int64_t>(window_);
    piece.from.offset = std::max(log.size - bytes, int64_t{0});
    piece.text = ReadAt(log, piece.from.offset, static_cast<size_t>(log.size - piece.from.offset));
    piece.next = piece.from.offset + static_cast<int64_t>(piece.text.size());
    size_t begin = piece.text.size();
    int64_t lines = 0;
    while (begin > 0) {
      const bool ends_line = piece.text[begin - 1] == '\n' && begin < piece.text.size();
      if (ends_line && ++lines >= ask_.tail_lines) break;
      --begin;
    }
    if (ask_.tail_lines == 0) begin = piece.text.size();
    // The window may begin within a line.
    const size_t next_line = piece.text.find('\n');
    if (begin == 0 && piece.from.offset > 0 && next_line != std::string::npos) {
      begin = next_line + 1;
    }
    piece.from.offset += static_cast<int64_t>(begin);
    piece.text.erase(0, begin);
    return piece;
  }

  const LogFiles& files_;
  const status::LogsAsk& ask_;
  const size_t window_;
  bool has_found_ = false;
};

bool LooksLikeAnError(absl::string_view line) {
  for (const char* sign :
       {"Traceback (most recent call last)", "Error:", "error:", "ERROR", "Exception:", "FATAL",
        "terminate called", "Segmentation fault", "Assertion", "panicked at", "what():"}) {
    if (absl::StrContains(line, sign)) return true;
  }
  return false;
}

// The text from the first line that looks like an error.
std::string FindError(absl::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (LooksLikeAnError(text.substr(begin, end - begin))) {
      return std::string(text.substr(begin, kErrorBytesMax));
    }
    begin = end + 1;
  }
  return "";
}

// The error of the first attempt that has one.
std::optional<ErrorOfRank> ErrorOf(const LogFiles& files, int rank) {
  const int newest = std::min(files.attempt, kAttemptsSearchedMax);
  for (int attempt = 0; attempt <= newest; ++attempt) {
    const std::string folder =
        absl::StrCat(files.run_directory, "/attempt_", attempt, "/", rank - files.first_rank);
    ErrorOfRank error{.rank = rank, .attempt = attempt};
    if (const std::optional<ErrorRecord> record =
            ReadErrorFile(absl::StrCat(folder, "/error.json"))) {
      const bool has_message = absl::StrContains(record->callstack, record->message);
      error.text =
          has_message ? record->callstack : absl::StrCat(record->message, "\n", record->callstack);
      error.unix_millis = record->unix_millis.value_or(0);
    } else if (const std::optional<OpenLog> log = Open(absl::StrCat(folder, "/stderr.log"))) {
      error.text =
          FindError(ReadAt(*log, 0, static_cast<size_t>(std::min(log->size, kSearchedBytesMax))));
      error.unix_millis = log->modified_millis;
    }
    if (error.text.size() > kErrorBytesMax) error.text.resize(kErrorBytesMax);
    if (!error.text.empty()) return error;
  }
  return std::nullopt;
}

void ReadErrors(const LogFiles& files, std::optional<int> only, LogsOfNode& out) {
  for (int rank = files.first_rank; rank < files.first_rank + files.num_ranks; ++rank) {
    if (only && rank != *only) continue;
    if (auto error = ErrorOf(files, rank)) out.errors.push_back(*std::move(error));
  }
}

// Later errors are left out first: they follow from earlier ones.
void Fit(size_t bytes_max, LogsOfNode& logs) {
  std::stable_sort(
      logs.errors.begin(), logs.errors.end(), [](const ErrorOfRank& a, const ErrorOfRank& b) {
        return std::pair(a.attempt, a.unix_millis) < std::pair(b.attempt, b.unix_millis);
      });
  while (ToJson(logs).size() > bytes_max && logs.errors.size() > 1) logs.errors.pop_back();
  while (ToJson(logs).size() > bytes_max && !logs.errors.empty()) {
    std::string& text = logs.errors.front().text;
    if (text.empty()) return logs.errors.clear();
    text.resize(text.size() / 2);
  }
}

}  // namespace

absl::StatusOr<LogsOfNode> ReadLogs(const LogFiles& files, const status::LogsAsk& ask,
                                    std::optional<int> rank, size_t bytes_max) {
  LogsOfNode logs;
  if (ask.first_error) {
    ReadErrors(files, rank, logs);
    Fit(bytes_max, logs);
    return logs;
  }
  const size_t num_logs = 2 * static_cast<size_t>(rank ? 1 : std::max(files.num_ranks, 1));
  const size_t own = bytes_max / num_logs;
  // Bytes that need an escape take more, as JSON: then it is tried again with less.
  for (size_t window = std::max(own > kPieceBytes ? own - kPieceBytes : 0, kWindowBytesMin);;
       window /= 2) {
    logs.pieces.clear();
    Reader reader(files, ask, window);
    for (int each = files.first_rank; each < files.first_rank + files.num_ranks; ++each) {
      if (rank && each != *rank) continue;
      for (const char* stream : kStreams) {
        if (auto piece = reader.Read(each, stream)) logs.pieces.push_back(*std::move(piece));
      }
    }
    if (!reader.HasFound()) {
      return absl::FailedPreconditionError(
          "this job keeps no log files: start it with --redirects=3, or --tee=3, and --log_dir");
    }
    if (ToJson(logs).size() <= bytes_max) return logs;
    if (window <= kWindowBytesMin) break;
  }
  while (!logs.pieces.empty() && ToJson(logs).size() > bytes_max) logs.pieces.pop_back();
  return logs;
}

}  // namespace muster::agent
