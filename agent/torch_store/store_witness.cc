#include "agent/torch_store/store_witness.h"

#include <array>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "agent/machine/worker_sockets.h"
#include "agent/torch_store/request.h"
#include "asio/buffer.hpp"
#include "asio/connect.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"

namespace muster::agent {
namespace {

using asio::ip::tcp;

// The first look is before the store's first notice (NoticeTimes::first).
constexpr std::array<std::chrono::seconds, 6> kPauses = {
    std::chrono::seconds(5),  std::chrono::seconds(10),  std::chrono::seconds(30),
    std::chrono::seconds(60), std::chrono::seconds(120), std::chrono::seconds(240)};
constexpr std::chrono::seconds kPatience(5);  // to reach the store

}  // namespace

class StoreWitness::Loop {
 public:
  Loop(asio::io_context& loop, std::string host, int port)
      : timer_(loop),
        patience_(loop),
        resolver_(loop),
        socket_(loop),
        host_(std::move(host)),
        port_(port) {}

  void AddWorker(Rank rank, pid_t pid) {
    if (pids_.empty()) Arm();
    ranks_.push_back(rank);
    pids_.push_back(pid);
  }

 private:
  void Arm() {
    if (looks_ == kPauses.size()) return;
    timer_.expires_after(kPauses[looks_++]);
    timer_.async_wait([this](const asio::error_code& error) {
      if (!error) Look();
    });
  }

  void Look() {
    std::vector<std::pair<int, int>> found;
    std::set<Rank> seen;
    for (const WorkerSocket& socket : FindWorkerSockets(pids_, port_)) {
      found.emplace_back(socket.port, ranks_[socket.worker].value());
      seen.insert(ranks_[socket.worker]);
    }
    if (seen.size() < pids_.size()) Arm();
    if (found.empty() || found == told_) return;
    told_ = found;
    Tell(EncodeIdentify(found));
  }

  // Over a connection of its own, from the address that the workers' connections come from.
  void Tell(std::string bytes) {
    socket_.close();
    patience_.expires_after(kPatience);
    patience_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      resolver_.cancel();
      socket_.close();
    });
    try {
      resolver_.async_resolve(
          host_, std::to_string(port_),
          [this, bytes = std::move(bytes)](const asio::error_code& error, const auto& endpoints) {
            if (error) return;
            asio::async_connect(
                socket_, endpoints,
                [this, bytes](const asio::error_code& failed, const tcp::endpoint&) {
                  if (!failed) Send(bytes);
                });
          });
    } catch (const std::system_error&) {  // no thread is to be had for the resolver
    }
  }

  void Send(const std::string& bytes) {
    auto kept = std::make_shared<std::string>(bytes);
    asio::async_write(socket_, asio::buffer(*kept), [this, kept](const asio::error_code&, size_t) {
      patience_.cancel();
      asio::error_code ignored;
      socket_.shutdown(tcp::socket::shutdown_both, ignored);
      socket_.close(ignored);
    });
  }

  asio::steady_timer timer_;
  asio::steady_timer patience_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  const std::string host_;
  const int port_;
  std::vector<Rank> ranks_;
  std::vector<pid_t> pids_;  // theirs
  size_t looks_ = 0;
  std::vector<std::pair<int, int>> told_;
};

StoreWitness::StoreWitness(std::string host, int port)
    : loop_(std::make_unique<Loop>(thread_.loop(), std::move(host), port)) {}

StoreWitness::~StoreWitness() { thread_.Join(); }

void StoreWitness::AddWorker(Rank rank, pid_t pid) {
  thread_.Post([loop = loop_.get(), rank, pid] { loop->AddWorker(rank, pid); });
}

}  // namespace muster::agent
