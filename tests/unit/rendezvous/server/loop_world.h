// A loop that the test drives, servers on it, and links whose news are recorded.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "proto/io/user_secret.h"
#include "rendezvous/client/grpc_link.h"
#include "rendezvous/server/rendezvous_server.h"
#include "tests/support/patience.h"

namespace muster::rendezvous {

inline constexpr char kSecret[] = "the secret of the first user";
inline constexpr char kOtherSecret[] = "the secret of another user";

inline AgentReport JoiningReport(uint64_t sequence = 1) {
  AgentReport report;
  report.sequence = sequence;
  report.node = {.name = "node1",
                 .address = "127.0.0.1",
                 .local_world_size = 1,
                 .store_port = 1,
                 .worker_ports = {2}};
  report.settings = {.min_nodes = 1,
                     .max_nodes = 1,
                     .join_timeout = absl::Seconds(60),
                     .last_call_timeout = absl::ZeroDuration(),
                     .close_timeout = absl::Seconds(30),
                     .shutdown_timeout = absl::Seconds(30)};
  return report;
}

// What a listener has heard.
struct Heard {
  std::vector<Directive> directives;
  std::vector<StoreReply> replies;
  std::vector<hangs::WatchOrder> orders;
  std::vector<std::string> downs;
  absl::Duration lease;
  absl::Status fatal;
  int ups = 0;
  bool is_up = false;
  bool closed = false;

  LinkListener Listener() {
    return {
        .on_directive = [this](Directive d) { directives.push_back(std::move(d)); },
        .on_store_reply = [this](StoreReply r) { replies.push_back(std::move(r)); },
        .on_watch_order = [this](hangs::WatchOrder order) { orders.push_back(std::move(order)); },
        .on_lease = [this](absl::Duration duration, absl::Duration) { lease = duration; },
        .on_state =
            [this](bool up, std::string detail, absl::Status why) {
              is_up = up;
              if (up) ++ups;
              if (!up) downs.push_back(detail);
              if (!why.ok()) fatal = why;
            }};
  }
  size_t count() const {
    return directives.size() + replies.size() + orders.size() + downs.size() +
           static_cast<size_t>(ups);
  }
  // The newest RunRound, or nullptr.
  const Assignment* assignment() const {
    for (auto it = directives.rbegin(); it != directives.rend(); ++it) {
      if (const auto* run = std::get_if<RunRound>(&it->body)) return &run->assignment;
    }
    return nullptr;
  }
};

class LoopWorld {
 public:
  // Runs the loop until `done`; false if that takes more than ten seconds.
  bool RunUntil(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() +
                          absl::ToChronoSeconds(testing::Patience(absl::Seconds(10)));
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      loop_.run_one_until(deadline);
    }
    return true;
  }
  // Runs what is ready now.
  void RunReady() { loop_.poll(); }

  std::unique_ptr<RendezvousServer> MakeServer(RendezvousServerOptions options = {}) {
    if (options.owners.empty()) options.owners = {{"", kSecret}};
    options.host_name = "server1";
    options.announce = [](const JobKey&, const Announce&) {};
    return RendezvousServer::Create(loop_, std::move(options));
  }

  GrpcLinkOptions LinkTo(int port, uint64_t incarnation = 1,
                         const std::string& secret = kSecret) const {
    return {.host = "127.0.0.1",
            .port = port,
            .secret = {secret, "MUSTER_TOKEN"},
            .run_id = "j7",
            .incarnation = Incarnation(incarnation),
            .node_name = "node2",
            .backoff = {.initial = absl::Milliseconds(1), .max = absl::Milliseconds(20)}};
  }

  asio::io_context& loop() { return loop_; }

 private:
  asio::io_context loop_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(loop_);
};

}  // namespace muster::rendezvous
