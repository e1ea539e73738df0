#include "agent/console/console_layout.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/console/line_folding.h"
#include "agent/console/line_format.h"
#include "agent/console/worker_screen.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr int kFoldedSource = -2;  // no stream's id

// Finished lines that wait for their likes, where --fold asks for it.
class Folding {
 public:
  explicit Folding(const ConsoleOptions& options) : host_(options.host) {
    if (options.fold) folder_.emplace(LineFolder::Options{options.fold_window, options.num_ranks});
  }
  void Open(const ConsoleSource& source) { prefixes_[source.rank] = source.prefix; }
  bool is_on() const { return folder_.has_value(); }
  void SetNumRanks(int num_ranks) {
    if (folder_) folder_->set_num_ranks(num_ranks);
  }

  void Add(Rank rank, absl::string_view text, MonoTime now) { folder_->Add(rank, text, now); }
  // Calls print(prefix, text) for each line that is due.
  template <typename Print>
  void TakeDue(MonoTime now, Print print) {
    if (!folder_) return;
    for (const FoldedLine& line : folder_->TakeDue(now)) {
      print(line.ranks.size() == 1 ? prefixes_[line.ranks.front()]
                                   : MakeFoldedPrefix(host_, line.ranks),
            line.text);
    }
  }
  MonoTime NextDeadline() const {
    return folder_ ? folder_->NextDeadline() : MonoTime::InfiniteFuture();
  }

 private:
  const std::string host_;
  std::optional<LineFolder> folder_;
  absl::btree_map<Rank, std::string> prefixes_;
};

class PlainLayout final : public ConsoleLayout {
 public:
  explicit PlainLayout(ConsoleOptions options) : options_(std::move(options)), folding_(options_) {}

  void Open(const ConsoleSource& source) override {
    streams_.try_emplace(source.id, source);
    folding_.Open(source);
  }

  void Rename(const ConsoleSource& source, MonoTime) override {
    TakeFolded(MonoTime::InfiniteFuture());
    Stream& stream = streams_.at(source.id);
    stream.source = source;
    stream.cutter.set_cut_at_carriage_return(!source.prefix.empty());
    folding_.Open(source);
  }

  void SetNumRanks(int num_ranks) override {
    TakeFolded(MonoTime::InfiniteFuture());
    folding_.SetNumRanks(num_ranks);
  }

  void Append(int source, absl::string_view bytes, MonoTime now) override {
    Stream& stream = streams_.at(source);
    bool new_line = !stream.cutter.has_unfinished();
    stream.cutter.Append(bytes, [&](const LinePiece& piece) {
      new_line = true;
      Place(stream, piece, now);
    });
    if (!stream.cutter.has_unfinished()) return;
    if (new_line) stream.unfinished_since = now;
    // Nobody else is there whose line could be torn, or wait.
    if (streams_.size() == 1) Flush(stream, now);
  }

  void End(int source, MonoTime now) override {
    const auto found = streams_.find(source);
    Stream& stream = found->second;
    const auto place = [&](const LinePiece& piece) { Place(stream, piece, now); };
    // Without a prefix, the bytes are the worker's: its last line gets an end only if another's
    // follows.
    if (stream.source.prefix.empty()) {
      stream.cutter.Flush(place);
    } else {
      stream.cutter.Finish(place);
    }
    streams_.erase(found);
    if (streams_.empty()) TakeFolded(MonoTime::InfiniteFuture());
  }

  void PrintLine(absl::string_view line, MonoTime) override {
    TakeFolded(MonoTime::InfiniteFuture());
    rows_.PrintLine(line, out_);
  }

  void Leave() override { rows_.EndRow(out_); }

  void Tick(MonoTime now) override {
    TakeFolded(now);
    for (auto& [id, stream] : streams_) {
      if (stream.cutter.has_unfinished() && now >= DeadlineOf(stream)) Flush(stream, now);
    }
  }

  MonoTime NextDeadline() const override {
    MonoTime next = folding_.NextDeadline();
    for (const auto& [id, stream] : streams_) {
      if (stream.cutter.has_unfinished()) next = Min(next, DeadlineOf(stream));
    }
    return next;
  }

 private:
  struct Stream {
    explicit Stream(const ConsoleSource& its_source)
        : source(its_source), cutter(/*cut_at_carriage_return=*/!source.prefix.empty()) {}
    ConsoleSource source;
    LineCutter cutter;
    MonoTime unfinished_since;
  };

  MonoTime DeadlineOf(const Stream& stream) const {
    return stream.unfinished_since + options_.partial_line_wait;
  }

  void Flush(Stream& stream, MonoTime now) {
    stream.cutter.Flush([&](const LinePiece& piece) { Place(stream, piece, now); });
  }

  void Place(const Stream& stream, const LinePiece& piece, MonoTime now) {
    if (folding_.is_on() && piece.begins && piece.ends) {
      folding_.Add(stream.source.rank, piece.text, now);
      TakeFolded(now);
      return;
    }
    TakeFolded(MonoTime::InfiniteFuture());
    rows_.Print({stream.source.id, stream.source.prefix}, piece, out_);
  }

  void TakeFolded(MonoTime now) {
    folding_.TakeDue(now, [this](const std::string& prefix, const std::string& text) {
      rows_.Print({kFoldedSource, prefix}, {.text = text}, out_);
    });
  }

  // Constant after construction.
  const ConsoleOptions options_;
  // Loop thread only.
  absl::btree_map<int, Stream> streams_;
  ConsoleRows rows_;
  Folding folding_;
};

// The screen has, from the top: finished lines, which nothing touches any more and which scroll
// away; then the rows of all streams that are still being drawn, in the order of the streams. Only
// these are drawn again, from the first of them to the end of the screen.
class TerminalLayout final : public ConsoleLayout {
 public:
  TerminalLayout(ConsoleOptions options, WindowSize size)
      : options_(std::move(options)), size_(size), folding_(options_) {}

  void Open(const ConsoleSource& source) override {
    streams_.try_emplace(source.id, Stream{source, WorkerScreen()});
    folding_.Open(source);
  }

  // What has been finished before is its former rank's.
  void Rename(const ConsoleSource& source, MonoTime now) override {
    Stream& stream = streams_.at(source.id);
    Finish(stream, stream.screen.TakeSettled(), now);
    TakeFolded(MonoTime::InfiniteFuture());
    stream.source = source;
    folding_.Open(source);
    Draw();
  }

  void SetNumRanks(int num_ranks) override {
    TakeFolded(MonoTime::InfiniteFuture());
    folding_.SetNumRanks(num_ranks);
    Draw();
  }

  void Append(int source, absl::string_view bytes, MonoTime now) override {
    streams_.at(source).screen.Write(bytes);
    draw_at_ = Min(draw_at_, now + options_.frame);
  }

  void End(int source, MonoTime now) override {
    const auto found = streams_.find(source);
    Finish(found->second, found->second.screen.TakeAll(), now);
    streams_.erase(found);
    if (streams_.empty()) TakeFolded(MonoTime::InfiniteFuture());
    Draw();
  }

  void PrintLine(absl::string_view line, MonoTime now) override {
    Settle(now);
    TakeFolded(MonoTime::InfiniteFuture());
    absl::StrAppend(&above_, LinesForTerminal(line), "\n");
    Draw();
  }

  void Tick(MonoTime now) override {
    TakeFolded(now);
    if (now >= draw_at_) {
      draw_at_ = MonoTime::InfiniteFuture();
      Settle(now);
    } else if (above_.empty()) {
      return;
    }
    Draw();
  }

  MonoTime NextDeadline() const override { return Min(draw_at_, folding_.NextDeadline()); }

  void Resize(WindowSize size) override { size_ = size; }

 private:
  struct Stream {
    ConsoleSource source;
    WorkerScreen screen;
  };

  void Settle(MonoTime now) {
    for (auto& [id, stream] : streams_) {
      if (stream.screen.has_settled()) Finish(stream, stream.screen.TakeSettled(), now);
    }
    TakeFolded(now);
  }

  void Finish(const Stream& stream, const std::vector<std::string>& rows, MonoTime now) {
    for (const std::string& row : rows) {
      if (folding_.is_on()) {
        folding_.Add(stream.source.rank, row, now);
      } else {
        absl::StrAppend(&above_, stream.source.prefix, row, "\n");
      }
    }
  }

  void TakeFolded(MonoTime now) {
    folding_.TakeDue(now, [this](const std::string& prefix, const std::string& text) {
      absl::StrAppend(&above_, prefix, text, "\n");
    });
  }

  // Fewer than the screen has, so that the cursor can go back to the first of them.
  std::vector<std::string> RowsInDrawing(int* cursor_column) const {
    std::vector<std::string> rows;
    const size_t rows_max = std::max(1, size_.rows - 1);
    *cursor_column = -1;
    for (const auto& [id, stream] : streams_) {
      const int prefix_columns = ColumnsOf(stream.source.prefix);
      const int columns = std::max(1, size_.columns - prefix_columns);
      for (std::string& row : stream.screen.OpenRows(columns)) {
        if (rows.size() == rows_max) return rows;
        rows.push_back(absl::StrCat(stream.source.prefix, row));
        const int cursor = stream.screen.CursorInLastRow(columns);
        *cursor_column = cursor < 0 ? -1 : prefix_columns + cursor;
      }
    }
    return rows;
  }

  void Draw() {
    int cursor_column = -1;
    const std::vector<std::string> rows = RowsInDrawing(&cursor_column);
    if (above_.empty() && rows == drawn_ && cursor_column == drawn_cursor_) return;
    if (!drawn_.empty()) {
      absl::StrAppend(&out_, "\r");
      if (drawn_.size() > 1) absl::StrAppend(&out_, "\x1b[", drawn_.size() - 1, "A");
      absl::StrAppend(&out_, "\x1b[J");
    }
    absl::StrAppend(&out_, std::exchange(above_, {}));
    for (size_t i = 0; i < rows.size(); ++i) absl::StrAppend(&out_, i == 0 ? "" : "\n", rows[i]);
    if (cursor_column >= 0) absl::StrAppend(&out_, "\r\x1b[", cursor_column + 1, "G");
    drawn_ = rows;
    drawn_cursor_ = cursor_column;
  }

  // Constant after construction.
  const ConsoleOptions options_;
  // Loop thread only.
  WindowSize size_;
  absl::btree_map<int, Stream> streams_;
  Folding folding_;
  MonoTime draw_at_ = MonoTime::InfiniteFuture();
  std::string above_;               // finished lines that are not on the screen yet
  std::vector<std::string> drawn_;  // the rows at the end of the screen that are not finished
  int drawn_cursor_ = -1;
};

class PassThroughLayout final : public ConsoleLayout {
 public:
  void Open(const ConsoleSource&) override {}
  void Rename(const ConsoleSource&, MonoTime) override {}
  void Append(int, absl::string_view bytes, MonoTime) override {
    if (bytes.empty()) return;
    absl::StrAppend(&out_, bytes);
    at_line_start_ = bytes.back() == '\n';
    has_escapes_ = has_escapes_ || absl::StrContains(bytes, '\x1b');
  }
  void End(int, MonoTime) override {}
  void PrintLine(absl::string_view line, MonoTime) override {
    absl::StrAppend(&out_, at_line_start_ ? "" : "\n", LinesForTerminal(line), "\n");
    at_line_start_ = true;
  }
  // A worker that goes on here need not show its cursor again, or end a colour.
  void Leave() override {
    absl::StrAppend(&out_, at_line_start_ ? "" : "\n", has_escapes_ ? "\x1b[0m\x1b[?25h" : "");
  }
  void Tick(MonoTime) override {}
  MonoTime NextDeadline() const override { return MonoTime::InfiniteFuture(); }

 private:
  bool at_line_start_ = true;
  bool has_escapes_ = false;
};

}  // namespace

std::unique_ptr<ConsoleLayout> MakePlainLayout(ConsoleOptions options) {
  return std::make_unique<PlainLayout>(std::move(options));
}

std::unique_ptr<ConsoleLayout> MakeTerminalLayout(ConsoleOptions options, WindowSize size) {
  return std::make_unique<TerminalLayout>(std::move(options), size);
}

std::unique_ptr<ConsoleLayout> MakePassThroughLayout() {
  return std::make_unique<PassThroughLayout>();
}

}  // namespace muster::agent
