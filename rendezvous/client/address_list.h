// The addresses of a host that have not been tried yet.
//
// Loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "proto/io/loop_mailbox.h"

namespace muster::rendezvous {

class AddressList {
 public:
  AddressList(asio::io_context& loop, LoopMailbox mailbox);

  // Empties the list and asks the name service. `on_answer` gets addresses, first to last, or why
  // there are none; unless `host` is an address itself: true, and the list is filled.
  bool Resolve(
      const std::string& host, int port,
      std::function<void(std::string why_not, std::vector<asio::ip::tcp::endpoint>)> on_answer);
  void Fill(std::vector<asio::ip::tcp::endpoint> addresses);
  std::optional<asio::ip::tcp::endpoint> Next();
  // Nobody waits for the name service any more.
  void Cancel() { resolver_.cancel(); }

 private:
  asio::ip::tcp::resolver resolver_;
  const LoopMailbox mailbox_;
  std::vector<asio::ip::tcp::endpoint> addresses_;  // last first
};

}  // namespace muster::rendezvous
