#include "worker_runtime/comm/shm/shared_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"

namespace muster::comm {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("shared memory: cannot ", what, ": ", std::strerror(errno)));
}

struct Address {
  int64_t pid = 0;
  int64_t fd = 0;
  uint64_t token = 0;
};

absl::StatusOr<Address> Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  Address address;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &address.pid) ||
      !absl::SimpleAtoi(parts[1], &address.fd) || !absl::SimpleAtoi(parts[2], &address.token)) {
    return absl::UnavailableError(absl::StrCat("shared memory: '", text, "' is not an address"));
  }
  return address;
}

}  // namespace

std::string ThisMachine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat processes {};
  if (boot.empty() || stat("/proc/self/ns/pid", &processes) != 0) return "";
  return absl::StrCat(boot, "/", processes.st_ino, "/", geteuid());
}

absl::Status SharedSegment::Map(int fd, size_t bytes) {
  mapped_bytes_ = bytes + kTokenBytes;
  void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return SystemError("map it");
  memory_ = static_cast<uint8_t*>(memory);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(size_t bytes) {
  std::unique_ptr<SharedSegment> segment(new SharedSegment);
  const int fd = memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("make it");
  segment->fd_.reset(fd);
  if (ftruncate(fd, static_cast<off_t>(bytes + kTokenBytes)) != 0) {
    return SystemError("size it");
  }
  // A process that maps it is safe from SIGBUS.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return SystemError("seal it");
  }
  MUSTER_RETURN_IF_ERROR(segment->Map(fd, bytes));
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), 0) != sizeof(token)) return SystemError("name it");
  std::memcpy(segment->memory_, &token, sizeof(token));
  segment->address_ = absl::StrCat(getpid(), "/", fd, "/", token);
  return segment;
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(absl::string_view text,
                                                                   size_t bytes) {
  MUSTER_ASSIGN_OR_RETURN(const Address address, Parse(text));
  std::unique_ptr<SharedSegment> segment(new SharedSegment);
  segment->address_ = std::string(text);
  // The process is opened before the segment is looked at: if its token fits then, this is the
  // process that made it.
  segment->maker_.reset(static_cast<int>(syscall(SYS_pidfd_open, address.pid, 0)));
  if (!segment->maker_) return SystemError(absl::StrCat("find process ", address.pid));
  const std::string path = absl::StrCat("/proc/", address.pid, "/fd/", address.fd);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return SystemError(absl::StrCat("open that of process ", address.pid));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(bytes + kTokenBytes)) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: that of process ", address.pid, " has another size"));
  }
  MUSTER_RETURN_IF_ERROR(segment->Map(fd.get(), bytes));
  if (std::memcmp(segment->memory_, &address.token, sizeof(address.token)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: process ", address.pid, " is not the one that made it"));
  }
  return segment;
}

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, mapped_bytes_);
}

bool SharedSegment::IsMakerAlive() const {
  if (!maker_) return true;  // this process
  pollfd maker = {.fd = maker_.get(), .events = POLLIN, .revents = 0};
  return poll(&maker, 1, 0) == 0;
}

}  // namespace muster::comm
