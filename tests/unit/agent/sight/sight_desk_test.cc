// People at an agent's socket: by way of the server, and without it.
#include "agent/sight/sight_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "asio/io_context.hpp"
#include "asio/local/stream_protocol.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "proto/inquiry.pb.h"
#include "rendezvous/link/inquiry_wire.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using asio::local::stream_protocol;

class Desk : public ::testing::Test {
 protected:
  Desk()
      : desk_(loop_, {.ask_server = [this](const Inquiry& inquiry) { asked_.push_back(inquiry); },
                      .tell_server = [this](const InquiryReply& reply) { told_.push_back(reply); },
                      .own_page = [](const std::string& why) { return "own page: " + why; },
                      .way = [] { return "the way"; },
                      .look = [](const Inquiry&, auto then) { then({.body = "seen here"}); }}) {
    EXPECT_TRUE(desk_.Listen(path()).ok());
  }
  std::string path() const { return directory_.File("look.sock"); }

  template <typename Done>
  bool RunUntil(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      loop_.run_one_for(std::chrono::milliseconds(50));
      loop_.restart();
    }
    return true;
  }
  stream_protocol::socket Connect() {
    stream_protocol::socket socket(loop_);
    socket.connect(stream_protocol::endpoint(path()));
    return socket;
  }
  static void Send(stream_protocol::socket& socket, const Inquiry& inquiry) {
    proto::Inquiry message;
    rendezvous::Encode(inquiry, &message);
    const std::string body = message.SerializeAsString();
    std::string frame(4, '\0');
    for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
    asio::write(socket, asio::buffer(frame + body));
  }
  // Once it is there.
  InquiryAnswer Receive(stream_protocol::socket& socket) {
    EXPECT_TRUE(RunUntil([&] { return socket.available() >= 4; }));
    unsigned char header[4] = {};
    asio::read(socket, asio::buffer(header));
    const size_t size = header[0] | header[1] << 8 | header[2] << 16;
    EXPECT_TRUE(RunUntil([&] { return socket.available() >= size; }));
    std::string body(size, '\0');
    asio::read(socket, asio::buffer(body));
    proto::InquiryAnswer message;
    EXPECT_TRUE(message.ParseFromString(body));
    return *rendezvous::Decode(message);
  }

  asio::io_context loop_;
  testing::TemporaryDirectory directory_;
  std::vector<Inquiry> asked_;
  std::vector<InquiryReply> told_;
  SightDesk desk_;
};

TEST_F(Desk, TellsTheWayToTheServerWithoutIt) {
  auto socket = Connect();
  Send(socket, {.id = 70, .kind = InquiryKind::kWay});
  EXPECT_EQ(Receive(socket).page, "the way");
  EXPECT_TRUE(asked_.empty());
  desk_.OnInquiry({.id = 71, .kind = InquiryKind::kWay});
  EXPECT_TRUE(told_.empty());
}

TEST_F(Desk, SaysWhatIsWrongWithAQuestion) {
  auto socket = Connect();
  Send(socket, {.id = 70, .rank = -1});
  EXPECT_EQ(
      Receive(socket).status,
      absl::InvalidArgumentError("malformed message: inquiry.rank is -1, not in 0..2147483647"));
  Send(socket, {.id = 71, .kind = InquiryKind::kWay});
  EXPECT_EQ(Receive(socket).id, 71u) << "the connection goes on";
}

TEST_F(Desk, PassesOnWhatTheServerAnswers) {
  auto socket = Connect();
  Send(socket, {.id = 70});
  ASSERT_TRUE(RunUntil([&] { return asked_.size() == 1; }));
  desk_.OnAnswer({.id = asked_[0].id, .page = "page"});
  const InquiryAnswer answer = Receive(socket);
  EXPECT_EQ(answer.id, 70u) << "the number of the one who asks";
  EXPECT_EQ(answer.page, "page");
  // The same connection may ask again.
  Send(socket, {.id = 71});
  ASSERT_TRUE(RunUntil([&] { return asked_.size() == 2; }));
}

TEST_F(Desk, TellsWhatItKnowsWhereTheServerIsAway) {
  auto socket = Connect();
  Send(socket, {});
  ASSERT_TRUE(RunUntil([&] { return asked_.size() == 1; }));
  desk_.OnAnswer({.id = asked_[0].id, .status = absl::UnavailableError("no connection")});
  EXPECT_EQ(Receive(socket).page, "own page: no connection");
}

TEST_F(Desk, TellsWhatItKnowsWhereTheServerSaysNothing) {
  auto socket = Connect();
  Send(socket, {});
  EXPECT_EQ(Receive(socket).page, "own page: the rendezvous does not answer");
}

TEST_F(Desk, ShowsItsOwnWorkersWhereTheServerIsAway) {
  auto socket = Connect();
  Send(socket, {.kind = InquiryKind::kStacks});
  ASSERT_TRUE(RunUntil([&] { return asked_.size() == 1; }));
  desk_.OnAnswer({.id = asked_[0].id, .status = absl::UnavailableError("no connection")});
  const InquiryAnswer answer = Receive(socket);
  ASSERT_EQ(answer.parts.size(), 2u);
  EXPECT_EQ(answer.parts[0].body, "seen here");
  EXPECT_EQ(answer.parts[1].status, absl::UnavailableError("no connection"));
}

TEST_F(Desk, AnswersTheServer) {
  desk_.OnInquiry({.id = 5, .kind = InquiryKind::kStacks});
  ASSERT_TRUE(RunUntil([&] { return told_.size() == 1; }));
  EXPECT_EQ(told_[0].id, 5u);
  EXPECT_EQ(told_[0].part.body, "seen here");
}

TEST_F(Desk, ClosesAConnectionThatSendsNoFrameAndRefusesNonsenseInOne) {
  auto socket = Connect();
  asio::write(socket, asio::buffer(std::string("\x01\0\0\0\xff", 5)));
  EXPECT_EQ(Receive(socket).status.code(), absl::StatusCode::kInvalidArgument);
  asio::write(socket, asio::buffer(std::string("\xff\xff\xff\x7f")));
  asio::error_code error;
  socket.non_blocking(true);
  char byte = 0;
  EXPECT_TRUE(RunUntil([&] {
    socket.read_some(asio::buffer(&byte, 1), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  }));
}

TEST_F(Desk, HasRoomForOneMoreWhateverIsLeftOpen) {
  std::vector<stream_protocol::socket> open;
  for (size_t i = 0; i < 3 * kSightConnectionsMax; ++i) {
    open.push_back(Connect());
    loop_.poll();
    loop_.restart();
  }
  auto socket = Connect();
  Send(socket, {});
  EXPECT_TRUE(RunUntil([&] { return asked_.size() == 1; }));
}

}  // namespace
}  // namespace muster::agent
