// Thousands of agents in one process, to measure the rendezvous: each is a real AgentCore behind a
// real GrpcLink with a TCP connection of its own; only its workers and ports are made up.
//
//   agent_crowd SERVER_PID HOST PORT AGENTS on|off REST_SECONDS     (on|off: TLS)
//
// The secret is $MUSTER_TOKEN. Prints one JSON object: how long until all are ranked, what the
// server's process has used for it, its CPU share at rest, and the same for one restart of all.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_core.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/post.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"
#include "proto/io/descriptors.h"
#include "rendezvous/client/grpc_link.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster {
namespace {

// Agents that connect at the same time. Their hand-shakes share this process's CPUs, which real
// nodes do not, and must end within the server's time for one.
constexpr int kConnecting = 64;
constexpr absl::Duration kPatience = absl::Minutes(10);

struct Place {
  int server_pid = 0;
  std::string host;
  int port = 0;
  int agents = 0;
  TlsMode tls = TlsMode::kOn;
  double rest_seconds = 0;
};

// CPU seconds and resident bytes of a process.
struct Usage {
  double cpu = 0;
  double resident = 0;
};

Usage UsageOf(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text, word;
  std::getline(file, text);
  std::vector<std::string> fields;
  std::size_t begin = text.rfind(')') + 2;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  constexpr size_t kUserTime = 11, kSystemTime = 12, kResidentPages = 21;  // proc(5), from field 3
  const double ticks = std::stod(fields.at(kUserTime)) + std::stod(fields.at(kSystemTime));
  return {ticks / static_cast<double>(sysconf(_SC_CLK_TCK)),
          std::stod(fields.at(kResidentPages)) * static_cast<double>(sysconf(_SC_PAGESIZE))};
}

class Crowd;

class SimulatedAgent {
 public:
  SimulatedAgent(Crowd& crowd, asio::io_context& loop, const Place& place, int number);
  void Open();
  void FailAWorker();
  Round round() const { return assignment_.round; }

 private:
  void Feed(const agent::Event& event);
  void FeedLater(agent::Event event) {
    asio::post(loop_, [this, event = std::move(event)] { Feed(event); });
  }
  void ArmTimer();
  // Adds what the hang watch of an agent says of its ranks: here that all of them move.
  void Perform(const agent::SendReport& effect) {
    if (assignment_.round != kNoRound) {
      link_.SendWatchWord(
          hangs::NodeSummary{.round = assignment_.round, .hang_timeout = absl::Minutes(10)});
    }
    link_.SendReport(effect.report);
  }
  void Perform(const agent::ReservePorts&) {
    FeedLater(agent::PortsReserved{.store_port = 20000, .worker_ports = {20001}});
  }
  void Perform(const agent::StartWorkers& effect);
  void Perform(const agent::SignalWorkers&) {
    FeedLater(agent::WorkerExited{assignment_.round, LocalRank(0), std::nullopt});
  }
  void Perform(const agent::Finish& effect) {
    std::fprintf(stderr, "agent %d ended: %s\n", number_, effect.outcome.reason.c_str());
    std::exit(1);
  }
  // What waits for descendants: there are none.
  template <typename Other>
  void Perform(const Other& effect) {
    if constexpr (std::is_same_v<Other, agent::SweepDescendants> ||
                  std::is_same_v<Other, agent::AwaitDescendants>) {
      FeedLater(agent::DescendantsGone{});
    } else {
      (void)effect;
    }
  }

  Crowd& crowd_;
  asio::io_context& loop_;
  const int number_;
  rendezvous::GrpcLink link_;
  agent::AgentCore core_;
  asio::steady_timer timer_;
  Assignment assignment_;
};

class Crowd {
 public:
  explicit Crowd(Place place) : place_(std::move(place)) {
    for (int i = 0; i < place_.agents; ++i) {
      agents_.push_back(std::make_unique<SimulatedAgent>(*this, loop_, place_, i));
    }
  }

  void Run() {
    const Usage before = UsageOf(place_.server_pid);
    const MonoTime begin = MonoNow();
    for (int i = 0; i < kConnecting && i < place_.agents; ++i) OpenNext();
    RunUntilRanked(Round(0));
    const double ranked = absl::ToDoubleSeconds(MonoNow() - begin);
    const Usage joined = UsageOf(place_.server_pid);

    RunFor(place_.rest_seconds / 4);  // what the start has stirred up settles
    const Usage rest_begin = UsageOf(place_.server_pid);
    RunFor(place_.rest_seconds);
    const Usage rest_end = UsageOf(place_.server_pid);

    num_ranked_ = 0;
    const MonoTime restart = MonoNow();
    agents_.front()->FailAWorker();
    RunUntilRanked(Round(1));
    const double ranked_again = absl::ToDoubleSeconds(MonoNow() - restart);
    const Usage restarted = UsageOf(place_.server_pid);

    const double n = place_.agents;
    std::printf(
        "{\"agents\": %d, \"ranked_s\": %.2f, \"join_cpu_ms\": %.3f, \"join_kib\": %.1f, "
        "\"rest_cores\": %.4f, \"restart_s\": %.2f, \"restart_cpu_ms\": %.3f}\n",
        place_.agents, ranked, (joined.cpu - before.cpu) / n * 1e3,
        (joined.resident - before.resident) / n / 1024,
        (rest_end.cpu - rest_begin.cpu) / place_.rest_seconds, ranked_again,
        (restarted.cpu - rest_end.cpu) / n * 1e3);
    std::fflush(stdout);
    _exit(0);  // without ten thousand farewells
  }

  void OnUp() { OpenNext(); }
  void OnRanked() { ++num_ranked_; }
  std::string run_id() const { return absl::StrCat("crowd-", getpid()); }

 private:
  void OpenNext() {
    if (next_to_open_ < agents_.size()) agents_[next_to_open_++]->Open();
  }
  void RunUntilRanked(Round) {
    const MonoTime deadline = MonoNow() + kPatience;
    while (num_ranked_ < place_.agents) {
      loop_.run_one_for(std::chrono::seconds(1));
      if (MonoNow() < deadline) continue;
      std::fprintf(stderr, "only %d of %d agents are ranked\n", num_ranked_, place_.agents);
      std::exit(1);
    }
  }
  void RunFor(double seconds) {
    loop_.run_for(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
  }

  const Place place_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(loop_);
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  size_t next_to_open_ = 0;
  int num_ranked_ = 0;
};

agent::AgentCoreOptions CoreOptions(const Place& place, int number) {
  agent::AgentCoreOptions options;
  options.node = {.name = absl::StrCat("node", number),
                  .address = "127.0.0.1",
                  .other_addresses = {absl::StrCat("10.", number >> 16, ".", (number >> 8) & 255,
                                                   ".", number & 255)}};
  options.settings = {.min_nodes = place.agents,
                      .max_nodes = place.agents,
                      .max_restarts = 3,
                      .join_timeout = absl::Minutes(20),
                      .last_call_timeout = absl::Seconds(30),
                      .close_timeout = absl::Seconds(30),
                      .shutdown_timeout = absl::Seconds(30)};
  options.read_timeout = absl::Minutes(1);
  options.server = "the server";
  return options;
}

rendezvous::GrpcLinkOptions LinkOptions(const Crowd& crowd, const Place& place, int number) {
  const char* token = std::getenv("MUSTER_TOKEN");
  return {.host = place.host,
          .port = place.port,
          .secret = {token == nullptr ? "" : token, "MUSTER_TOKEN"},
          .tls = place.tls,
          .run_id = crowd.run_id(),
          .incarnation = Incarnation(static_cast<uint64_t>(number) + 1),
          .node_name = absl::StrCat("node", number),
          .jitter_seed = static_cast<uint64_t>(number),
          .attempt_timeout = absl::Minutes(1)};
}

SimulatedAgent::SimulatedAgent(Crowd& crowd, asio::io_context& loop, const Place& place, int number)
    : crowd_(crowd),
      loop_(loop),
      number_(number),
      link_(loop, LinkOptions(crowd, place, number)),
      core_(CoreOptions(place, number)),
      timer_(loop) {}

void SimulatedAgent::Open() {
  Feed(agent::Started{});
  link_.Open({.on_directive = [this](Directive d) { Feed(agent::DirectiveArrived{std::move(d)}); },
              .on_store_reply = [](const StoreReply&) {},
              .on_state =
                  [this](bool up, const std::string& detail, const absl::Status& fatal) {
                    if (up) crowd_.OnUp();
                    if (!up) std::fprintf(stderr, "node%d: %s\n", number_, detail.c_str());
                    Feed(agent::LinkChanged{up, detail, fatal});
                  }});
}

void SimulatedAgent::FailAWorker() {
  Feed(agent::WorkerExited{assignment_.round, LocalRank(0),
                           WorkerFailure{.rank = assignment_.first_rank,
                                         .node_rank = assignment_.node_rank,
                                         .node_name = absl::StrCat("node", number_),
                                         .exit_code = 1}});
}

void SimulatedAgent::Perform(const agent::StartWorkers& effect) {
  assignment_ = effect.assignment;
  FeedLater(agent::WorkerSpawned{assignment_.round, LocalRank(0), 1});
  crowd_.OnRanked();
}

void SimulatedAgent::Feed(const agent::Event& event) {
  for (const agent::Effect& effect : core_.Step(event, MonoNow())) {
    std::visit([this](const auto& e) { Perform(e); }, effect);
  }
  ArmTimer();
}

void SimulatedAgent::ArmTimer() {
  const MonoTime deadline = core_.NextDeadline();
  timer_.cancel();
  if (deadline.is_infinite()) return;
  timer_.expires_after(absl::ToChronoNanoseconds(deadline - MonoNow()));
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) Feed(agent::Tick{});
  });
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s SERVER_PID HOST PORT AGENTS on|off REST_SECONDS\n", argv[0]);
    return 2;
  }
  muster::RaiseDescriptorLimit();
  muster::Crowd crowd(
      {.server_pid = std::atoi(argv[1]),
       .host = argv[2],
       .port = std::atoi(argv[3]),
       .agents = std::atoi(argv[4]),
       .tls = std::string(argv[5]) == "on" ? muster::TlsMode::kOn : muster::TlsMode::kOff,
       .rest_seconds = std::atof(argv[6])});
  crowd.Run();
}
