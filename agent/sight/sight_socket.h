// The Unix socket at which people look at the job of this agent (`muster status` and the like):
// each sends an inquiry and gets its answer, as often as it wants. Messages are Inquiry and
// InquiryAnswer of proto/inquiry.proto, framed by their length in four bytes, little endian.
//
// Only processes of our own user may connect (SO_PEERCRED). There are kSightConnectionsMax
// connections; one more takes the place of the one that has been idle longest, so that open
// idle connections keep nobody out.
//
// One event loop, loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "asio/io_context.hpp"
#include "proto/base/inquiry.h"

namespace muster::agent {

inline constexpr char kSightSocketName[] = "look.sock";
inline constexpr size_t kSightConnectionsMax = 16;
// What a frame to the agent may have.
inline constexpr size_t kInquiryFrameBytesMax = kInquiryDetailBytesMax + (size_t{16} << 10);

class SightSocket {
 public:
  // Called from the loop; `connection` is for Answer, which must follow.
  using OnInquiry = std::function<void(uint64_t connection, Inquiry inquiry)>;

  SightSocket(asio::io_context& loop, OnInquiry on_inquiry);
  ~SightSocket();
  SightSocket(const SightSocket&) = delete;
  SightSocket& operator=(const SightSocket&) = delete;

  // Errors: kInternal with errno in words.
  absl::Status Listen(const std::string& path);
  // The next inquiry of the connection is read once this is written. One that has gone meanwhile is
  // no error.
  void Answer(uint64_t connection, const InquiryAnswer& answer);
  void Close();

 private:
  struct State;
  // Shared with what is under way on the sockets.
  std::shared_ptr<State> state_;
};

}  // namespace muster::agent
