#include "rendezvous/server/rendezvous_server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "asio/ip/tcp.hpp"
#include "asio/write.hpp"
#include "proto/io/challenge.h"
#include "proto/io/descriptors.h"
#include "proto/io/unique_fd.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/link/wire.h"
#include "rendezvous/server/outbox.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

using ::testing::HasSubstr;

class RendezvousServerTest : public ::testing::Test, protected LoopWorld {
 protected:
  int Listen(RendezvousServer& server, int port = 0) {
    const auto chosen = server.Listen("127.0.0.1", port);
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    return chosen.value_or(0);
  }
  std::unique_ptr<GrpcLink> Open(const GrpcLinkOptions& options, Heard& heard) {
    auto link = std::make_unique<GrpcLink>(loop(), options);
    link->Open(heard.Listener());
    return link;
  }
  // The port on which nobody listens any more.
  int FreedPort() { return Listen(*MakeServer()); }
};

TEST_F(RendezvousServerTest, ListensOnIpv6) {
  const auto server = MakeServer();
  const auto port = server->Listen("::1", 0);
  if (!port.ok()) GTEST_SKIP() << port.status();
  GrpcLinkOptions options = LinkTo(*port);
  options.host = "::1";
  Heard heard;
  const auto link = Open(options, heard);
  EXPECT_TRUE(RunUntil([&] { return heard.is_up; })) << ::testing::PrintToString(heard.downs);
}

TEST_F(RendezvousServerTest, IsFoundByName) {
  const auto server = MakeServer();
  GrpcLinkOptions options = LinkTo(Listen(*server));
  options.host = "localhost";
  Heard heard;
  const auto link = Open(options, heard);
  EXPECT_TRUE(RunUntil([&] { return heard.is_up; })) << ::testing::PrintToString(heard.downs);
}

class WrongSecret : public RendezvousServerTest, public ::testing::WithParamInterface<TlsMode> {};

TEST_P(WrongSecret, IsRefusedWithWhatToDo) {
  const auto server = MakeServer({.tls = GetParam()});
  GrpcLinkOptions options = LinkTo(Listen(*server), 1, kOtherSecret);
  options.tls = GetParam();
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.fatal.ok(); })) << ::testing::PrintToString(heard.downs);
  EXPECT_EQ(heard.fatal.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(heard.fatal.message()), HasSubstr("node2's secret"));
  EXPECT_THAT(std::string(heard.fatal.message()), HasSubstr("token"));
  EXPECT_EQ(heard.ups, 0);
}

TEST_P(WrongSecret, LetsNeitherOfTwoUsersSeeTheOthersJob) {
  const auto server =
      MakeServer({.owners = {{"ann", kSecret}, {"ben", kOtherSecret}}, .tls = GetParam()});
  const int port = Listen(*server);
  GrpcLinkOptions ann = LinkTo(port, 1, kSecret), ben = LinkTo(port, 2, kOtherSecret);
  ann.tls = ben.tls = GetParam();
  Heard of_ann, of_ben;
  const auto link_of_ann = Open(ann, of_ann), link_of_ben = Open(ben, of_ben);
  link_of_ann->SendReport(JoiningReport());
  link_of_ben->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] {
    return of_ann.assignment() != nullptr && of_ben.assignment() != nullptr;
  })) << ::testing::PrintToString(of_ann.downs)
      << ::testing::PrintToString(of_ben.downs);
  EXPECT_EQ(server->table().FindState({"ann", "j7"})->nodes.size(), 1u);
  EXPECT_EQ(server->table().FindState({"ben", "j7"})->nodes.size(), 1u);
}

TEST_P(WrongSecret, OfAThirdUserIsRefusedByAServerOfTwo) {
  const auto server =
      MakeServer({.owners = {{"ann", kSecret}, {"ben", kOtherSecret}}, .tls = GetParam()});
  GrpcLinkOptions options = LinkTo(Listen(*server), 1, "the secret of a third user");
  options.tls = GetParam();
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.fatal.ok(); }));
  EXPECT_EQ(heard.fatal.code(), absl::StatusCode::kPermissionDenied);
}

INSTANTIATE_TEST_SUITE_P(Tls, WrongSecret, ::testing::Values(TlsMode::kOn, TlsMode::kOff),
                         [](const auto& info) {
                           return info.param == TlsMode::kOn ? "On" : "Off";
                         });

TEST_F(RendezvousServerTest, WithoutTlsIsGivenUpByAnAgentWithTls) {
  const auto server = MakeServer({.tls = TlsMode::kOff});
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.fatal.ok(); })) << ::testing::PrintToString(heard.downs);
  EXPECT_EQ(heard.fatal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(heard.fatal.message()), HasSubstr("--tls"));
}

TEST_F(RendezvousServerTest, WithTlsIsNamedAsAPossibleCauseByAnAgentWithout) {
  const auto server = MakeServer({.tls = TlsMode::kOn});
  GrpcLinkOptions options = LinkTo(Listen(*server));
  options.tls = TlsMode::kOff;
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_THAT(heard.downs[0], HasSubstr("--tls"));
  EXPECT_TRUE(heard.fatal.ok());
}

// A program that answers every connection with `greeting`.
class Stranger {
 public:
  Stranger(asio::io_context& loop, std::string greeting)
      : acceptor_(loop, {asio::ip::make_address("127.0.0.1"), 0}), greeting_(std::move(greeting)) {
    Accept();
  }
  int port() const { return acceptor_.local_endpoint().port(); }

 private:
  void Accept() {
    acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
      if (error) return;
      asio::error_code ignored;
      asio::write(socket, asio::buffer(greeting_), ignored);
      sockets_.push_back(std::move(socket));
      Accept();
    });
  }
  asio::ip::tcp::acceptor acceptor_;
  std::string greeting_;
  std::vector<asio::ip::tcp::socket> sockets_;
};

class StrangerOnThePort : public RendezvousServerTest,
                          public ::testing::WithParamInterface<TlsMode> {};

TEST_P(StrangerOnThePort, IsRecognised) {
  Stranger stranger(loop(), "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  GrpcLinkOptions options = LinkTo(stranger.port());
  options.tls = GetParam();
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.fatal.ok(); })) << ::testing::PrintToString(heard.downs);
  EXPECT_EQ(heard.fatal.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(heard.fatal.message()), HasSubstr("another program"));
}

INSTANTIATE_TEST_SUITE_P(Tls, StrangerOnThePort, ::testing::Values(TlsMode::kOn, TlsMode::kOff),
                         [](const auto& info) {
                           return info.param == TlsMode::kOn ? "On" : "Off";
                         });

TEST_F(RendezvousServerTest, IsReportedWhenItDoesNotAnswer) {
  Stranger stranger(loop(), "");
  GrpcLinkOptions options = LinkTo(stranger.port());
  options.attempt_timeout = absl::Milliseconds(100);
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_THAT(heard.downs[0], HasSubstr("no answer"));
  EXPECT_TRUE(heard.fatal.ok());
}

TEST_F(RendezvousServerTest, IsWaitedForUntilItListens) {
  const int port = FreedPort();
  Heard heard;
  const auto link = Open(LinkTo(port), heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_THAT(heard.downs[0], HasSubstr("connection refused"));
  EXPECT_THAT(heard.downs[0], HasSubstr(absl::StrCat("127.0.0.1:", port)));
  const auto server = MakeServer();
  Listen(*server, port);
  EXPECT_TRUE(RunUntil([&] { return heard.is_up; })) << ::testing::PrintToString(heard.downs);
}

TEST_F(RendezvousServerTest, NamesAnEndpointThatCannotBeResolved) {
  GrpcLinkOptions options = LinkTo(1);
  options.host = "no such name";
  Heard heard;
  const auto link = Open(options, heard);
  ASSERT_TRUE(RunUntil([&] { return !heard.downs.empty(); }));
  EXPECT_THAT(heard.downs[0], HasSubstr("cannot resolve no such name"));
}

TEST_F(RendezvousServerTest, IsAttendedAgainAfterARestart) {
  auto server = MakeServer({.term = ServerTerm(1)});
  const int port = Listen(*server);
  Heard heard;
  const auto link = Open(LinkTo(port), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  server = nullptr;
  ASSERT_TRUE(RunUntil([&] { return !heard.is_up; }));
  server = MakeServer({.term = ServerTerm(2)});
  Listen(*server, port);
  ASSERT_TRUE(RunUntil([&] {
    return heard.ups == 2 && heard.directives.back().term == ServerTerm(2);
  })) << ::testing::PrintToString(heard.downs);
}

TEST_F(RendezvousServerTest, IsNotAttendedByAnAgentThatKnowsANewerOne) {
  auto server = MakeServer({.term = ServerTerm(2)});
  const int port = Listen(*server);
  Heard heard;
  const auto link = Open(LinkTo(port), heard);
  ASSERT_TRUE(RunUntil([&] { return heard.is_up; }));
  server = nullptr;
  server = MakeServer({.term = ServerTerm(1)});
  Listen(*server, port);
  ASSERT_TRUE(RunUntil([&] {
    return !heard.downs.empty() && heard.downs.back().find("older") != std::string::npos;
  }));
  EXPECT_EQ(heard.ups, 1);
}

TEST_F(RendezvousServerTest, AnswersTheRequestsInFlightWhenItIsLost) {
  auto server = MakeServer();
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  link->SendStoreRequest({.request_id = 4,
                          .round = heard.assignment()->round,
                          .operation = StoreWait{{"never"}, absl::Minutes(5)},
                          .instance = heard.assignment()->instance});
  RunReady();
  server = nullptr;
  ASSERT_TRUE(RunUntil([&] { return !heard.replies.empty(); }));
  EXPECT_EQ(heard.replies[0].request_id, 4u);
  EXPECT_EQ(heard.replies[0].status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(RendezvousServerTest, KeepsTheNewerStreamOfAnAgent) {
  const auto server = MakeServer();
  const int port = Listen(*server);
  Heard first, second;
  auto older = Open(LinkTo(port), first);
  ASSERT_TRUE(RunUntil([&] { return first.is_up; }));
  const auto newer = Open(LinkTo(port), second);
  ASSERT_TRUE(RunUntil([&] { return second.is_up && !first.is_up; }));
  older.reset();
  newer->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return second.assignment() != nullptr; }));
  ASSERT_TRUE(RunUntil([&] { return server->num_streams() == 1; }));
  EXPECT_TRUE(server->table().FindState({"", "j7"})->nodes.at(Incarnation(1)).connected);
}

TEST_F(RendezvousServerTest, TellsItsAgentsBeforeItsHostLeaves) {
  auto server = MakeServer();
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  const size_t before = heard.directives.size();
  server->HostLeaving({.signal = 2, .ends_job = true, .reason = "interrupted"}, "server1");
  bool closed = false;
  server->Shutdown(absl::Milliseconds(200), [&] {
    closed = true;
    server.reset();
  });
  ASSERT_TRUE(RunUntil([&] { return closed && !heard.is_up; }));
  EXPECT_GT(heard.directives.size(), before);
}

TEST_F(RendezvousServerTest, CarriesSeveralOfTheLargestValuesInOneReply) {
  const auto server = MakeServer();
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  const Round round = heard.assignment()->round;
  const Instance instance = heard.assignment()->instance;
  const std::vector<std::string> keys = {"a", "b", "c", "d", "e", "f", "g", "h"};
  uint64_t id = 0;
  for (const std::string& key : keys) {
    link->SendStoreRequest(
        {++id, round, StoreSet{key, std::string(kMaxStoreValueBytes, key.front())}, instance});
  }
  link->SendStoreRequest({++id, round, StoreWait{keys, absl::Seconds(30)}, instance});
  ASSERT_TRUE(RunUntil([&] { return heard.replies.size() == id; }));
  EXPECT_EQ(heard.replies.back().status, absl::OkStatus());
  EXPECT_EQ(heard.replies.back().values.size(), keys.size());
  EXPECT_EQ(heard.ups, 1) << "the stream held";
}

// What an agent says whose worker runs.
AgentReport RunningReport(const Assignment& assignment, uint64_t sequence) {
  AgentReport report = JoiningReport(sequence);
  report.phase = AgentPhase::kRunning;
  report.round = assignment.round;
  report.instance = assignment.instance;
  return report;
}

TEST_F(RendezvousServerTest, HearsRenewalsAndAnswersThem) {
  LeaseSettings lease;
  lease.renew_interval = absl::ZeroDuration();
  const auto server = MakeServer({.lease = lease});
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  const Assignment assignment = *heard.assignment();
  for (uint64_t sequence = 2; sequence < 7; ++sequence) {
    link->SendReport(RunningReport(assignment, sequence));
    ASSERT_TRUE(RunUntil([&] { return heard.directives.back().report_sequence == sequence; }));
    EXPECT_TRUE(std::holds_alternative<RunRound>(heard.directives.back().body));
  }
  for (size_t i = 1; i < heard.directives.size(); ++i) {
    EXPECT_GT(heard.directives[i].revision, heard.directives[i - 1].revision);
  }
}

TEST_F(RendezvousServerTest, SaysHowLongItsLeasesAreBeforeTheLinkIsUp) {
  LeaseSettings lease;
  lease.duration = absl::Seconds(42);
  const auto server = MakeServer({.lease = lease});
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  ASSERT_TRUE(RunUntil([&] { return heard.ups == 1; }));
  EXPECT_EQ(heard.lease, absl::Seconds(42));
}

TEST_F(RendezvousServerTest, IsNotToldTheSameMoreOftenThanItWants) {
  const auto server = MakeServer();
  Heard heard;
  const auto link = Open(LinkTo(Listen(*server)), heard);
  link->SendReport(JoiningReport());
  ASSERT_TRUE(RunUntil([&] { return heard.assignment() != nullptr; }));
  const Assignment assignment = *heard.assignment();
  for (uint64_t sequence = 2; sequence < 100; ++sequence) {
    link->SendReport(RunningReport(assignment, sequence));
    loop().run_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(RunUntil([&] { return heard.directives.back().report_sequence >= 2; }));
  EXPECT_LT(heard.directives.size(), 10u);
}

// What happens to the workers of a node when a stranger takes the port of a server that is gone.
TEST_F(RendezvousServerTest, IsWaitedForWhileAStrangerHasItsPort) {
  auto server = MakeServer();
  const int port = Listen(*server);
  Heard heard;
  const auto link = Open(LinkTo(port), heard);
  ASSERT_TRUE(RunUntil([&] { return heard.is_up; }));
  server = nullptr;
  ASSERT_TRUE(RunUntil([&] { return !heard.is_up; }));
  {
    const auto impostor = MakeServer({.owners = {{"", kOtherSecret}}});
    Listen(*impostor, port);
    ASSERT_TRUE(RunUntil([&] { return heard.downs.back().find("secret") != std::string::npos; }));
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < until) loop().run_one_until(until);
    EXPECT_TRUE(heard.fatal.ok()) << heard.fatal;
  }
  server = MakeServer();
  Listen(*server, port);
  EXPECT_TRUE(RunUntil([&] { return heard.ups == 2; })) << ::testing::PrintToString(heard.downs);
}

// Connections of somebody who says nothing.
class Crowd {
 public:
  Crowd(asio::io_context& loop, int port, int size) {
    for (int i = 0; i < size; ++i) {
      sockets_.emplace_back(loop);
      sockets_.back().connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
      sockets_.back().non_blocking(true);
    }
  }
  int NumClosed() {
    int closed = 0;
    for (asio::ip::tcp::socket& socket : sockets_) {
      char bytes[64];
      asio::error_code error;
      while (socket.read_some(asio::buffer(bytes), error) > 0) {
      }
      closed += error != asio::error::would_block ? 1 : 0;
    }
    return closed;
  }

 private:
  std::vector<asio::ip::tcp::socket> sockets_;
};

class SilentCrowd : public RendezvousServerTest, public ::testing::WithParamInterface<TlsMode> {};

TEST_P(SilentCrowd, IsClosedWithinTheTimeOfAHandshake) {
  const auto server = MakeServer({.tls = GetParam(), .handshake_timeout = absl::Milliseconds(300)});
  const int port = Listen(*server);
  Crowd crowd(loop(), port, 50);
  EXPECT_TRUE(RunUntil([&] {
    loop().run_for(std::chrono::milliseconds(20));
    return crowd.NumClosed() == 50;
  })) << crowd.NumClosed();
}

TEST_P(SilentCrowd, LeavesDescriptorsToTheProcessAndDoesNotShutAgentsOut) {
  const UniqueFd next(::dup(0));
  constexpr int kRoom = 60;
  const auto server =
      MakeServer({.tls = GetParam(),
                  .handshake_timeout = absl::Milliseconds(500),
                  .reserved_descriptors = RaiseDescriptorLimit() - next.get() - kRoom - 200});
  const int port = Listen(*server);
  Crowd crowd(loop(), port, 200);  // both ends are in this process
  EXPECT_TRUE(RunUntil([&] {
    loop().run_for(std::chrono::milliseconds(20));
    return crowd.NumClosed() > 0;
  }));
  GrpcLinkOptions options = LinkTo(port);
  options.tls = GetParam();
  Heard heard;
  const auto link = Open(options, heard);
  EXPECT_TRUE(RunUntil([&] { return heard.is_up; })) << ::testing::PrintToString(heard.downs);
}

INSTANTIATE_TEST_SUITE_P(Tls, SilentCrowd, ::testing::Values(TlsMode::kOn, TlsMode::kOff),
                         [](const auto& info) {
                           return info.param == TlsMode::kOn ? "On" : "Off";
                         });

// A peer that speaks the messages but follows no rule. Its calls block, so the loop runs on a
// thread of its own.
class RawPeer : public RendezvousServerTest {
 protected:
  void Start(RendezvousServerOptions options) {
    options.tls = TlsMode::kOff;
    server_ = MakeServer(options);
    const int port = Listen(*server_);
    thread_ = std::thread([this] { loop().run(); });
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    stub_ = proto::Rendezvous::NewStub(channel_);
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    stream_ = stub_->Attend(&context_);
  }
  void TearDown() override {
    loop().stop();
    thread_.join();
    server_.reset();
  }
  proto::FromAgent Hello() {
    proto::FromAgent message;
    proto::Hello* hello = message.mutable_hello();
    hello->set_protocol_version(kProtocolVersion);
    hello->set_run_id("j7");
    hello->set_incarnation(1);
    hello->set_nonce(std::string(kNonceBytes, 'n'));
    hello->set_role(proto::ROLE_AGENT);
    hello->set_key_name(ChannelName(DeriveChannelKey(kSecret)));
    hello->set_node_name("node2");
    return message;
  }
  bool Attend() {
    stream_->Write(Hello());
    proto::FromServer challenge, accepted;
    if (!stream_->Read(&challenge)) return false;
    proto::FromAgent proof;
    proof.mutable_proof()->set_proof(
        ProveAsAgent(DeriveJobKey(kSecret, "j7"), {.protocol_version = kProtocolVersion,
                                                   .run_id = "j7",
                                                   .incarnation = Incarnation(1),
                                                   .role = proto::ROLE_AGENT,
                                                   .agent_nonce = std::string(kNonceBytes, 'n'),
                                                   .server_nonce = challenge.challenge().nonce()}));
    stream_->Write(proof);
    return stream_->Read(&accepted) && accepted.has_accepted();
  }
  // How the server ends the stream.
  grpc::StatusCode End() {
    proto::FromServer message;
    while (stream_->Read(&message)) {
    }
    return stream_->Finish().error_code();
  }

  std::unique_ptr<RendezvousServer> server_;
  std::thread thread_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::FromAgent, proto::FromServer>> stream_;
};

TEST_F(RawPeer, IsTurnedAwayWhenItSaysNothing) {
  Start({.handshake_timeout = absl::Seconds(1)});
  EXPECT_EQ(End(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(RawPeer, IsTurnedAwayWhenItReportsWithoutProof) {
  Start({});
  proto::FromAgent message;
  Encode(FencedReport{Incarnation(1), ServerTerm(0), JoiningReport()}, message.mutable_report());
  stream_->Write(message);
  EXPECT_EQ(End(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(RawPeer, IsTurnedAwayWithAFalseProof) {
  Start({});
  stream_->Write(Hello());
  proto::FromAgent proof;
  proof.mutable_proof()->set_proof(std::string(32, 'p'));
  stream_->Write(proof);
  EXPECT_EQ(End(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(RawPeer, IsTurnedAwayWithAnEmptyProofBeforeHello) {
  Start({});
  proto::FromAgent proof;
  proof.mutable_proof();
  stream_->Write(proof);
  EXPECT_EQ(End(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RawPeer, IsTurnedAwayWithAnotherVersion) {
  Start({});
  proto::FromAgent hello = Hello();
  hello.mutable_hello()->set_protocol_version(kProtocolVersion + 1);
  stream_->Write(hello);
  EXPECT_EQ(End(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RawPeer, IsTurnedAwayWithAMalformedReport) {
  Start({});
  ASSERT_TRUE(Attend());
  proto::FromAgent message;
  message.mutable_report()->set_incarnation(1);
  stream_->Write(message);
  EXPECT_EQ(End(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RawPeer, IsTurnedAwayWhenItSpeaksForAnotherAgent) {
  Start({});
  ASSERT_TRUE(Attend());
  proto::FromAgent message;
  Encode(FencedReport{Incarnation(2), ServerTerm(0), JoiningReport()}, message.mutable_report());
  stream_->Write(message);
  EXPECT_EQ(End(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RawPeer, IsTurnedAwayByAServerThatIsOlderThanTheNewestItHeard) {
  Start({.term = ServerTerm(3)});
  ASSERT_TRUE(Attend());
  proto::FromAgent message;
  Encode(FencedReport{Incarnation(1), ServerTerm(4), JoiningReport()}, message.mutable_report());
  stream_->Write(message);
  EXPECT_EQ(End(), grpc::StatusCode::ABORTED);
}

TEST_F(RawPeer, IsGivenUpWhenItLeavesItsRepliesUnread) {
  Start({});
  ASSERT_TRUE(Attend());
  proto::FromAgent report;
  Encode(FencedReport{Incarnation(1), ServerTerm(0), JoiningReport()}, report.mutable_report());
  stream_->Write(report);
  proto::FromServer directive;
  ASSERT_TRUE(stream_->Read(&directive) && directive.directive().has_run_round());
  const Round round(directive.directive().run_round().round());
  const Instance instance(directive.directive().instance());
  uint64_t id = 0;
  const auto ask = [&](StoreOperation operation) {
    proto::FromAgent message;
    Encode(StoreRequest{++id, round, std::move(operation), instance}, message.mutable_store());
    stream_->Write(message);
  };
  constexpr size_t kMany = 2 * Outbox::kMaxBytes / kMaxStoreValueBytes;
  for (size_t i = 0; i < kMany; ++i) ask(StoreWait{{"later"}, absl::Seconds(30)});
  ask(StoreSet{"later", std::string(kMaxStoreValueBytes, 'v')});
  EXPECT_EQ(End(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RawPeer, GetsARefusalForAMalformedStoreRequestAndMayGoOn) {
  Start({});
  ASSERT_TRUE(Attend());
  proto::FromAgent message;
  message.mutable_store()->set_request_id(6);
  stream_->Write(message);
  proto::FromServer reply;
  ASSERT_TRUE(stream_->Read(&reply));
  EXPECT_EQ(reply.store().request_id(), 6u);
  EXPECT_EQ(reply.store().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  stream_->WritesDone();
  EXPECT_EQ(End(), grpc::StatusCode::OK);
}

}  // namespace
}  // namespace muster::rendezvous
