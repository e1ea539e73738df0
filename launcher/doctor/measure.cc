#include "launcher/doctor/measure.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/ip/tcp.hpp"
#include "proto/base/endpoint.h"
#include "proto/base/mono_time.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr size_t kMeasuredBytes = size_t{32} << 20;
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr size_t kTextBytesMax = size_t{1} << 20;
constexpr int kPatienceSeconds = 10;
// A rank that has met no other in so many turns is alone.
constexpr size_t kMissedMax = 2;
// A turn in which rank 0 gets what a rank has measured.
constexpr uint32_t kReportTurn = 0xffffffff;

struct Opening {
  uint32_t turn = 0;
  uint32_t rank = 0;
  uint64_t text_bytes = 0;  // of a report
};

void SetPatience(int fd) {
  const timeval patience{.tv_sec = kPatienceSeconds, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

bool SendAll(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = ::recv(fd, at, size, 0);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool SendBulk(int fd) {
  const std::string piece(kPieceBytes, 'm');
  for (size_t sent = 0; sent < kMeasuredBytes; sent += kPieceBytes) {
    if (!SendAll(fd, piece.data(), piece.size())) return false;
  }
  char heard = 0;
  return ReceiveAll(fd, &heard, 1);
}

bool ReceiveBulk(int fd) {
  std::string piece(kPieceBytes, '\0');
  for (size_t got = 0; got < kMeasuredBytes; got += kPieceBytes) {
    if (!ReceiveAll(fd, piece.data(), piece.size())) return false;
  }
  return SendAll(fd, "m", 1);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// An empty host: all addresses of this machine.
AddressList Find(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const char* const host = endpoint.host.empty() ? nullptr : endpoint.host.c_str();
  if (::getaddrinfo(host, absl::StrCat(endpoint.port).c_str(), &hints, &list) != 0) list = nullptr;
  return {list, &::freeaddrinfo};
}

bool IsOfLoopback(const AddressList& address) {
  asio::ip::tcp::endpoint endpoint;
  if (address == nullptr || address->ai_addrlen > endpoint.capacity()) return false;
  std::memcpy(endpoint.data(), address->ai_addr, address->ai_addrlen);
  endpoint.resize(address->ai_addrlen);
  return endpoint.address().is_loopback();
}

// A name that leads to loopback on its own machine alone, as Debian's /etc/hosts has it, is
// reached at the machine's other addresses.
UniqueFd Listen(const MeasuredNodes& job) {
  Endpoint here = job.nodes[job.self];
  if (IsOfLoopback(Find(here)) &&
      absl::c_any_of(job.nodes, [](const Endpoint& node) { return !IsOfLoopback(Find(node)); })) {
    here.host.clear();
  }
  const AddressList address = Find(here);
  if (address == nullptr) return UniqueFd();
  UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!fd || ::bind(fd.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return UniqueFd();
  }
  SetPatience(fd.get());
  return fd;
}

// While nobody listens there yet, again and again.
UniqueFd Connect(const Endpoint& there) {
  const AddressList address = Find(there);
  const MonoTime give_up = MonoNow() + absl::Seconds(kPatienceSeconds);
  while (address != nullptr && MonoNow() < give_up) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) break;
    SetPatience(fd.get());
    if (::connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0) return fd;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return UniqueFd();
}

// One of the job, with those that have come to it before their turn.
class Measurer {
 public:
  explicit Measurer(const MeasuredNodes& job)
      : nodes_(job.nodes), self_(job.self), listener_(Listen(job)) {}

  std::vector<Rate> Run() {
    const std::vector<int> turns = PlanTurns(static_cast<int>(nodes_.size()), self_);
    std::vector<Rate> rates, missed;
    bool has_met = false;
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      const int other = turns[turn];
      if (other < 0) continue;
      const auto number = static_cast<uint32_t>(turn);
      const bool is_there =
          other < self_ ? MeasureWith(other, number, rates) : Serve(other, number);
      has_met = has_met || is_there;
      if (!is_there) missed.push_back({.from = self_, .to = other});
      if (!has_met && missed.size() == kMissedMax) break;
    }
    if (self_ != 0) return Report(rates);
    return has_met ? Collect(std::move(rates)) : missed;
  }

 private:
  // False: there was no connection.
  bool MeasureWith(int other, uint32_t turn, std::vector<Rate>& rates) {
    const UniqueFd fd = Connect(nodes_[other]);
    const Opening opening{.turn = turn, .rank = static_cast<uint32_t>(self_)};
    const bool is_there = fd && SendAll(fd.get(), &opening, sizeof(opening));
    const auto rate_of = [&](bool (*pass)(int)) {
      const MonoTime start = MonoNow();
      if (!is_there || !pass(fd.get())) return 0.0;
      return static_cast<double>(kMeasuredBytes) / absl::ToDoubleSeconds(MonoNow() - start);
    };
    rates.push_back({.from = self_, .to = other, .bytes_per_second = rate_of(SendBulk)});
    rates.push_back({.from = other, .to = self_, .bytes_per_second = rate_of(ReceiveBulk)});
    return is_there;
  }

  bool Serve(int other, uint32_t turn) {
    const UniqueFd fd = Await(other, turn).second;
    if (fd && ReceiveBulk(fd.get())) SendBulk(fd.get());
    return bool(fd);
  }

  std::pair<Opening, UniqueFd> Await(int other, uint32_t turn) {
    const auto key = std::pair(turn, static_cast<uint32_t>(other));
    const MonoTime give_up = MonoNow() + absl::Seconds(2 * kPatienceSeconds);
    while (!came_.contains(key) && listener_ && MonoNow() < give_up) {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      SetPatience(fd.get());
      Opening opening;
      if (!ReceiveAll(fd.get(), &opening, sizeof(opening))) continue;
      came_[{opening.turn, opening.rank}] = {opening, std::move(fd)};
    }
    const auto found = came_.find(key);
    if (found == came_.end()) return {};
    auto taken = std::move(found->second);
    came_.erase(found);
    return taken;
  }

  std::vector<Rate> Report(const std::vector<Rate>& rates) {
    const UniqueFd fd = Connect(nodes_[0]);
    const std::string text = Encode(rates);
    const Opening opening{
        .turn = kReportTurn, .rank = static_cast<uint32_t>(self_), .text_bytes = text.size()};
    char heard = 0;
    if (fd && SendAll(fd.get(), &opening, sizeof(opening)) &&
        SendAll(fd.get(), text.data(), text.size())) {
      ReceiveAll(fd.get(), &heard, 1);
    }
    return {};
  }

  std::vector<Rate> Collect(std::vector<Rate> rates) {
    for (int other = 1; other < static_cast<int>(nodes_.size()); ++other) {
      const auto [opening, fd] = Await(other, kReportTurn);
      if (!fd || opening.text_bytes > kTextBytesMax) continue;
      std::string text(opening.text_bytes, '\0');
      if (!ReceiveAll(fd.get(), text.data(), text.size())) continue;
      SendAll(fd.get(), "m", 1);
      for (const Rate& rate : DecodeRates(text)) rates.push_back(rate);
    }
    return rates;
  }

  const std::vector<Endpoint> nodes_;
  const int self_;
  const UniqueFd listener_;  // none: nobody reaches this node
  std::map<std::pair<uint32_t, uint32_t>, std::pair<Opening, UniqueFd>> came_;  // by turn and rank
};

}  // namespace

std::vector<Rate> MeasureRates(const MeasuredNodes& nodes) {
  if (nodes.nodes.size() < 2) return {};
  return Measurer(nodes).Run();
}

}  // namespace muster::launcher
