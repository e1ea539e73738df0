// How the output of many workers becomes readable on one console: cutting streams into lines,
// prefixes, the order of lines that are not finished yet, and the last output of a worker.
//
// Bytes are passed through unchanged, also if they are not UTF-8. Pure; log_pump.h owns descriptors
// and timers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "proto/base/ids.h"

namespace muster::agent {

// The two console streams.
enum class ConsoleStream { kStdout = 0, kStderr = 1 };
inline constexpr ConsoleStream kConsoleStreams[] = {ConsoleStream::kStdout, ConsoleStream::kStderr};
inline size_t Index(ConsoleStream stream) { return static_cast<size_t>(stream); }

// An unfinished line longer than this is given out in pieces, so that memory is bounded.
inline constexpr size_t kLineBytesMax = 1024 * 1024;

struct PrefixFields {
  std::string host;
  std::string role;
  Rank rank;
  LocalRank local_rank;
};

inline constexpr absl::string_view kHostPrefix = "[${hostname}:${rank}] ";
// Source: torch/distributed/elastic/multiprocessing/api.py, PyTorch 2.15.
inline constexpr absl::string_view kTorchrunPrefix = "[${role_name}${local_rank}]:";

// The template with ${hostname}, ${role_name}, ${rank} and ${local_rank} replaced, with or without
// braces, and $$ as $; other text stays, nothing is added, as torchrun does with
// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.
//
// Source: Python's string.Template.safe_substitute
std::string MakeLinePrefix(absl::string_view line_prefix_template, const PrefixFields& fields);

// `0-3,5,8-9`. `ranks` ascends.
std::string FormatRanks(const std::vector<Rank>& ranks);

// True if `line` contains one of `filters`.
bool MatchesAnyFilter(absl::string_view line, const std::vector<std::string>& filters);

// What a terminal would show of the end of `output`, without colours: at most `bytes_max` bytes of
// whole lines. A last line longer than that is cut at its front.
std::string LastLines(absl::string_view output, size_t bytes_max);

// A line, or a part of one that was given out before it was finished.
struct LinePiece {
  absl::string_view text;  // without its end of line
  bool begins = true;      // false: more of a line whose first piece has been given out
  bool ends = true;        // false: the rest is still to come
};

// Cuts one stream into lines: at \n, where every other byte is part of the line; or also at \r and
// \r\n, where a \r that ends nothing (a progress bar that starts with it) makes no empty line.
//
// Threads: compatible.
class LineCutter {
 public:
  explicit LineCutter(bool cut_at_carriage_return = true)
      : cut_at_carriage_return_(cut_at_carriage_return) {}
  using Emit = absl::FunctionRef<void(const LinePiece&)>;

  // Gives out the lines that `bytes` completes. The views are valid during the call.
  void Append(absl::string_view bytes, Emit emit);
  // Gives out what is unfinished, as a piece that does not end.
  void Flush(Emit emit);
  // The stream has ended: completes what is unfinished or was given out without an end.
  void Finish(Emit emit);

  bool has_unfinished() const { return !unfinished_.empty(); }
  // Holds from now on; what is unfinished stays as it is.
  void set_cut_at_carriage_return(bool cuts) { cut_at_carriage_return_ = cuts; }

 private:
  void EndLine(absl::string_view text, char terminator, Emit emit);
  void Keep(absl::string_view text, Emit emit);

  bool cut_at_carriage_return_;
  // State of the line that has not ended.
  std::string unfinished_;  // at most kLineBytesMax
  bool open_ = false;       // a piece of the current line has been given out
  bool after_carriage_return_ = false;
};

// Places pieces of several streams on one console so that no two lines share a row. A line that was
// given out unfinished goes on without a second prefix, unless another stream has printed
// meanwhile.
//
// Threads: compatible.
class ConsoleRows {
 public:
  struct Source {
    int id = 0;  // of the worker's stream
    absl::string_view prefix;
  };
  // Appends to `out` what is to be written.
  void Print(const Source& source, const LinePiece& piece, std::string& out);
  // Appends a line that belongs to no worker's stream.
  void PrintLine(absl::string_view line, std::string& out);
  // Ends the row that an unfinished line has left open, if one has.
  void EndRow(std::string& out);

 private:
  static constexpr int kNobody = -1;
  int open_ = kNobody;  // the source whose unfinished line ends the console
};

// What a worker that has failed said last: as LastLines, but where others' lines follow the last
// traceback so long that its exception would not be seen, half of it is the traceback's end.
std::string LastWordsIn(absl::string_view output, size_t bytes_max);

// The last of what one worker has printed, both streams in the order of arrival. What Python's
// buffer held when an exception came follows the traceback, and takes 8 KiB.
//
// Threads: compatible.
class OutputTail {
 public:
  explicit OutputTail(size_t bytes_max = 16 * 1024) : bytes_max_(bytes_max) {}
  void Append(ConsoleStream stream, absl::string_view bytes);
  const std::string& bytes() const { return bytes_; }

 private:
  // Constant after construction.
  const size_t bytes_max_;
  // Loop thread only.
  std::string bytes_;  // at most 2 * bytes_max_
  ConsoleStream last_stream_ = ConsoleStream::kStdout;
};

}  // namespace muster::agent
