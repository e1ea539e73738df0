// Messages with descriptors beside them over a Unix stream socket: what the agent and its guardian
// speak through.
//
// A frame is its length in four bytes, little endian, and the body; its descriptors travel with its
// first byte (SCM_RIGHTS). The reader takes the length and the body apart, so that descriptors
// always belong to the frame they came with. Neither owns the socket, which must be non-blocking
// and outlive them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

inline constexpr size_t kFrameBytesMax = size_t{16} << 20;
inline constexpr size_t kFrameDescriptorsMax = 8;

struct Frame {
  std::string body;
  std::vector<UniqueFd> descriptors;
  // The kernel dropped descriptors because this process may not open more.
  bool descriptors_lost = false;
};

// Threads: compatible.
class FrameReader {
 public:
  explicit FrameReader(int socket) : socket_(socket) {}

  // The next frame, or nothing if it has not arrived in full.
  //
  // Errors: kUnavailable: the peer has closed or the socket is broken; kInvalidArgument: a length
  // over kFrameBytesMax.
  absl::StatusOr<std::optional<Frame>> Read();

 private:
  // Fills `size` bytes; true when they are all there.
  absl::StatusOr<bool> Fill(char* data, size_t size);

  const int socket_;
  std::array<char, 4> header_;
  bool in_body_ = false;
  size_t received_ = 0;
  Frame frame_;
};

// Threads: compatible.
class FrameWriter {
 public:
  explicit FrameWriter(int socket) : socket_(socket) {}

  // Takes a frame; `body` is at most kFrameBytesMax long, with at most kFrameDescriptorsMax
  // descriptors, which are closed once sent.
  void Push(std::string body, std::vector<UniqueFd> descriptors = {});

  // Sends what the socket takes now. Call again when it is writable unless empty().
  //
  // Errors: kUnavailable: the peer is gone. Never raises SIGPIPE.
  absl::Status Flush();

  bool empty() const { return queue_.empty(); }
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
  };

  const int socket_;
  std::deque<Outgoing> queue_;
  size_t sent_of_first_ = 0;
  size_t queued_bytes_ = 0;
};

}  // namespace muster::agent
