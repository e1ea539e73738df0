// `muster top`: how a job is, drawn again and again.
#include "launcher/commands/commands.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/commands/sight.h"
#include "launcher/sight/observer.h"
#include "launcher/sight/top_screen.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

constexpr absl::Duration kRedraw = absl::Seconds(2);
constexpr absl::Duration kLookAtKeys = absl::Milliseconds(100);
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // another screen, without a cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kEscape = '\x1b';
constexpr char kDelete = '\x7f';

volatile std::sig_atomic_t g_signal = 0;
void NoteEndSignal(int signal) { g_signal = signal; }

absl::Status Ask(Observer& observer, const SightFlags& flags, TopFigures& figures) {
  MUSTER_ASSIGN_OR_RETURN(
      const InquiryAnswer page,
      observer.Ask({.kind = InquiryKind::kStatus, .job = flags.way.job}, kOfTheWay));
  MUSTER_ASSIGN_OR_RETURN(figures.page, status::ParseStatusPage(page.page));
  figures.parts.clear();
  absl::StatusOr<InquiryAnswer> answer =
      observer.Ask({.kind = InquiryKind::kFigures, .job = flags.way.job, .rank = flags.rank},
                   TimeFor(InquiryKind::kFigures) + kOfTheWay);
  if (answer.ok()) figures.parts = std::move(answer->parts);
  // There are no workers between rounds: the page says it.
  return absl::IsNotFound(answer.status()) ? absl::OkStatus() : answer.status();
}

// The terminal while the screen is ours: keys come at once, and are not shown.
class Screen {
 public:
  Screen() {
    is_ours_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (is_ours_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    Write(kEnter);
  }
  ~Screen() {
    Write(kLeave);
    if (is_ours_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // False if the terminal has gone.
  bool Draw(const TopFigures& figures, TopView view) const {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
      view.lines = size.ws_row;
      view.columns = size.ws_col;
    }
    std::string text = "\x1b[H";
    for (const char c : TopScreen(figures, view)) {
      if (c == '\n') {
        absl::StrAppend(&text, "\x1b[K\r\n");
      } else {
        text.push_back(c);
      }
    }
    // A line feed behind the last line would scroll.
    if (text.size() > 2) text.resize(text.size() - 2);
    return Write(text + "\x1b[J");
  }

 private:
  static bool Write(const std::string& text) { return PrintRaw(text, 0) == 0; }

  bool is_ours_ = false;
  termios before_{};
};

// What keys do.
class Keys {
 public:
  // False: to quit.
  bool Press(char key, TopView& view) {
    if (!is_typing_) return PressCommand(key, view);
    if (key == '\n' || key == '\r' || key == kEscape) {
      if (key != kEscape) view.filter = typed_;
      is_typing_ = false;
    } else if (key == kDelete || key == '\b') {
      if (!typed_.empty()) typed_.pop_back();
    } else if (key >= ' ') {
      typed_.push_back(key);
    }
    view.typing = is_typing_ ? absl::StrCat("filter (a node, or a rank): ", typed_) : "";
    return true;
  }

 private:
  bool PressCommand(char key, TopView& view) {
    if (key == 'q') return false;
    if (key == 's') view.sort = Next(view.sort);
    if (key != 'f') return true;
    is_typing_ = true;
    typed_.clear();
    view.typing = "filter (a node, or a rank): ";
    return true;
  }

  bool is_typing_ = false;
  std::string typed_;
};

absl::StatusOr<int> ShowOnce(Observer& observer, const SightFlags& flags) {
  TopFigures figures;
  MUSTER_RETURN_IF_ERROR(Ask(observer, flags, figures));
  // What is used per second is known from the second look on.
  absl::SleepFor(absl::Seconds(1));
  MUSTER_RETURN_IF_ERROR(Ask(observer, flags, figures));
  return PrintText(TopScreen(figures, {.lines = 0, .columns = std::string::npos}), 0);
}

// Waits for keys until `until`; false: to quit.
bool TakeKeys(const Screen& screen, const TopFigures& figures, MonoTime until, Keys& keys,
              TopView& view) {
  while (MonoNow() < until) {
    if (g_signal != 0) return false;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(kLookAtKeys))) > 0) {
      char key = 0;
      if (::read(STDIN_FILENO, &key, 1) != 1 || !keys.Press(key, view)) return false;
    }
    if (!screen.Draw(figures, view)) return false;
  }
  return true;
}

absl::StatusOr<int> ShowOnTerminal(Observer& observer, const SightFlags& flags) {
  TopFigures figures;
  MUSTER_RETURN_IF_ERROR(Ask(observer, flags, figures));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, NoteEndSignal);
  TopView view;
  Keys keys;
  absl::Status trouble;
  {
    const Screen screen;
    while (TakeKeys(screen, figures, MonoNow() + kRedraw, keys, view)) {
      trouble = Ask(observer, flags, figures);
      // The agent, and its job, have ended.
      if (!trouble.ok() && !flags.way.endpoint) break;
      figures.trouble = std::string(trouble.message());
    }
  }
  if (!trouble.ok() && !flags.way.endpoint) return trouble;
  return g_signal == 0 ? 0 : 128 + g_signal;
}

absl::StatusOr<int> ShowTop(const SightFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                          ReachJob(flags.way, invocation));
  const bool is_terminal = isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1;
  return is_terminal ? ShowOnTerminal(*observer, flags) : ShowOnce(*observer, flags);
}

}  // namespace

int TopCommand(const Invocation& invocation) {
  return RunSight(SightKind::kTop, invocation,
                  [&](const SightFlags& flags) { return ShowTop(flags, invocation); });
}

}  // namespace muster::launcher
