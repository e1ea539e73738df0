#include "worker_runtime/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/checkpoint/safetensors_header.h"

namespace muster::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

// Linux reads at most 2^31 - 4096 bytes in one call.
constexpr int64_t kReadBytesMax = int64_t{1} << 30;

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is damaged or no safetensors file: ", what));
}

absl::Status ReadAt(int fd, int64_t offset, char* out, int64_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, static_cast<size_t>(std::min(bytes, kReadBytesMax)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("cannot read ", path));
    if (got == 0) return Damaged(path, absl::StrCat("it was cut off at byte ", offset));
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsHeader> ReadHeader(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return FileError(errno, absl::StrCat("cannot read ", path));
  if (!S_ISREG(info.st_mode)) return Damaged(path, "it is not a regular file");
  const int64_t file_bytes = info.st_size;
  if (file_bytes < kLengthBytes) {
    return Damaged(path, absl::StrCat("it has ", file_bytes,
                                      " bytes, and the length of its header alone takes 8"));
  }
  unsigned char prefix[kLengthBytes];
  MUSTER_RETURN_IF_ERROR(ReadAt(fd, 0, reinterpret_cast<char*>(prefix), kLengthBytes, path));
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | prefix[i];
  const int64_t length_max = std::min(kHeaderBytesMax, file_bytes - kLengthBytes);
  if (length > static_cast<uint64_t>(length_max)) {
    return Damaged(path, absl::StrCat("its header would take ", length, " bytes, and ", length_max,
                                      " are possible in a file of ", file_bytes));
  }
  std::string text(length, '\0');
  MUSTER_RETURN_IF_ERROR(ReadAt(fd, kLengthBytes, text.data(), static_cast<int64_t>(length), path));
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(text, file_bytes);
  return header.ok() ? header : Damaged(path, header.status().message());
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedArray> arrays,
                              const std::map<std::string, std::string>& metadata,
                              const Progress& progress, const FillArray& fill) {
  absl::StatusOr<FileLayout> layout = PlanFile(arrays, metadata);
  if (!layout.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", layout.status().message()));
  }
  std::vector<absl::string_view> pieces = {layout->prefix};
  for (size_t index : layout->order) {
    const ConstBuffer& elements = arrays[index].elements;
    pieces.emplace_back(static_cast<const char*>(elements.data),
                        static_cast<size_t>(elements.count) * SizeOf(elements.dtype));
  }
  if (fill == nullptr) return WriteDurably(path, pieces, progress);
  return WriteDurably(path, pieces, progress, [&](size_t piece) {
    return piece == 0 ? absl::OkStatus() : fill(layout->order[piece - 1]);
  });
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // O_NONBLOCK: to open a pipe by mistake must not wait for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  return FromDescriptor(fd, path);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::FromDescriptor(int fd, const std::string& path) {
  SafetensorsFile file;
  file.fd_.reset(fd);
  file.path_ = path;
  MUSTER_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(fd, path));
  file.metadata_ = std::move(header.metadata);
  file.arrays_ = std::move(header.arrays);
  return file;
}

absl::Status SafetensorsFile::ReadBytes(int64_t offset, absl::Span<char> out) const {
  return ReadAt(fd_.get(), offset, out.data(), static_cast<int64_t>(out.size()), path_);
}

absl::Status SafetensorsFile::Read(const std::string& name, Buffer out) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) {
    return absl::NotFoundError(
        absl::StrCat(path_, " has no array \"", name, "\" among its ", arrays_.size()));
  }
  const ArrayInfo& info = found->second;
  const int64_t count = info.bytes / static_cast<int64_t>(SizeOf(info.dtype));
  if (out.dtype != info.dtype || out.count != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name, "\" of ", path_, " has ", count, " elements of ", ToString(info.dtype),
        ", but ", out.count, " of ", ToString(out.dtype), " were asked for"));
  }
  return ReadAt(fd_.get(), info.offset, static_cast<char*>(out.data), info.bytes, path_);
}

}  // namespace muster::checkpoint
