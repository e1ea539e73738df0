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

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is damaged or no safetensors file: ", what));
}

absl::StatusOr<SafetensorsHeader> ReadHeader(int fd, const std::string& path, int64_t& file_bytes) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return FileError(errno, absl::StrCat("cannot read ", path));
  if (!S_ISREG(info.st_mode)) return Damaged(path, "it is not a regular file");
  file_bytes = info.st_size;
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

absl::StatusOr<WrittenArrays> WriteSafetensors(const std::string& path,
                                               absl::Span<const NamedArray> arrays,
                                               const std::map<std::string, std::string>& metadata,
                                               const ArrayBytes& bytes_of,
                                               const Progress& progress) {
  absl::StatusOr<FileLayout> layout = PlanFile(arrays, metadata);
  if (!layout.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", layout.status().message()));
  }
  WrittenArrays written = {.file_bytes = static_cast<int64_t>(layout->prefix.size()),
                           .offsets = std::vector<int64_t>(arrays.size())};
  for (const size_t index : layout->order) {
    written.offsets[index] = written.file_bytes;
    written.file_bytes += BytesOf(arrays[index]);
  }
  size_t at = 0;  // in the order; before them is the prefix
  int64_t first = -1;
  const auto next = [&]() -> absl::StatusOr<absl::string_view> {
    if (std::exchange(first, std::max<int64_t>(first, 0)) < 0) {
      return absl::string_view(layout->prefix);
    }
    while (first == BytesOf(arrays[layout->order[at]])) {
      ++at;
      first = 0;
    }
    const size_t index = layout->order[at];
    const int64_t count = std::min(kArrayBytesMax, BytesOf(arrays[index]) - first);
    const int64_t begin = std::exchange(first, first + count);
    if (bytes_of != nullptr) return bytes_of(index, begin, count);
    return absl::string_view(static_cast<const char*>(arrays[index].elements.data) + begin,
                             static_cast<size_t>(count));
  };
  MUSTER_RETURN_IF_ERROR(WriteDurably(path, written.file_bytes, next, progress));
  return written;
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
  MUSTER_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(fd, path, file.bytes_));
  file.metadata_ = std::move(header.metadata);
  file.arrays_ = std::move(header.arrays);
  return file;
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
