#include "agent/console/consoles.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <utility>

#include "agent/console/pty.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

bool AreOneFile(int a, int b) {
  struct stat info_a, info_b;
  return ::fstat(a, &info_a) == 0 && ::fstat(b, &info_b) == 0 && info_a.st_dev == info_b.st_dev &&
         info_a.st_ino == info_b.st_ino;
}

}  // namespace

Console::Console(asio::io_context& loop, ConsoleWriter::Options output, ConsoleOptions its_options)
    : fd(output.fd),
      is_terminal(IsTerminal(fd)),
      is_screen(IsScreen(fd)),
      writer(loop, std::move(output)),
      options(std::move(its_options)) {
  MakeLayout(kind);
}

void Console::MakeLayout(Kind its_kind) {
  kind = its_kind;
  switch (kind) {
    case Kind::kPlain:
      layout = MakePlainLayout(options);
      return;
    case Kind::kTerminal:
      layout = MakeTerminalLayout(options, GetWindowSize(fd));
      return;
    case Kind::kPassThrough:
      layout = MakePassThroughLayout();
      return;
  }
}

Consoles::Consoles(asio::io_context& loop, int stdout_fd, int stderr_fd,
                   const ConsoleOptions& options, std::function<void()> on_drained)
    : timer_(loop) {
  const auto add = [&](int fd, const char* name) {
    consoles_.push_back(
        std::make_unique<Console>(loop, ConsoleWriter::Options{fd, name, on_drained}, options));
  };
  add(stdout_fd, "standard output");
  if (AreOneFile(stdout_fd, stderr_fd)) return;
  add(stderr_fd, "standard error");
  of_stream_ = {0, 1};
}

// Takes each batch out first: a failed write is logged, and our own log line comes back here.
void Consoles::WriteOut() {
  for (const std::unique_ptr<Console>& console : consoles_) {
    std::string batch = console->layout->TakeOutput();
    // A terminal without a cursor that moves; the other layouts know what they show.
    if (console->kind == Console::Kind::kPlain && console->is_screen) {
      batch = LinesForTerminal(batch);
    }
    if (!batch.empty()) console->writer.Write(batch);
  }
  ArmTimer();
}

void Consoles::Resize() {
  for (const std::unique_ptr<Console>& console : consoles_) {
    if (console->is_terminal) console->layout->Resize(GetWindowSize(console->fd));
  }
}

bool Consoles::Flush(absl::Duration at_most) {
  const MonoTime deadline = MonoNow() + at_most;
  bool all = true;
  for (const std::unique_ptr<Console>& console : consoles_)
    all = console->writer.Flush(deadline - MonoNow()) && all;
  return all;
}

void Consoles::ArmTimer() {
  MonoTime deadline = MonoTime::InfiniteFuture();
  for (const std::unique_ptr<Console>& console : consoles_)
    deadline = Min(deadline, console->layout->NextDeadline());
  if (deadline >= timer_at_) return;
  timer_at_ = deadline;
  timer_.expires_after(
      absl::ToChronoNanoseconds(std::max(deadline - MonoNow(), absl::ZeroDuration())));
  timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) OnTimer();
  });
}

void Consoles::OnTimer() {
  timer_at_ = MonoTime::InfiniteFuture();
  for (const std::unique_ptr<Console>& console : consoles_) console->layout->Tick(MonoNow());
  WriteOut();
}

}  // namespace muster::agent
