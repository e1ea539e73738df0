#include "rendezvous/server/port_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kRenewEvery = absl::Seconds(5);

// The ports of another network namespace are others.
uint64_t NetworkNamespace() {
  struct stat about {};
  return ::stat("/proc/self/ns/net", &about) == 0 ? about.st_ino : 0;
}

std::string PathOf(uid_t owner, int port) {
  return absl::StrCat("/tmp/.musterd-", owner, "-", NetworkNamespace(), "-", port);
}

bool IsFileOf(int file, uid_t owner, struct stat* about) {
  return ::fstat(file, about) == 0 && S_ISREG(about->st_mode) && about->st_uid == owner;
}

std::optional<MarkedServer> FindMarkOf(uid_t owner, int port, absl::Duration patience) {
  const std::string path = PathOf(owner, port);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about {};
  if (!file || !IsFileOf(file.get(), owner, &about)) return std::nullopt;
  if (::flock(file.get(), LOCK_SH | LOCK_NB) != 0) return std::nullopt;  // it lives
  // A wall clock that went back makes a mark no younger than now.
  const absl::Duration silent_for =
      std::max(absl::ZeroDuration(), absl::Now() - absl::TimeFromTimespec(about.st_mtim));
  if (silent_for >= patience) return std::nullopt;
  char text[16] = {};
  int pid = 0;
  const bool has_pid =
      ::read(file.get(), text, sizeof(text) - 1) > 0 && absl::SimpleAtoi(text, &pid);
  return MarkedServer{
      .who = absl::StrCat("musterd", has_pid ? absl::StrCat(" (pid ", pid, ")") : "",
                          owner == 0 ? " of root" : ""),
      .silent_for = silent_for};
}

}  // namespace

PortMark::PortMark(asio::io_context& loop, int port)
    : path_(PathOf(::geteuid(), port)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)),
      timer_(loop) {
  struct stat about {};
  if (!file_ || !IsFileOf(file_.get(), ::geteuid(), &about)) {
    file_.reset();
    return;
  }
  const std::string text = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(file_.get(), 0) != 0 || ::write(file_.get(), text.data(), text.size()) < 0) {
    // Its time alone counts; who it is is for people.
  }
  RenewOnLoop();
}

PortMark::~PortMark() {
  if (file_) ::unlink(path_.c_str());
}

void PortMark::RenewOnLoop() {
  // A reader may have it for a moment.
  ::flock(file_.get(), LOCK_EX | LOCK_NB);
  ::futimens(file_.get(), nullptr);
  timer_.expires_after(absl::ToChronoNanoseconds(kRenewEvery));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) RenewOnLoop();
  });
}

std::optional<MarkedServer> FindMarkedServer(int port, absl::Duration patience) {
  if (auto own = FindMarkOf(::geteuid(), port, patience)) return own;
  return ::geteuid() == 0 ? std::nullopt : FindMarkOf(0, port, patience);
}

}  // namespace muster::rendezvous
