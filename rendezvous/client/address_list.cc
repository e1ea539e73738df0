#include "rendezvous/client/address_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::rendezvous {

AddressList::AddressList(asio::io_context& loop, LoopMailbox mailbox)
    : resolver_(loop), mailbox_(std::move(mailbox)) {}

bool AddressList::Resolve(
    const std::string& host, int port,
    std::function<void(std::string why_not, std::vector<asio::ip::tcp::endpoint>)> on_answer) {
  addresses_.clear();
  asio::error_code error;
  const asio::ip::address literal = asio::ip::make_address(host, error);
  if (!error) {
    addresses_.emplace_back(literal, static_cast<uint16_t>(port));
    return true;
  }
  resolver_.async_resolve(
      host, absl::StrCat(port), asio::ip::tcp::resolver::numeric_service,
      [mailbox = mailbox_, on_answer = std::move(on_answer)](
          const asio::error_code& failed, asio::ip::tcp::resolver::results_type found) {
        std::vector<asio::ip::tcp::endpoint> addresses;
        for (const auto& entry : found) addresses.push_back(entry.endpoint());
        mailbox.Post([on_answer, why = failed ? failed.message() : std::string(), addresses] {
          on_answer(why, addresses);
        });
      });
  return false;
}

void AddressList::Fill(std::vector<asio::ip::tcp::endpoint> addresses) {
  std::reverse(addresses.begin(), addresses.end());
  addresses_ = std::move(addresses);
}

std::optional<asio::ip::tcp::endpoint> AddressList::Next() {
  if (addresses_.empty()) return std::nullopt;
  const asio::ip::tcp::endpoint next = addresses_.back();
  addresses_.pop_back();
  return next;
}

}  // namespace muster::rendezvous
