#include "rendezvous/server/port_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

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

constexpr char kFolder[] = "/run/musterd";

// Whoever has the folder got it from root, to whom /run belongs alone.
std::optional<uid_t> OwnerOfFolder() {
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  struct stat run {
  }, folder{};
  if (::lstat("/run", &run) != 0 || ::lstat(kFolder, &folder) != 0) return std::nullopt;
  const bool is_roots =
      S_ISDIR(run.st_mode) && run.st_uid == 0 && (run.st_mode & kOthersWrite) == 0;
  if (!is_roots || !S_ISDIR(folder.st_mode) || (folder.st_mode & kOthersWrite) != 0) {
    return std::nullopt;
  }
  return folder.st_uid;
}

std::string PathInFolder(int port) {
  return absl::StrCat(kFolder, "/", NetworkNamespace(), "-", port);
}

std::string PathInTmp(uid_t owner, int port) {
  return absl::StrCat("/tmp/.musterd-", owner, "-", NetworkNamespace(), "-", port);
}

std::string PathForOwn(int port) {
  const uid_t self = ::geteuid();
  if (self == 0 && ::mkdir(kFolder, 0755) == 0) ::chmod(kFolder, 0755);  // whatever the umask
  const std::optional<uid_t> owner = OwnerOfFolder();
  return owner && (self == 0 || self == *owner) ? PathInFolder(port) : PathInTmp(self, port);
}

bool IsFileOf(int file, const std::vector<uid_t>& owners, struct stat* about) {
  return ::fstat(file, about) == 0 && S_ISREG(about->st_mode) &&
         std::find(owners.begin(), owners.end(), about->st_uid) != owners.end();
}

std::optional<MarkedServer> FindMarkAt(const std::string& path, const std::vector<uid_t>& owners,
                                       absl::Duration patience) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about {};
  if (!file || !IsFileOf(file.get(), owners, &about)) return std::nullopt;
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
                          about.st_uid == 0             ? " of root"
                          : about.st_uid == ::geteuid() ? ""
                                                        : absl::StrCat(" of uid ", about.st_uid)),
      .silent_for = silent_for};
}

}  // namespace

PortMark::PortMark(asio::io_context& loop, int port)
    : path_(PathForOwn(port)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)),
      timer_(loop) {
  const int error = errno;
  struct stat about {};
  if (!file_ || !IsFileOf(file_.get(), {::geteuid()}, &about)) {
    // A machine without such folders has no agents of others either.
    if (file_ || (error != ENOENT && error != EROFS)) {
      trouble_ =
          absl::StrCat("cannot keep port ", port, " for this musterd while it is down: ", path_,
                       " is another user's or cannot be written",
                       file_ ? "" : absl::StrCat(" (", std::strerror(error), ")"), "; remove it");
    }
    file_.reset();
    return;
  }
  ::fchmod(file_.get(), 0644);
  const std::string text = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(file_.get(), 0) != 0 || ::write(file_.get(), text.data(), text.size()) < 0) {
    // Its time alone counts; who it is is for people.
  }
  RenewOnLoop();
}

PortMark::~PortMark() {
  if (!file_) return;
  ::unlink(path_.c_str());
  if (OwnerOfFolder() == std::optional<uid_t>(0)) ::rmdir(kFolder);  // if it is the last one
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
  if (const std::optional<uid_t> owner = OwnerOfFolder()) {
    if (auto found = FindMarkAt(PathInFolder(port), {0, *owner}, patience)) return found;
  }
  for (const uid_t owner : {::geteuid(), uid_t{0}}) {
    if (auto found = FindMarkAt(PathInTmp(owner, port), {owner}, patience)) return found;
  }
  return std::nullopt;
}

}  // namespace muster::rendezvous
