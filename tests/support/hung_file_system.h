// A file system that stops to answer, as one whose server is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "proto/io/unique_fd.h"

struct fuse_in_header;

namespace muster::testing {

// One file, at `path`, which is made if it is not there, while this object lives. It answers until
// somebody has opened the file, and then nothing more, not the first read either, until
// AnswerAgain(). Mounting needs root and FUSE: a test that finds it not mounted() skips, and says
// so.
//
// Source: linux/fuse.h
class HungFileSystem {
 public:
  // A process that reads past the pages of the kernel waits where a signal may end it; others are
  // in uninterruptible sleep.
  enum class Pages { kUsed, kPassedBy };

  HungFileSystem(const std::string& path, const std::string& name, const std::string& content,
                 Pages pages);
  ~HungFileSystem();
  HungFileSystem(const HungFileSystem&) = delete;
  HungFileSystem& operator=(const HungFileSystem&) = delete;

  bool mounted() const { return why_not_.empty(); }
  // Why a test skips.
  const std::string& why_not() const { return why_not_; }
  std::string file() const { return path_ + "/" + name_; }

  void AnswerAgain();

 private:
  void Serve();
  void AnswerOne();
  template <typename Body>
  void Reply(const fuse_in_header& to, const Body& body) const;
  void ReplyBytes(const fuse_in_header& to, int error, const void* bytes, size_t size) const;

  const std::string path_, name_, content_;
  const Pages pages_;
  std::string why_not_;
  UniqueFd device_;
  UniqueFd wake_;  // an eventfd: once it is to answer again, or to end
  std::atomic<bool> is_hung_ = false, is_for_good_ = false, ends_ = false;
  std::thread server_;
};

}  // namespace muster::testing
