// What one worker's stream looks like on a terminal: the rows it is still writing to, with what
// carriage returns, backspaces and cursor movements make of them.
//
// A program that draws a bar goes back to the start of its row, and one with several bars moves the
// cursor up to the rows above. So the rows of a stream are kept until nothing will change them any
// more: those above the cursor when the stream has settled, but for as many as the program has gone
// back before (or may, while it hides the cursor, as live displays do). What cannot be shown in a
// few rows that other workers' rows surround (addressing the whole screen, scrolling regions) is
// left out, as is every control character that has no part in this.
//
// Colours stay with the characters, so that none leaks into another worker's row.
//
// Source:  ECMA-48, control functions CR, BS, HT, CUU, CUD, CUF, CUB, CHA, EL, ED, ECH, DCH, ICH,
//          SGR
// Threads: compatible.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::agent {

// The columns that `text` takes on a terminal; invalid UTF-8 counts one per byte.
int ColumnsOf(absl::string_view text);

// Bytes in, rows out. Sequences that are cut between two calls are put together.
class WorkerScreen {
 public:
  // More are finished at once, although the cursor could still go back to them.
  static constexpr size_t kOpenRowsMax = 64;
  static constexpr size_t kHiddenCursorRows = 8;  // that are kept open while the cursor is hidden
  static constexpr int kColumnsMax = 16 * 1024;   // of a row; what is longer goes on in the next

  explicit WorkerScreen(bool has_styles = true) : has_styles_(has_styles) {}

  void Write(absl::string_view bytes);

  // The rows that are finished when nothing more comes: above the cursor, out of its reach. Oldest
  // first, without an end of line.
  std::vector<std::string> TakeSettled();
  // All rows, without empty ones at the end.
  std::vector<std::string> TakeAll();
  // True if TakeSettled would return something.
  bool has_settled() const { return cursor_row_ > Reach() || !overflow_.empty(); }

  // What is not finished yet, each row cut to `columns`; without empty rows at the end.
  std::vector<std::string> OpenRows(int columns) const;
  // The column of the cursor in the last of OpenRows; -1 if it is not there, or at that row's end.
  int CursorInLastRow(int columns) const;

 private:
  struct Cell {
    // One code point with what combines with it; empty: covered by the cell before, which is wide.
    std::string glyph;
    std::string style;  // SGR sequences in force
  };
  using Row = std::vector<Cell>;
  enum class State { kGround, kEscape, kCharset, kCsi, kString, kStringEscape };

  size_t WriteText(absl::string_view bytes);
  void WriteControl(char c);
  void WriteEscaped(char c);
  void FinishCsi(char final);
  void SetStyle();
  void Put(absl::string_view glyph, int columns);
  void LineFeed();
  void Erase(int from, int to);
  Row& row() { return rows_[cursor_row_]; }
  int NumOpenRows() const;
  size_t Reach() const;

  const bool has_styles_;
  std::deque<Row> rows_ = std::deque<Row>(1);  // one at least
  size_t cursor_row_ = 0;                      // index into rows_
  int cursor_column_ = 0;
  size_t reach_ = 0;  // how many rows up the program has moved its cursor
  bool is_cursor_hidden_ = false;
  std::string style_;
  std::vector<std::string> overflow_;  // finished because there were too many

  State state_ = State::kGround;
  std::string pending_;  // of an escape sequence, or the first bytes of a code point
};

}  // namespace muster::agent
