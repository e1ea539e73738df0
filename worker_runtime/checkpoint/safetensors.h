// Named arrays in one file, in the format of Hugging Face's safetensors.
//
// Source: huggingface/safetensors, README "Format": a header length of
// eight bytes little endian (at most 100 MB), a JSON object padded with spaces, then the arrays
// side by side without holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/buffer.h"
#include "muster/dtype.h"
#include "proto/io/unique_fd.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace muster::checkpoint {

struct NamedArray {
  std::string name;
  std::vector<int64_t> shape;
  ConstBuffer elements;  // count = product of shape; of no memory where ArrayBytes gives them
};

// `count` bytes of an array of a file that is being written, from byte `first` on. They stay until
// the next call. Asked for in the order of the file.
using ArrayBytes =
    std::function<absl::StatusOr<absl::string_view>(size_t array, int64_t first, int64_t count)>;
// How many it is asked for at most; less only at an array's end.
inline constexpr int64_t kArrayBytesMax = 4 << 20;

struct WrittenArrays {
  int64_t file_bytes = 0;
  std::vector<int64_t> offsets;  // of the file, by array
};

// Replaces `path` and syncs it to disk: the file is written under a hidden name beside it, then
// renamed. On an error `path` is as it was before, and nothing else is left.
//
// Errors: kInvalidArgument: a name used twice, "__metadata__" or not UTF-8, a shape that is not
//         `elements.count`, or `path` is a directory or device; kResourceExhausted: no space left
//         or over the file size limit (says how much is needed); kNotFound: no such directory;
//         kPermissionDenied; kUnavailable: other errors of the file system.
//         `bytes_of`'s.
// Threads: safe; of two writers of one path the last to end wins.
absl::StatusOr<WrittenArrays> WriteSafetensors(const std::string& path,
                                               absl::Span<const NamedArray> arrays,
                                               const std::map<std::string, std::string>& metadata,
                                               const ArrayBytes& bytes_of = nullptr,
                                               const Progress& progress = nullptr);

struct ArrayInfo {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of the file
  int64_t bytes = 0;
};

// Threads: thread-compatible.
class SafetensorsFile {
 public:
  // Reads and checks the header. Errors: kNotFound, kPermissionDenied; kInvalidArgument: not such a
  // file, or damaged (names the file and what is wrong: overlap, hole, cut off, unknown dtype, …).
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // Takes over `fd`, which was opened for reading; `path` is for messages.
  static absl::StatusOr<SafetensorsFile> FromDescriptor(int fd, const std::string& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, ArrayInfo>& arrays() const { return arrays_; }

  // Errors: kNotFound: no such array; kInvalidArgument: another dtype or count, or the file was cut
  //         off since Open; kUnavailable: the file system.
  absl::Status Read(const std::string& name, Buffer out) const;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // of the file

 private:
  SafetensorsFile() = default;
  std::string path_;
  int64_t bytes_ = 0;
  UniqueFd fd_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, ArrayInfo> arrays_;
};

}  // namespace muster::checkpoint
