#include "agent/process/board_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

absl::Status BoardError(absl::string_view what, const std::string& path, int error_number) {
  const std::string text =
      absl::StrCat("cannot ", what, " progress board ", path, ": ", std::strerror(error_number));
  switch (error_number) {
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case ENOENT:
      return absl::NotFoundError(text);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

std::string BoardPath(const std::string& runtime_directory, Round round, LocalRank local_rank) {
  return absl::StrCat(runtime_directory, "/board-", ToString(round), "-", ToString(local_rank));
}

absl::Status CreateBoard(const std::string& path) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return BoardError("create", path, errno);
  const BoardHeader header = NewBoardHeader();
  int error = ::posix_fallocate(fd.get(), 0, kBoardBytes);
  if (error == 0 &&
      ::pwrite(fd.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  ::unlink(path.c_str());
  return BoardError("make room for", path, error);
}

absl::StatusOr<BoardSnapshot> ReadBoard(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return BoardError("open", path, errno);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return BoardError("look at", path, errno);
  if (info.st_size != static_cast<off_t>(kBoardBytes)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "progress board ", path, " has ", info.st_size, " bytes instead of ", kBoardBytes));
  }
  // Read through the mapping: a copy by read() could tear what is being written.
  void* memory = ::mmap(nullptr, kBoardBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return BoardError("map", path, errno);
  const auto board = AsBoard({static_cast<const std::byte*>(memory), kBoardBytes});
  BoardSnapshot snapshot;
  if (board.ok()) snapshot = DecodeBoard(**board);
  ::munmap(memory, kBoardBytes);
  if (!board.ok()) return board.status();
  return snapshot;
}

}  // namespace muster::agent
