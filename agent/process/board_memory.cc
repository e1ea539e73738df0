#include "agent/process/board_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

absl::Status BoardError(absl::string_view what, int error_number) {
  const std::string text =
      absl::StrCat("cannot ", what, " a progress board: ", std::strerror(error_number));
  switch (error_number) {
    case ENOSPC:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

BoardMemory::BoardMemory(UniqueFd fd, void* memory)
    : fd_(std::move(fd)),
      memory_(memory),
      path_(absl::StrCat("/proc/", getpid(), "/fd/", fd_.get())) {}

BoardMemory::BoardMemory(BoardMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      path_(std::move(other.path_)) {}

BoardMemory& BoardMemory::operator=(BoardMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(path_, other.path_);
  return *this;
}

BoardMemory::~BoardMemory() {
  if (memory_ != nullptr) munmap(memory_, kBoardBytes);
}

absl::StatusOr<BoardMemory> BoardMemory::Create() {
  UniqueFd fd(memfd_create("muster-board", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return BoardError("make", errno);
  // Its pages come as they are written: a worker that marks nothing costs no memory.
  if (ftruncate(fd.get(), kBoardBytes) != 0) return BoardError("make room for", errno);
  const BoardHeader header = NewBoardHeader();
  if (pwrite(fd.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    return BoardError("begin", errno);
  }
  // A worker that cut it short would end this process with SIGBUS at the next look.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return BoardError("seal", errno);
  }
  // Read through a mapping: a copy by read() could tear what is being written.
  void* memory = mmap(nullptr, kBoardBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return BoardError("map", errno);
  return BoardMemory(std::move(fd), memory);
}

absl::StatusOr<BoardSnapshot> BoardMemory::Read() const {
  const auto board = AsBoard({static_cast<const std::byte*>(memory_), kBoardBytes});
  if (!board.ok()) return board.status();
  return DecodeBoard(**board);
}

}  // namespace muster::agent
