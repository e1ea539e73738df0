#include "worker_runtime/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::data {
namespace {

constexpr int64_t kHeaderBytes = 256 * 4;
constexpr uint32_t kGpt2Magic = 20240520;

// What TokenFormat numbers.
struct Format {
  uint32_t magic;
  uint32_t version;
  int64_t width;  // bytes of a token
  int64_t vocabulary;
  const char* name;
};
constexpr Format kFormats[] = {{0, 0, 1, 256, "text"},
                               {kGpt2Magic, 1, 2, 50257, "GPT-2 tokens"},
                               {20240801, 7, 4, 128256, "tokens of 32 bits"}};
const Format& Of(TokenFormat format) { return kFormats[static_cast<size_t>(format)]; }

// What else llm.c writes; it would pass for text otherwise.
struct OtherFormat {
  uint32_t magic;
  const char* contents;
};
constexpr OtherFormat kOtherFormats[] = {{20240326, "a model"},
                                         {20240327, "a model's debug state"},
                                         {20240328, "a tokenizer"},
                                         {20240522, "multiple-choice examples"}};

int64_t OffsetOf(TokenFormat format, int64_t token) {
  return (format == TokenFormat::kText ? 0 : kHeaderBytes) + Of(format).width * token;
}

uint32_t LittleEndian(const uint8_t* bytes) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

absl::Status CannotOpen(const std::string& path, int error) {
  const std::string message =
      absl::StrCat("cannot open data file ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case EMFILE:
    case ENFILE:
      return absl::UnavailableError(absl::StrCat(message, "; see ulimit -n"));
    default:
      return absl::UnavailableError(message);
  }
}

struct OpenedFile {
  UniqueFd descriptor;
  int64_t size = 0;
};

absl::StatusOr<OpenedFile> OpenRegular(const std::string& path) {
  int fd;
  do {
    // Without O_NONBLOCK, a pipe would be waited for; it changes nothing for files.
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return CannotOpen(path, errno);
  UniqueFd file(fd);
  struct stat status = {};
  if (fstat(fd, &status) != 0) return CannotOpen(path, errno);
  if (S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", path, " is a directory; name the files in it"));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data file ", path, " is a pipe or a device; only a regular file can be read anywhere"));
  }
  return OpenedFile{std::move(file), status.st_size};
}

absl::Status ReadBytes(int fd, const std::string& path, int64_t offset, absl::Span<uint8_t> out) {
  while (!out.empty()) {
    const ssize_t count = pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::UnavailableError(absl::StrCat("cannot read data file ", path, " at byte ",
                                                 offset, ": ", std::strerror(errno)));
    }
    if (count == 0) {
      return absl::UnavailableError(absl::StrCat(
          "data file ", path, " has no byte ", offset, ", but had it when it was opened; a file",
          " must not be cut or replaced while it is trained on"));
    }
    offset += count;
    out.remove_prefix(count);
  }
  return absl::OkStatus();
}

// The number of tokens in a file of `size` bytes that begins with `header`.
absl::StatusOr<int64_t> CheckHeader(const std::string& path, const Format& format,
                                    absl::Span<const uint8_t> header, int64_t size) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", path, why...));
  };
  if (size < kHeaderBytes) {
    return refuse(" begins like a file of ", format.name, " but has ", size,
                  " bytes, less than the header's ", kHeaderBytes, "; it may be cut off");
  }
  const uint32_t version = LittleEndian(&header[4]);
  if (version != format.version) {
    return refuse(" is a token file of version ", version, "; only version ", format.version, " (",
                  format.name, ") can be read");
  }
  const int64_t body = size - kHeaderBytes;
  const int32_t count = static_cast<int32_t>(LittleEndian(&header[8]));
  if (body % format.width != 0) {
    return refuse(" has ", body, " bytes of ", format.name, ", of which each takes ", format.width,
                  "; it may be cut off");
  }
  if (body / format.width != count) {
    return refuse(" announces ", count, " tokens but holds ", body / format.width,
                  "; it may be cut off");
  }
  if (count == 0) return refuse(" holds no tokens");
  return count;
}

}  // namespace

const char* NameOf(TokenFormat format) { return Of(format).name; }

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, int64_t vocabulary) {
  if (path.empty()) return absl::InvalidArgumentError("the name of a data file is empty");
  MUSTER_ASSIGN_OR_RETURN(OpenedFile opened, OpenRegular(path));
  if (opened.size == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data file ", path, " is empty"));
  }
  TokenFile file;
  file.path_ = path;
  file.file_ = std::move(opened.descriptor);
  MUSTER_RETURN_IF_ERROR(file.Recognise(opened.size));
  file.vocabulary_ = Of(file.format_).vocabulary;
  if (file.format_ == TokenFormat::kWide && vocabulary > 0) file.vocabulary_ = vocabulary;
  return file;
}

absl::Status TokenFile::Recognise(int64_t size) {
  std::array<uint8_t, 12> header = {};
  MUSTER_RETURN_IF_ERROR(ReadBytes(
      file_.get(), path_, 0, absl::MakeSpan(header).first(std::min<int64_t>(size, header.size()))));
  const uint32_t magic = LittleEndian(header.data());
  for (const OtherFormat& other : kOtherFormats) {
    if (magic != other.magic) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data file ", path_, " holds ", other.contents, " (llm.c's magic number ", magic,
        "); text or tokens of GPT-2 (", kGpt2Magic, ") or of 32 bits (20240801) can be read"));
  }
  if (__builtin_bswap32(magic) == kGpt2Magic) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data file ", path_, " holds GPT-2 tokens with the high byte first; low byte first is",
        " expected"));
  }
  num_tokens_ = size;
  for (const TokenFormat format : {TokenFormat::kGpt2, TokenFormat::kWide}) {
    if (magic != Of(format).magic) continue;
    format_ = format;
    MUSTER_ASSIGN_OR_RETURN(num_tokens_, CheckHeader(path_, Of(format), header, size));
  }
  return absl::OkStatus();
}

absl::Status TokenFile::Read(int64_t first, absl::Span<int32_t> out) const {
  if (file_) return ReadFrom(file_, first, out);
  const absl::StatusOr<OpenedFile> opened = OpenRegular(path_);
  if (!opened.ok()) {
    return absl::UnavailableError(
        absl::StrCat(opened.status().message(), " (it could be opened before)"));
  }
  return ReadFrom(opened->descriptor, first, out);
}

absl::Status TokenFile::ReadFrom(const UniqueFd& file, int64_t first,
                                 absl::Span<int32_t> out) const {
  const int64_t width = Of(format_).width;
  std::array<uint8_t, 16384> buffer;
  while (!out.empty()) {
    const size_t count = std::min<size_t>(out.size(), buffer.size() / width);
    const auto bytes = absl::MakeSpan(buffer).first(count * width);
    MUSTER_RETURN_IF_ERROR(ReadBytes(file.get(), path_, OffsetOf(format_, first), bytes));
    MUSTER_RETURN_IF_ERROR(Decode(bytes, first, out.first(count)));
    first += count;
    out.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status TokenFile::Decode(absl::Span<const uint8_t> bytes, int64_t first,
                               absl::Span<int32_t> out) const {
  if (format_ == TokenFormat::kText) {
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t id = format_ == TokenFormat::kWide
                            ? LittleEndian(&bytes[4 * i])
                            : static_cast<uint32_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    if (id >= vocabulary_) {
      return absl::InvalidArgumentError(absl::StrCat("data file ", path_, ": token ", first + i,
                                                     " is ", id, ", but ids end at ",
                                                     vocabulary_ - 1));
    }
    out[i] = static_cast<int32_t>(id);
  }
  return absl::OkStatus();
}

}  // namespace muster::data
