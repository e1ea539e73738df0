// What there is to see of the job at this node: answers people at the agent's socket, by way of the
// server, and the server's inquiries about the workers here. Where the server does not answer,
// people are told what this node knows.
//
// One event loop, loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "agent/sight/sight_socket.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/inquiry.h"
#include "proto/io/loop_mailbox.h"

namespace muster::agent {

// What the agent does for it, on the loop.
struct SightSources {
  std::function<void(const Inquiry&)> ask_server;  // OnAnswer follows, or does not
  std::function<void(const InquiryReply&)> tell_server;
  // The status as far as this node knows it; `why` the server is not asked.
  std::function<std::string(const std::string& why)> own_page;
  std::function<std::string()> way;  // a status::WayToJob
  // The part of this node in stacks, figures and logs; `then` is called once, or never.
  std::function<void(const Inquiry&, absl::AnyInvocable<void(InquiryPart)> then)> look;
};

// How long the server has: for what it answers by itself, and beyond the time that it gives agents.
inline constexpr absl::Duration kServerPatience = absl::Seconds(1);

class SightDesk {
 public:
  SightDesk(asio::io_context& loop, SightSources sources);
  ~SightDesk();

  // Errors: kInternal with errno in words.
  absl::Status Listen(const std::string& path) { return socket_.Listen(path); }
  // What the server asks, and answers.
  void OnInquiry(const Inquiry& inquiry);
  void OnAnswer(InquiryAnswer answer);
  void Close();

 private:
  struct Open {
    uint64_t connection = 0;
    Inquiry inquiry;
    asio::steady_timer patience;
  };

  void OnAsked(uint64_t connection, Inquiry inquiry);
  // Answers a question that the server does not, from what this node knows.
  void AnswerHere(uint64_t id, const absl::Status& why);

  const SightSources sources_;
  const LoopMailbox mailbox_;
  asio::io_context& loop_;
  uint64_t next_id_ = 1;
  absl::btree_map<uint64_t, std::unique_ptr<Open>> open_;
  SightSocket socket_;
};

}  // namespace muster::agent
