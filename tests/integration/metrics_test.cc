// /metrics of real agents and of a real musterd: who is told, what, and that a slow client at the
// port disturbs nobody.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/io/unique_fd.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"
#include "tests/support/prometheus_text.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(90);
constexpr char kNoPrometheus[] = "there is no Prometheus: run deploy/dev deps --peers";

UniqueFd ConnectTo(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A test that asks must not wait for ever.
  const timeval patience{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return {};
  return fd;
}

// The whole answer; empty: there was none.
std::string Get(int port, const std::string& path, const std::string& token) {
  const UniqueFd fd = ConnectTo(port);
  if (!fd) return "";
  const std::string ask = absl::StrCat(
      "GET ", path, " HTTP/1.1\r\nHost: here\r\nConnection: close\r\n",
      token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n"), "\r\n");
  if (::send(fd.get(), ask.data(), ask.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = ::recv(fd.get(), bytes, sizeof(bytes), 0)) > 0;) answer.append(bytes, n);
  return answer;
}

std::string BodyOf(const std::string& answer) {
  const size_t head = answer.find("\r\n\r\n");
  return head == std::string::npos ? "" : answer.substr(head + 4);
}

class Metrics : public SeveralNodes {
 protected:
  std::string Token(const Environment& changes = {}) const {
    return std::string(absl::StripAsciiWhitespace(Run({"metrics_token"}, changes).out));
  }
  std::string MetricsOption() const { return absl::StrCat("--metrics=", port_.number()); }
  int port() const { return port_.number(); }
  Samples Scrape(const std::string& token) const {
    Samples samples;
    const std::string body = BodyOf(Get(port(), "/metrics", token));
    EXPECT_EQ(WhatIsWrongWith(body, &samples), "") << body;
    return samples;
  }
  static void End(Subprocess& job) {
    job.Signal(SIGTERM);
    EXPECT_THAT(job.Wait(kLong), ExitsWith(128 + SIGTERM));
  }

 private:
  LoopbackPort port_;
};

TEST_F(Metrics, OfAnAgentTellOfItsRanksToWhoHasTheToken) {
  Subprocess job = Start({"run", "--rdzv_id=here", "--nproc_per_node=2", MetricsOption(),
                          Built("hanging_rank"), "slow"});
  ASSERT_TRUE(job.WaitForOutput("metrics at http://127.0.0.1:", kLong));
  const std::string token = Token();
  ASSERT_EQ(token.size(), 64u);
  const std::string step = "muster_rank_step{run_id=\"here\",rank=\"1\"}";
  Samples samples;
  EXPECT_TRUE(WaitUntil(
      [&] {
        samples = Scrape(token);
        return samples.contains(step) && samples[step] > 0;
      },
      kLong));
  EXPECT_EQ(samples["muster_rank_up{run_id=\"here\",rank=\"0\"}"], 1);
  EXPECT_GT(samples["muster_rank_memory_bytes{run_id=\"here\",rank=\"0\"}"], 0);
  int running = 0;
  for (const auto& [name, value] : samples) {
    if (absl::StartsWith(name, "muster_agent_state{") &&
        absl::StrContains(name, "state=\"running\"")) {
      running += static_cast<int>(value);
    }
    if (absl::StartsWith(name, "muster_agent_goodput_ratio")) {
      EXPECT_GT(value, 0);
      EXPECT_LE(value, 1);
    }
  }
  EXPECT_EQ(running, 1);
  EXPECT_THAT(Get(port(), "/metrics", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Get(port(), "/metrics", token.substr(1) + "0"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Get(port(), "/", token), StartsWith("HTTP/1.1 404"));
  End(job);
}

TEST_F(Metrics, AreWhatPromtoolTakes) {
  const std::string promtool = PeerPrometheus("promtool");
  if (promtool.empty()) GTEST_SKIP() << kNoPrometheus;
  const std::string sleeps = ShellScript("sleeps.sh", "exec sleep 1000");
  Subprocess job = Start({"run", "--rdzv_id=here", MetricsOption(), sleeps});
  ASSERT_TRUE(job.WaitForOutput("metrics at", kLong));
  SubprocessOptions options = OptionsFor({});
  options.argv = {promtool, "check", "metrics"};
  options.stdin_text = BodyOf(Get(port(), "/metrics", Token()));
  const SubprocessResult result = Subprocess(options).Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  End(job);
}

// An agent and a musterd, with the configuration that the guide gives.
TEST_F(Metrics, AreScrapedByAPrometheus) {
  const std::string prometheus = PeerPrometheus("prometheus");
  if (prometheus.empty()) GTEST_SKIP() << kNoPrometheus;
  const LoopbackPort daemons, its;
  Subprocess daemon = StartProgram(
      {MusterdBinary(), "--listen=" + endpoint(), absl::StrCat("--metrics=", daemons.number())});
  ASSERT_TRUE(daemon.WaitForOutput("metrics at", kLong));
  Subprocess job =
      StartElastic(1, "1", {"--nproc_per_node=2", MetricsOption(), Built("hanging_rank"), "slow"});
  ASSERT_TRUE(job.WaitForOutput("metrics at", kLong));
  WriteFile(directory() + "/muster.token", Token());
  WriteFile(directory() + "/prometheus.yml",
            absl::StrCat("global: { scrape_interval: 1s }\n"
                         "scrape_configs:\n"
                         "  - job_name: muster\n"
                         "    authorization: { credentials_file: muster.token }\n"
                         "    static_configs: [ { targets: [ \"127.0.0.1:",
                         port(), "\", \"127.0.0.1:", daemons.number(), "\" ] } ]\n"));
  Subprocess scraper =
      StartProgram({prometheus, "--config.file=" + directory() + "/prometheus.yml",
                    "--storage.tsdb.path=" + directory() + "/tsdb",
                    absl::StrCat("--web.listen-address=127.0.0.1:", its.number())});
  // Whether the query has as many results.
  const auto has = [&](const std::string& query, int wanted) {
    const auto answer = nlohmann::json::parse(
        BodyOf(Get(its.number(), "/api/v1/query?query=" + query, "")), nullptr, false);
    if (!answer.is_object() || answer.value("status", "") != "success") return false;
    return static_cast<int>(answer["data"]["result"].size()) == wanted;
  };
  EXPECT_TRUE(WaitUntil([&] { return has("up==1", 2); }, kLong));
  EXPECT_TRUE(WaitUntil([&] { return has("muster_rank_step>0", 2); }, kLong));
  EXPECT_TRUE(WaitUntil([&] { return has("muster_rank_waiting_seconds_total>0", 2); }, kLong));
  EXPECT_TRUE(WaitUntil([&] { return has("muster_job_world_size==2", 1); }, kLong));
  scraper.Signal(SIGTERM);
  scraper.Wait(kLong);
  End(job);
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(kLong), ExitsWith(0));
}

TEST_F(Metrics, CountARestartAndItsFailure) {
  const std::string script = ShellScript(
      "fails_once.sh", "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7\nexec sleep 1000\n");
  Subprocess job = Start({"run", "--rdzv_id=here", "--max_restarts=2", MetricsOption(), script});
  ASSERT_TRUE(job.WaitForOutput("metrics at", kLong));
  const std::string token = Token();
  EXPECT_TRUE(WaitUntil(
      [&] {
        int found = 0;
        for (const auto& [name, value] : Scrape(token)) {
          const bool is_one = absl::StartsWith(name, "muster_agent_worker_failures_total{") ||
                              absl::StartsWith(name, "muster_agent_restarts_total{");
          found += is_one && value == 1 ? 1 : 0;
          found += absl::StartsWith(name, "muster_agent_rounds_total{") && value == 2 ? 1 : 0;
        }
        return found == 3;
      },
      kLong));
  End(job);
}

TEST_F(Metrics, DoNotKeepAJobFromRunningWhereThePortIsTaken) {
  const LoopbackPort taken(PortUse::kListening);
  const std::string script = ShellScript("train.sh", "exit 0");
  const SubprocessResult result = Run({"run", absl::StrCat("--metrics=", taken.number()), script});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("this node runs without metrics"));
  const SubprocessResult odd = Run({"run", "--metrics=http", script});
  EXPECT_THAT(odd, ExitsWith(2));
  EXPECT_THAT(odd.err, HasSubstr("--metrics=http: expected PORT, or an address with it"));
}

TEST_F(Metrics, OutliveWhoOpensTheirConnectionsAndAsksNothing) {
  const std::string sleeps = ShellScript("sleeps.sh", "exec sleep 1000");
  Subprocess job = Start({"run", "--rdzv_id=here", MetricsOption(), sleeps});
  ASSERT_TRUE(job.WaitForOutput("metrics at", kLong));
  std::vector<UniqueFd> open;
  for (int i = 0; i < 20; ++i) open.push_back(ConnectTo(port()));
  // The job itself does not notice.
  EXPECT_TRUE(WaitUntil([&] { return Run({"status", "here"}).exit_code == 0; }, kLong));
  // The oldest of them is let go for ours.
  EXPECT_THAT(Get(port(), "/metrics", Token()), StartsWith("HTTP/1.1 200"));
  End(job);
}

TEST_F(Metrics, OfAMusterdTellOfItsJobs) {
  Subprocess daemon = StartProgram({MusterdBinary(), "--listen=" + endpoint(), MetricsOption()});
  ASSERT_TRUE(daemon.WaitForOutput("metrics at", kLong));
  const std::string token = Token();
  EXPECT_EQ(Scrape(token)["muster_jobs"], 0);
  EXPECT_THAT(Get(port(), "/metrics", ""), StartsWith("HTTP/1.1 401"));
  const std::string sleeps = ShellScript("sleeps.sh", "exec sleep 1000");
  Subprocess first = StartElastic(1, "2", {sleeps});
  Subprocess second = StartElastic(2, "2", {sleeps});
  Samples samples;
  EXPECT_TRUE(WaitUntil(
      [&] {
        samples = Scrape(token);
        return samples["muster_job_health{run_id=\"elastic\",state=\"healthy\"}"] == 1;
      },
      kLong));
  EXPECT_EQ(samples["muster_job_world_size{run_id=\"elastic\"}"], 2);
  EXPECT_EQ(samples["muster_job_nodes{run_id=\"elastic\",state=\"running\"}"], 2);
  first.Signal(SIGINT);
  first.Wait(kLong);
  second.Wait(kLong);
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(kLong), ExitsWith(0));
}

TEST_F(Metrics, AreToldToEverybodyWithoutAuthentication) {
  Subprocess daemon =
      StartProgram({MusterdBinary(), "--listen=" + endpoint(), "--auth=none", MetricsOption()});
  ASSERT_TRUE(daemon.WaitForOutput("metrics at", kLong));
  EXPECT_THAT(Get(port(), "/metrics", ""), StartsWith("HTTP/1.1 200"));
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(kLong), ExitsWith(0));
}

TEST_F(Metrics, HealthOfAMusterdIsToldWithoutATokenAndNothingElse) {
  Subprocess daemon =
      StartProgram({MusterdBinary(), "--listen=" + endpoint(), absl::StrCat("--health=", port())});
  ASSERT_TRUE(daemon.WaitForOutput("health at http://127.0.0.1:", kLong));
  std::vector<UniqueFd> open;
  for (int i = 0; i < 20; ++i) open.push_back(ConnectTo(port()));
  EXPECT_THAT(Get(port(), "/healthz", ""), StartsWith("HTTP/1.1 200"));
  for (const char* path : {"/", "/metrics"}) {
    EXPECT_THAT(Get(port(), path, Token()), StartsWith("HTTP/1.1 404")) << path;
  }
  daemon.Signal(SIGTERM);
  EXPECT_THAT(daemon.Wait(kLong), ExitsWith(0));
}

TEST_F(Metrics, HealthOfAMusterdNeedsItsPort) {
  const LoopbackPort taken(PortUse::kListening);
  const SubprocessResult result = StartProgram({MusterdBinary(), "--listen=" + endpoint(),
                                                absl::StrCat("--health=", taken.number())})
                                      .Wait(kLong);
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("cannot listen: "));
}

}  // namespace
}  // namespace muster::testing
