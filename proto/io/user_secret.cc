#include "proto/io/user_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/io/job_key.h"
#include "proto/io/random_bytes.h"
#include "proto/io/unique_fd.h"

namespace muster {
namespace {

constexpr size_t kMaxSecretFileBytes = 4096;

absl::Status ErrnoStatus(absl::string_view what, const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error),
                   "; set MUSTER_TOKEN_FILE to a file that only you can read"));
}

bool IsOfBase64(char c) { return absl::ascii_isalnum(c) || absl::StrContains("-_+/", c); }

absl::Status CheckSecret(absl::string_view secret, absl::string_view origin) {
  const absl::string_view base64 = absl::StripSuffix(secret, "=");
  if (secret.size() == kSecretHexDigits && absl::c_all_of(secret, absl::ascii_isxdigit)) {
    return absl::OkStatus();
  }
  if (base64.size() == kSecretBase64Characters && absl::c_all_of(base64, IsOfBase64)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the token in ", origin, " (", secret.size(), " bytes) is not 32 random bytes as ",
      kSecretHexDigits, " hexadecimal digits or ", kSecretBase64Characters,
      " characters of base64url; others can be guessed; make one with: openssl rand -hex 32"));
}

absl::Status CheckOwnerAndMode(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus("examine", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("the token file ", path, " is not a file"));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "the token file %s belongs to user %d, not to you (user %d); run: chown %d %s", path,
        info.st_uid, geteuid(), geteuid(), path));
  }
  // Kubernetes and systemd lend a file of root's to a user that is not root by letting its group
  // read it (fsGroup, or an access list, whose mask stands in the place of the group's bits).
  const bool is_lent = info.st_uid == 0 && geteuid() != 0;
  if ((info.st_mode & (is_lent ? 037 : 077)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("others may use the token file %s (mode %04o); run: chmod 600 %s", path,
                        info.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus("make the directory", path, errno);
}

absl::Status WriteNewFile(const std::string& path, absl::string_view text) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return ErrnoStatus("create", path, errno);
  while (!text.empty()) {
    const ssize_t n = write(file.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("write", path, errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return fsync(file.get()) == 0 ? absl::OkStatus() : ErrnoStatus("write", path, errno);
}

// The content is complete before the name exists, and the first to take the name wins.
absl::Status MakeSecretFile(const std::string& path) {
  const std::string temporary =
      absl::StrCat(path, ".", absl::BytesToHexString(RandomBytes(8)), ".new");
  absl::Status written =
      WriteNewFile(temporary, absl::StrCat(absl::BytesToHexString(RandomBytes(32)), "\n"));
  if (written.ok() && link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0 &&
        errno != EEXIST) {
      written = ErrnoStatus("create", path, errno);
    }
  }
  unlink(temporary.c_str());
  return written;
}

absl::StatusOr<UserSecret> LoadFromHome(const std::string& home) {
  const std::string config = absl::StrCat(home, "/.config");
  const std::string directory = absl::StrCat(config, "/muster");
  const std::string path = absl::StrCat(directory, "/token");
  absl::StatusOr<std::string> secret = ReadSecretFile(path);
  if (absl::IsNotFound(secret.status())) {
    MUSTER_RETURN_IF_ERROR(MakeDirectory(config));
    MUSTER_RETURN_IF_ERROR(MakeDirectory(directory));
    MUSTER_RETURN_IF_ERROR(MakeSecretFile(path));
    secret = ReadSecretFile(path);
  }
  if (!secret.ok()) return secret.status();
  return UserSecret{*std::move(secret), path};
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  // O_NONBLOCK: a FIFO of that name must not make us wait.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("there is no token file ", path));
  }
  if (!file) return ErrnoStatus("read the token file", path, errno);
  MUSTER_RETURN_IF_ERROR(CheckOwnerAndMode(file.get(), path));
  std::string text(kMaxSecretFileBytes + 1, '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  if (n < 0) return ErrnoStatus("read the token file", path, errno);
  if (static_cast<size_t>(n) > kMaxSecretFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the token file ", path, " is longer than ",
                                                   kMaxSecretFileBytes,
                                                   " bytes: is it the right file?"));
  }
  text.resize(static_cast<size_t>(n));
  std::string secret(absl::StripAsciiWhitespace(text));
  MUSTER_RETURN_IF_ERROR(CheckSecret(secret, path));
  return secret;
}

UserSecret PublicSecret() { return {"muster: authentication is off", "--auth=none"}; }

SecretSources SecretSourcesIn(const EnvironmentMap& environment) {
  return {.token = VariableOrEmpty(environment, "MUSTER_TOKEN"),
          .token_file = VariableOrEmpty(environment, "MUSTER_TOKEN_FILE"),
          .home = VariableOrEmpty(environment, "HOME")};
}

absl::StatusOr<UserSecret> LoadUserSecret(const SecretSources& sources) {
  if (!sources.token.empty()) {
    std::string secret(absl::StripAsciiWhitespace(sources.token));
    MUSTER_RETURN_IF_ERROR(CheckSecret(secret, "MUSTER_TOKEN"));
    return UserSecret{std::move(secret), "MUSTER_TOKEN"};
  }
  if (!sources.token_file.empty()) {
    MUSTER_ASSIGN_OR_RETURN(std::string secret, ReadSecretFile(sources.token_file));
    return UserSecret{std::move(secret), sources.token_file};
  }
  if (sources.home.empty()) {
    return absl::InvalidArgumentError(
        "there is no secret: HOME is not set; set MUSTER_TOKEN_FILE to a file that only you can "
        "read");
  }
  return LoadFromHome(sources.home);
}

}  // namespace muster
