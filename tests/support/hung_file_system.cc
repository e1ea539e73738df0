#include "tests/support/hung_file_system.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::testing {
namespace {

constexpr uint64_t kRoot = FUSE_ROOT_ID, kFile = 2;
constexpr uint64_t kKnownFor = 3600;  // seconds for which the kernel need not ask again

fuse_attr AttributesOf(uint64_t node, size_t size) {
  fuse_attr attributes{};
  attributes.ino = node;
  attributes.nlink = 1;
  attributes.blksize = 4096;
  attributes.mode = node == kRoot ? S_IFDIR | 0755 : S_IFREG | 0644;
  attributes.size = node == kRoot ? 0 : size;
  return attributes;
}

}  // namespace

HungFileSystem::HungFileSystem(const std::string& path, const std::string& name,
                               const std::string& content, Pages pages)
    : path_(path), name_(name), content_(content), pages_(pages) {
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);
  device_ = UniqueFd(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  const std::string options =
      absl::StrCat("fd=", device_.get(), ",rootmode=40000,user_id=0,group_id=0,allow_other");
  if (!device_ || ::mount("hung", path.c_str(), "fuse", 0, options.c_str()) != 0) {
    why_not_ = absl::StrCat("FUSE cannot be mounted here: ", std::strerror(errno));
    return;
  }
  server_ = std::thread([this] { Serve(); });
}

// Whoever waits for an answer gets an error once the device is closed.
HungFileSystem::~HungFileSystem() {
  if (!mounted()) return;
  ends_ = true;
  ::eventfd_write(wake_.get(), 1);
  server_.join();
  ::umount2(path_.c_str(), MNT_DETACH);
}

void HungFileSystem::AnswerAgain() {
  is_for_good_ = true;
  is_hung_ = false;
  ::eventfd_write(wake_.get(), 1);
}

void HungFileSystem::Serve() {
  while (!ends_) {
    pollfd waits[] = {{wake_.get(), POLLIN, 0}, {is_hung_ ? -1 : device_.get(), POLLIN, 0}};
    if (::poll(waits, 2, -1) < 0) continue;
    eventfd_t ignored = 0;
    if ((waits[0].revents & POLLIN) != 0) ::eventfd_read(wake_.get(), &ignored);
    if (waits[1].revents != 0 && !is_hung_ && !ends_) AnswerOne();
  }
  device_.reset();
}

void HungFileSystem::ReplyBytes(const fuse_in_header& to, int error, const void* bytes,
                                size_t size) const {
  fuse_out_header header{
      .len = static_cast<uint32_t>(sizeof(header) + size), .error = -error, .unique = to.unique};
  const iovec parts[] = {{&header, sizeof(header)}, {const_cast<void*>(bytes), size}};
  [[maybe_unused]] const ssize_t written = ::writev(device_.get(), parts, size == 0 ? 1 : 2);
}

template <typename Body>
void HungFileSystem::Reply(const fuse_in_header& to, const Body& body) const {
  ReplyBytes(to, 0, &body, sizeof(body));
}

void HungFileSystem::AnswerOne() {
  std::vector<char> request(FUSE_MIN_READ_BUFFER + (1 << 17));
  const ssize_t size = ::read(device_.get(), request.data(), request.size());
  if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
  fuse_in_header header;
  std::memcpy(&header, request.data(), sizeof(header));
  const char* const body = request.data() + sizeof(header);
  const fuse_attr attributes = AttributesOf(header.nodeid, content_.size());
  switch (header.opcode) {
    case FUSE_INIT: {
      fuse_init_out out{};
      out.major = FUSE_KERNEL_VERSION;
      out.minor = 31;
      out.max_readahead = out.max_write = 1 << 17;
      return Reply(header, out);
    }
    case FUSE_LOOKUP: {
      if (std::string(body) != name_) return ReplyBytes(header, ENOENT, nullptr, 0);
      fuse_entry_out out{};
      out.nodeid = kFile;
      out.entry_valid = out.attr_valid = kKnownFor;
      out.attr = AttributesOf(kFile, content_.size());
      return Reply(header, out);
    }
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr_valid = kKnownFor;
      out.attr = attributes;
      return Reply(header, out);
    }
    case FUSE_OPEN: {
      fuse_open_out out{};
      if (pages_ == Pages::kPassedBy) out.open_flags = FOPEN_DIRECT_IO;
      is_hung_ = !is_for_good_;
      return Reply(header, out);
    }
    case FUSE_READ: {
      fuse_read_in in;
      std::memcpy(&in, body, sizeof(in));
      const size_t begin = std::min<size_t>(in.offset, content_.size());
      const size_t count = std::min<size_t>(in.size, content_.size() - begin);
      return ReplyBytes(header, 0, content_.data() + begin, count);
    }
    case FUSE_RELEASE:
    case FUSE_FLUSH:
      return ReplyBytes(header, 0, nullptr, 0);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // they have no answer
    default:
      return ReplyBytes(header, ENOSYS, nullptr, 0);
  }
}

}  // namespace muster::testing
