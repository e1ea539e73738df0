#include "agent/console/worker_screen.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr char kEscapeByte = '\x1b';
constexpr size_t kSequenceBytesMax = 256;  // of one escape sequence; longer ones are noise
constexpr size_t kStyleBytesMax = 256;     // of sequences that were never reset
constexpr int kTabColumns = 8;
constexpr absl::string_view kResetStyle = "\x1b[0m";

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Whether a terminal would obey it, or a byte of it.
bool IsObeyed(absl::string_view glyph) {
  const bool is_ascii = glyph.size() == 1 && static_cast<unsigned char>(glyph[0]) < 0x80;
  return !is_ascii && ForTerminal(glyph) != glyph;
}

// Bytes of the code point that `first` begins; 1 for what begins none.
size_t CodePointBytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte >= 0xf0 && byte < 0xf8) return 4;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  if (byte >= 0xc0 && byte < 0xe0) return 2;
  return 1;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes of the first code point of `text`, which may be cut short.
size_t FirstGlyphBytes(absl::string_view text) {
  const size_t wanted = CodePointBytes(text[0]);
  size_t bytes = 1;
  while (bytes < wanted && bytes < text.size() && IsContinuation(text[bytes])) ++bytes;
  return bytes;
}

uint32_t CodePointOf(absl::string_view glyph) {
  if (glyph.size() < 2) return static_cast<unsigned char>(glyph[0]);
  uint32_t code = static_cast<unsigned char>(glyph[0]) & (0x7fu >> glyph.size());
  for (char c : glyph.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return code;
}

struct CodeRange {
  uint32_t first;
  uint32_t last;
};
// Source: Unicode East Asian Width (W and F) and general categories Mn and Cf, the common blocks.
constexpr std::array<CodeRange, 6> kCombining = {{{0x300, 0x36f},
                                                  {0x1ab0, 0x1aff},
                                                  {0x200b, 0x200f},
                                                  {0x20d0, 0x20ff},
                                                  {0xfe00, 0xfe0f},
                                                  {0xfe20, 0xfe2f}}};
constexpr std::array<CodeRange, 10> kWide = {{{0x1100, 0x115f},
                                              {0x2e80, 0x303e},
                                              {0x3041, 0xa4cf},
                                              {0xac00, 0xd7a3},
                                              {0xf900, 0xfaff},
                                              {0xfe30, 0xfe6f},
                                              {0xff00, 0xff60},
                                              {0xffe0, 0xffe6},
                                              {0x1f300, 0x1faff},
                                              {0x20000, 0x3fffd}}};

template <size_t size>
bool IsIn(const std::array<CodeRange, size>& ranges, uint32_t code) {
  return std::any_of(ranges.begin(), ranges.end(), [code](const CodeRange& range) {
    return code >= range.first && code <= range.last;
  });
}

int ColumnsOfGlyph(absl::string_view glyph) {
  const uint32_t code = CodePointOf(glyph);
  if (code < 0x300) return 1;
  if (IsIn(kCombining, code)) return 0;
  return IsIn(kWide, code) ? 2 : 1;
}

template <typename Row>
bool IsBlank(const Row& row) {
  return std::all_of(row.begin(), row.end(), [](const auto& cell) { return cell.glyph == " "; });
}

// The row as bytes, at most `columns` of it. Ends without a style.
template <typename Row>
std::string Render(const Row& row, size_t columns) {
  size_t size = std::min(row.size(), columns);
  // A wide character that does not fit as a whole is left out.
  if (size < row.size() && row[size].glyph.empty()) --size;
  std::string text;
  std::string style;
  for (size_t i = 0; i < size; ++i) {
    if (row[i].style != style) {
      if (!style.empty()) absl::StrAppend(&text, kResetStyle);
      style = row[i].style;
      absl::StrAppend(&text, style);
    }
    absl::StrAppend(&text, row[i].glyph);
  }
  if (!style.empty()) absl::StrAppend(&text, kResetStyle);
  return text;
}

}  // namespace

int ColumnsOf(absl::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const size_t bytes = FirstGlyphBytes(text);
    columns += ColumnsOfGlyph(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return columns;
}

void WorkerScreen::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const char c = bytes[0];
    if (state_ != State::kGround) {
      WriteEscaped(c);
      bytes.remove_prefix(1);
    } else if (IsControl(c)) {
      pending_.clear();  // a code point that was never completed
      WriteControl(c);
      bytes.remove_prefix(1);
    } else {
      bytes.remove_prefix(WriteText(bytes));
    }
  }
}

// Takes one code point, or its first bytes at the end of what has come; returns how many bytes.
size_t WorkerScreen::WriteText(absl::string_view bytes) {
  if (!pending_.empty()) {
    const size_t wanted = CodePointBytes(pending_[0]);
    if (IsContinuation(bytes[0])) {
      pending_.push_back(bytes[0]);
      if (pending_.size() < wanted) return 1;
    }
    const std::string glyph = std::exchange(pending_, {});
    const bool took = glyph.size() == wanted;
    Put(glyph, ColumnsOfGlyph(glyph));
    return took ? 1 : 0;
  }
  const size_t size = FirstGlyphBytes(bytes);
  if (size == bytes.size() && size < CodePointBytes(bytes[0])) {
    pending_ = std::string(bytes);
    return size;
  }
  const absl::string_view glyph = bytes.substr(0, size);
  Put(glyph, ColumnsOfGlyph(glyph));
  return size;
}

void WorkerScreen::WriteControl(char c) {
  switch (c) {
    case '\n':
      LineFeed();
      return;
    case '\r':
      cursor_column_ = 0;
      return;
    case '\b':
      cursor_column_ = std::max(0, cursor_column_ - 1);
      return;
    case '\t':
      do {
        Put(" ", 1);
      } while (cursor_column_ % kTabColumns != 0);
      return;
    case kEscapeByte:
      state_ = State::kEscape;
      return;
    default:
      return;  // a bell, a NUL: nothing to see
  }
}

void WorkerScreen::WriteEscaped(char c) {
  if (pending_.size() > kSequenceBytesMax) {
    state_ = State::kGround;
    pending_.clear();
  }
  switch (state_) {
    case State::kGround:
      return;
    case State::kEscape:
      pending_.clear();
      state_ = c == '['                                       ? State::kCsi
               : c == ']' || c == 'P' || c == '_' || c == '^' ? State::kString
               : c >= 0x20 && c <= 0x2f                       ? State::kCharset
                                                              : State::kGround;
      return;
    case State::kCharset:
      state_ = State::kGround;
      return;
    case State::kCsi:
      if (c >= 0x40 && c <= 0x7e) {
        state_ = State::kGround;
        FinishCsi(c);
        pending_.clear();
      } else {
        pending_.push_back(c);
      }
      return;
    case State::kString:
      pending_.push_back(c);
      if (c == kEscapeByte) state_ = State::kStringEscape;
      if (c != '\a') return;
      break;
    case State::kStringEscape:
      break;
  }
  state_ = State::kGround;
  pending_.clear();
}

void WorkerScreen::FinishCsi(char final) {
  if (final == 'm') return SetStyle();
  int number = 0;
  const bool given = absl::SimpleAtoi(pending_.substr(0, pending_.find(';')), &number);
  const int count = std::clamp(given ? number : 1, 1, kColumnsMax);
  const int size = static_cast<int>(row().size());
  switch (final) {
    case 'A':
      reach_ = std::min(kOpenRowsMax / 2, std::max(reach_, rows_.size() - 1 - cursor_row_ +
                                                               static_cast<size_t>(count)));
      cursor_row_ -= std::min<size_t>(cursor_row_, count);
      return;
    case 'B':
      cursor_row_ = std::min(rows_.size() - 1, cursor_row_ + count);
      return;
    case 'C':
      cursor_column_ = std::min(kColumnsMax - 1, cursor_column_ + count);
      return;
    case 'D':
      cursor_column_ = std::max(0, cursor_column_ - count);
      return;
    case 'G':
      cursor_column_ = std::min(kColumnsMax, count) - 1;
      return;
    case 'K':
    case 'J':
      Erase(number == 0 ? cursor_column_ : 0, number == 1 ? cursor_column_ + 1 : size);
      return;
    case 'X':
      Erase(cursor_column_, cursor_column_ + count);
      return;
    case 'h':
    case 'l':
      if (pending_ == "?25") is_cursor_hidden_ = final == 'l';
      return;
    case 'P':
      if (cursor_column_ < size) {
        row().erase(row().begin() + cursor_column_,
                    row().begin() + std::min(size, cursor_column_ + count));
      }
      return;
    case '@':
      if (cursor_column_ < size && size + count <= kColumnsMax) {
        row().insert(row().begin() + cursor_column_, count, Cell{" ", style_});
      }
      return;
    default:
      return;
  }
}

void WorkerScreen::SetStyle() {
  if (!has_styles_ ||
      absl::string_view(pending_).find_first_not_of(kColourParameters) != absl::string_view::npos) {
    return;
  }
  const bool resets = pending_.empty() || pending_ == "0" || pending_ == "00";
  if (resets) {
    style_.clear();
    return;
  }
  if (style_.size() > kStyleBytesMax) style_.clear();
  absl::StrAppend(&style_, "\x1b[", pending_, "m");
}

void WorkerScreen::Put(absl::string_view glyph, int columns) {
  if (IsObeyed(glyph)) return;
  if (columns == 0) {
    if (cursor_column_ > 0 && cursor_column_ <= static_cast<int>(row().size()))
      absl::StrAppend(&row()[cursor_column_ - 1].glyph, glyph);
    return;
  }
  if (cursor_column_ + columns > kColumnsMax) {
    LineFeed();
    cursor_column_ = 0;
  }
  const size_t end = static_cast<size_t>(cursor_column_) + static_cast<size_t>(columns);
  if (row().size() < end) row().resize(end, Cell{" ", ""});
  // Half of a wide character makes no sense.
  if (row()[cursor_column_].glyph.empty() && cursor_column_ > 0)
    row()[cursor_column_ - 1].glyph = " ";
  if (end < row().size() && row()[end].glyph.empty()) row()[end].glyph = " ";
  row()[cursor_column_] = {std::string(glyph), style_};
  for (size_t i = cursor_column_ + 1; i < end; ++i) row()[i] = {"", style_};
  cursor_column_ = static_cast<int>(end);
}

// Workers' terminals have no output processing, yet ours adds the carriage return: so a line feed
// goes to the start of the next row.
void WorkerScreen::LineFeed() {
  cursor_column_ = 0;
  ++cursor_row_;
  if (cursor_row_ == rows_.size()) rows_.emplace_back();
  if (rows_.size() <= kOpenRowsMax) return;
  overflow_.push_back(Render(rows_.front(), rows_.front().size()));
  rows_.pop_front();
  --cursor_row_;
}

void WorkerScreen::Erase(int from, int to) {
  const int size = static_cast<int>(row().size());
  if (to >= size) {
    if (from < size) row().resize(from);
    return;
  }
  for (int i = from; i < to; ++i) row()[i] = {" ", style_};
}

size_t WorkerScreen::Reach() const {
  return std::max(reach_, is_cursor_hidden_ ? kHiddenCursorRows : 0);
}

std::vector<std::string> WorkerScreen::TakeSettled() {
  std::vector<std::string> rows = std::exchange(overflow_, {});
  for (; cursor_row_ > Reach(); --cursor_row_) {
    rows.push_back(Render(rows_.front(), rows_.front().size()));
    rows_.pop_front();
  }
  return rows;
}

std::vector<std::string> WorkerScreen::TakeAll() {
  std::vector<std::string> rows = std::exchange(overflow_, {});
  const int open = NumOpenRows();
  for (int i = 0; i < open; ++i) rows.push_back(Render(rows_[i], rows_[i].size()));
  rows_.assign(1, Row());
  cursor_row_ = 0;
  cursor_column_ = 0;
  return rows;
}

int WorkerScreen::NumOpenRows() const {
  int count = static_cast<int>(rows_.size());
  while (count > 0 && IsBlank(rows_[count - 1])) --count;
  return count;
}

std::vector<std::string> WorkerScreen::OpenRows(int columns) const {
  std::vector<std::string> rows;
  const int open = NumOpenRows();
  for (int i = 0; i < open; ++i) rows.push_back(Render(rows_[i], std::max(columns, 1)));
  return rows;
}

int WorkerScreen::CursorInLastRow(int columns) const {
  const int open = NumOpenRows();
  if (open == 0 || static_cast<int>(cursor_row_) != open - 1) return -1;
  const int shown = std::min(static_cast<int>(rows_[cursor_row_].size()), std::max(columns, 1));
  return cursor_column_ < shown ? cursor_column_ : -1;
}

}  // namespace muster::agent
