// WorkerService: what a worker gets for its messages on the agent's Unix socket. A real socket, one
// loop, no agent.
#include "agent/worker_service.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "asio/io_context.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/agent.pb.h"
#include "proto/io/stop_wire.h"
#include "proto/io/store_wire.h"

namespace muster::agent {
namespace {

// A worker's end of the socket, blocking, driven between turns of the loop.
class Client {
 public:
  explicit Client(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{.tv_sec = 30};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Client() { close(fd_); }

  void SendBytes(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Send(const proto::WorkerMessage& message) {
    const std::string body = message.SerializeAsString();
    std::string frame(4, '\0');
    for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
    SendBytes(frame + body);
  }
  void Greet(int64_t round, int local_rank = 0, int64_t instance = 1) {
    proto::WorkerMessage message;
    message.mutable_hello()->set_local_rank(local_rank);
    message.mutable_hello()->set_protocol_version(1);
    message.mutable_hello()->set_instance(instance);
    message.mutable_hello()->set_round(round);
    Send(message);
  }

  // What has arrived; nullopt once the agent has closed.
  std::optional<proto::WorkerReply> Receive() {
    std::string header = Read(4);
    if (header.size() < 4) return std::nullopt;
    size_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(header[i]);
    proto::WorkerReply reply;
    EXPECT_TRUE(reply.ParseFromString(Read(size)));
    return reply;
  }

  // The reason for which it was refused; "" if it was not, or if the connection is not closed then.
  std::string Refusal() {
    std::optional<proto::WorkerReply> reply = Receive();
    while (reply && !reply->has_refused()) reply = Receive();
    return reply && !Receive() ? reply->refused().reason() : "";
  }

  // Reads on, whatever it is, until the agent's end is closed; false if it is not.
  bool IsClosedBehindWhatArrived() {
    while (true) {
      char bytes[4096];
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got <= 0) return got == 0 || errno == ECONNRESET;
    }
  }

 private:
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = size == 0 ? 0 : recv(fd_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(got < 0 ? 0 : got);
    return bytes;
  }
  int fd_;
};

class WorkerServiceTest : public ::testing::Test {
 protected:
  WorkerServiceTest()
      : directory_(std::filesystem::temp_directory_path() / ("wst-" + std::to_string(getpid()))),
        service_(loop_,
                 {.forward = [this](const StoreRequest& r) { forwarded_.push_back(r); },
                  .may_publish = [this] { return may_publish_; },
                  .may_speak =
                      [this](LocalRank worker, pid_t pid) {
                        EXPECT_EQ(pid, getpid());
                        return worker == LocalRank(7) ? may_speak_as_7_ : absl::OkStatus();
                      },
                  .on_hello = [this](LocalRank worker) { greeted_.push_back(worker); },
                  .on_silent_leave = [this](LocalRank worker) { left_silently_.push_back(worker); },
                  .on_promise = [this](LocalRank,
                                       WorkerPromise promise) { promises_.push_back(promise); }}) {
    std::filesystem::create_directory(directory_);
    EXPECT_TRUE(service_.Listen(Path()).ok());
    service_.StartRound(Round(3), Instance(1));
  }
  ~WorkerServiceTest() override { std::filesystem::remove_all(directory_); }

  std::string Path() const { return directory_ / "agent.sock"; }
  // All that has been sent, and all that comes of it.
  void Turn() {
    do loop_.restart();
    while (loop_.poll() > 0);
  }

  proto::WorkerMessage Get(uint64_t request_id, const std::string& key) {
    proto::WorkerMessage message;
    Encode(StoreRequest{.request_id = request_id, .operation = StoreGet{key}},
           message.mutable_store());
    return message;
  }

  void AnswerAll(const std::string& value) {
    while (num_answered_ < forwarded_.size()) {
      service_.OnReply({.request_id = forwarded_[num_answered_++].request_id, .values = {value}});
    }
  }

  std::filesystem::path directory_;
  asio::io_context loop_;
  absl::Status may_publish_;
  const absl::Status may_speak_as_7_ = absl::PermissionDeniedError("there is no local rank 7");
  std::vector<StoreRequest> forwarded_;
  size_t num_answered_ = 0;
  std::vector<LocalRank> left_silently_;
  std::vector<LocalRank> greeted_;
  std::vector<WorkerPromise> promises_;
  WorkerService service_;
};

TEST_F(WorkerServiceTest, WelcomesAWorkerOfItsRound) {
  Client worker(Path());
  worker.Greet(3);
  Turn();
  const auto reply = worker.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->welcome().round(), 3);
  EXPECT_EQ(greeted_.size(), 1u);
}

TEST_F(WorkerServiceTest, TurnsAwayAWorkerOfAnotherRound) {
  Client worker(Path());
  worker.Greet(2);
  Turn();
  EXPECT_TRUE(greeted_.empty());
  EXPECT_THAT(worker.Refusal(), testing::HasSubstr("is of round 2 of instance 1; expected"));
}

// Rounds of two instances have the same numbers.
TEST_F(WorkerServiceTest, TurnsAwayAWorkerOfAnotherInstance) {
  Client worker(Path());
  worker.Greet(3, 0, 2);
  Turn();
  EXPECT_TRUE(greeted_.empty());
  EXPECT_THAT(worker.Refusal(), testing::HasSubstr("of instance 2; expected"));
}

TEST_F(WorkerServiceTest, TurnsAwayWorkersThatDoNotGreetFirst) {
  Client worker(Path());
  worker.Send(Get(1, "key"));
  Turn();
  EXPECT_EQ(worker.Refusal(), "its first message was not a greeting");
  EXPECT_TRUE(forwarded_.empty());
}

TEST_F(WorkerServiceTest, TurnsAwayWhoMayNotSpeakAsThatWorkerAndSaysWhy) {
  Client child(Path());
  child.Greet(3, 7);
  child.Send(Get(1, "key"));
  Turn();
  EXPECT_EQ(child.Refusal(), "there is no local rank 7");
  EXPECT_TRUE(greeted_.empty());
  EXPECT_TRUE(forwarded_.empty());
  EXPECT_TRUE(left_silently_.empty());
}

TEST_F(WorkerServiceTest, TurnsAwayWhoSaysASecondTimeWhoItIs) {
  Client worker(Path());
  worker.Greet(3, 0);
  worker.Greet(3, 1);
  Turn();
  EXPECT_EQ(worker.Refusal(), "it has said hello before");
  EXPECT_THAT(greeted_, testing::ElementsAre(LocalRank(0)));
}

TEST_F(WorkerServiceTest, ClosesOnAFrameThatIsTooLongOrNoMessage) {
  Client huge(Path());
  huge.SendBytes("\xff\xff\xff\xff");
  Client garbage(Path());
  garbage.SendBytes(std::string("\x02\0\0\0\xff\xff", 6));
  Turn();
  EXPECT_FALSE(huge.Receive().has_value());
  EXPECT_FALSE(garbage.Receive().has_value());
}

TEST_F(WorkerServiceTest, ForwardsRequestsOfTwoWorkersUnderNumbersOfItsOwn) {
  Client a(Path());
  Client b(Path());
  a.Greet(3);
  b.Greet(3);
  Turn();
  a.Send(Get(1, "from a"));
  b.Send(Get(1, "from b"));
  Turn();
  ASSERT_EQ(forwarded_.size(), 2u);
  EXPECT_NE(forwarded_[0].request_id, forwarded_[1].request_id);
  EXPECT_EQ(forwarded_[0].round, Round(3));
}

TEST_F(WorkerServiceTest, GivesEachWorkerTheAnswerToItsOwnRequest) {
  Client a(Path());
  Client b(Path());
  a.Greet(3);
  b.Greet(3);
  Turn();
  (void)a.Receive();
  (void)b.Receive();
  a.Send(Get(7, "from a"));
  Turn();
  b.Send(Get(9, "from b"));
  Turn();
  ASSERT_EQ(forwarded_.size(), 2u);
  service_.OnReply({.request_id = forwarded_[1].request_id, .values = {"for b"}});
  service_.OnReply({.request_id = forwarded_[0].request_id, .values = {"for a"}});
  Turn();
  const auto for_a = a.Receive();
  const auto for_b = b.Receive();
  ASSERT_TRUE(for_a && for_b);
  EXPECT_EQ(for_a->store().request_id(), 7u);
  EXPECT_EQ(for_a->store().values(0), "for a");
  EXPECT_EQ(for_b->store().request_id(), 9u);
  EXPECT_EQ(for_b->store().values(0), "for b");
}

TEST_F(WorkerServiceTest, AnswersABadRequestItself) {
  Client worker(Path());
  worker.Greet(3);
  Turn();
  (void)worker.Receive();
  proto::WorkerMessage empty;
  empty.mutable_store()->set_request_id(5);
  worker.Send(empty);
  Turn();
  const auto reply = worker.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->store().request_id(), 5u);
  EXPECT_NE(reply->store().code(), 0);
  EXPECT_TRUE(forwarded_.empty());
}

TEST_F(WorkerServiceTest, TellsOfAWorkerThatLeavesWithoutAGoodbye) {
  {
    Client polite(Path());
    polite.Greet(3, 1);
    proto::WorkerMessage goodbye;
    goodbye.mutable_goodbye()->set_step(10);
    polite.Send(goodbye);
    Client silent(Path());
    silent.Greet(3, 2);
    Turn();
    EXPECT_THAT(left_silently_, testing::IsEmpty());
  }
  Turn();
  EXPECT_THAT(left_silently_, testing::ElementsAre(LocalRank(2)));
}

TEST_F(WorkerServiceTest, ReadsNoMoreOfAWorkerThatDoesNotReadItsAnswers) {
  Client worker(Path());
  worker.Greet(3);
  Turn();
  const std::string value(kMaxStoreValueBytes, 'v');
  for (uint64_t id = 1; id <= 4; ++id) {
    worker.Send(Get(id, "key"));
    Turn();
    AnswerAll(value);
  }
  ASSERT_LT(forwarded_.size(), 4u) << "requests were taken while answers lay unread";
  (void)worker.Receive();  // the welcome
  for (uint64_t id = 1; id <= 4; ++id) {
    std::optional<proto::WorkerReply> reply;
    std::atomic<bool> is_read = false;
    std::thread reader([&] {
      reply = worker.Receive();
      is_read = true;
    });
    while (!is_read) {
      Turn();
      AnswerAll(value);
    }
    reader.join();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->store().request_id(), id);
  }
}

TEST_F(WorkerServiceTest, DropsAWorkerThatLeavesTooMuchUnread) {
  Client worker(Path());
  worker.Greet(3);
  Turn();
  constexpr uint64_t kMany = kUnreadBytesMax / kMaxStoreValueBytes + 2;
  for (uint64_t id = 1; id <= kMany; ++id) worker.Send(Get(id, "key"));
  Turn();
  ASSERT_EQ(forwarded_.size(), kMany) << "nothing is unread yet, so all are taken";
  for (const StoreRequest& request : forwarded_) {
    service_.OnReply(
        {.request_id = request.request_id, .values = {std::string(kMaxStoreValueBytes, 'v')}});
  }
  Turn();
  EXPECT_TRUE(worker.IsClosedBehindWhatArrived());
}

TEST_F(WorkerServiceTest, DropsWorkersOfTheRoundBefore) {
  Client worker(Path());
  worker.Greet(3);
  Turn();
  (void)worker.Receive();
  service_.StartRound(Round(4), Instance(1));
  Turn();
  EXPECT_FALSE(worker.Receive().has_value());
}

TEST_F(WorkerServiceTest, LetsRequestsWaitWhileTheLeaseDoesNotHold) {
  Client client(Path());
  client.Greet(3);
  may_publish_ = absl::UnavailableError("not now: nobody answers");
  client.Send(Get(1, "a"));
  client.Send(Get(2, "b"));
  Turn();
  EXPECT_TRUE(forwarded_.empty());
  service_.OnLease();
  EXPECT_TRUE(forwarded_.empty());
  may_publish_ = absl::OkStatus();
  service_.OnLease();
  EXPECT_EQ(forwarded_.size(), 2u);
}

TEST_F(WorkerServiceTest, RefusesACommitWhileTheLeaseDoesNotHold) {
  Client client(Path());
  client.Greet(3);
  may_publish_ = absl::UnavailableError("not now: nobody answers");
  proto::WorkerMessage message;
  Encode(StoreRequest{.request_id = 1, .operation = CommitCheckpoint()}, message.mutable_store());
  client.Send(message);
  Turn();
  EXPECT_TRUE(client.Receive()->has_welcome());
  const auto reply = Decode(client.Receive()->store());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, may_publish_);
  EXPECT_TRUE(forwarded_.empty());
}

proto::WorkerMessage ObeysStop() {
  proto::WorkerMessage message;
  message.mutable_obeys_stop();
  return message;
}

proto::WorkerMessage StopFloor(int64_t step) {
  proto::WorkerMessage message;
  message.mutable_stop_floor()->set_step(step);
  return message;
}

TEST_F(WorkerServiceTest, TellsOfAStopThoseWhoObey) {
  Client obeys(Path()), does_not(Path());
  obeys.Greet(3, 0);
  does_not.Greet(3, 1);
  obeys.Send(ObeysStop());
  Turn();
  obeys.Receive();  // welcome
  does_not.Receive();
  service_.TellStop({.is_stopping = true, .step = 7, .reason = "maintenance"});
  Turn();
  const auto told = obeys.Receive();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(Decode(told->stop()).value(),
            (StopState{.is_stopping = true, .step = 7, .reason = "maintenance"}));
  service_.Close();
  Turn();
  EXPECT_FALSE(does_not.Receive().has_value());
}

TEST_F(WorkerServiceTest, PassesOnWhatAWorkerPromises) {
  Client worker(Path());
  worker.Greet(3);
  worker.Send(ObeysStop());
  worker.Send(StopFloor(-1));
  Turn();
  EXPECT_THAT(promises_, testing::ElementsAre(WorkerPromise{true, {}}, WorkerPromise{true, -1}));
}

TEST_F(WorkerServiceTest, APromiseOfAStepThatNobodyReachesCountsForNothing) {
  Client worker(Path());
  worker.Greet(3);
  worker.Send(ObeysStop());
  worker.Send(StopFloor(kMaxStep));
  worker.Send(StopFloor(1'000'000'000'000));
  Turn();
  EXPECT_THAT(worker.Refusal(), testing::HasSubstr("it is at step 1000000000000; steps are"));
  EXPECT_THAT(promises_, testing::ElementsAre(WorkerPromise{true, {}},
                                              WorkerPromise{true, kMaxStep}, WorkerPromise()));
}

TEST_F(WorkerServiceTest, AGoodbyeAfterAStepThatNobodyReachesIsNone) {
  Client worker(Path());
  worker.Greet(3);
  proto::WorkerMessage goodbye;
  goodbye.mutable_goodbye()->set_step(1'000'000'000'000);
  worker.Send(goodbye);
  Turn();
  EXPECT_THAT(worker.Refusal(), testing::HasSubstr("it is at step 1000000000000; steps are"));
  EXPECT_TRUE(promises_.empty());
}

TEST_F(WorkerServiceTest, ACommitOfAStepThatNobodyReachesIsRefused) {
  Client worker(Path());
  worker.Greet(3);
  proto::WorkerMessage message;
  Encode(StoreRequest{.request_id = 1, .operation = CommitCheckpoint{.step = 1'000'000'000'000}},
         message.mutable_store());
  worker.Send(message);
  Turn();
  EXPECT_TRUE(worker.Receive()->has_welcome());
  const auto reply = Decode(worker.Receive()->store());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(reply->status.message()), testing::HasSubstr("commit.step"));
  EXPECT_TRUE(forwarded_.empty());
}

TEST_F(WorkerServiceTest, AWorkerWhoseConnectionBreaksHasPromisedNothing) {
  {
    Client worker(Path());
    worker.Greet(3);
    worker.Send(ObeysStop());
    worker.Send(StopFloor(4));
    Turn();
  }
  Turn();
  ASSERT_FALSE(promises_.empty());
  EXPECT_EQ(promises_.back(), WorkerPromise());
}

proto::WorkerMessage SurvivesRounds() {
  proto::WorkerMessage message;
  message.mutable_survives_rounds();
  return message;
}

proto::WorkerMessage AwaitsRound() {
  proto::WorkerMessage message;
  message.mutable_awaits_round();
  return message;
}

TEST_F(WorkerServiceTest, TellsOfTheEndOfARoundThoseWhoSurviveItAlsoIfTheySaySoLater) {
  Client early(Path()), late(Path()), does_not(Path());
  early.Greet(3, 0);
  late.Greet(3, 1);
  does_not.Greet(3, 2);
  early.Send(SurvivesRounds());
  Turn();
  for (Client* client : {&early, &late, &does_not}) (void)client->Receive();  // welcome
  service_.TellRoundOver(true, "rank 2 failed");
  Turn();
  late.Send(SurvivesRounds());
  Turn();
  for (Client* client : {&early, &late}) {
    const auto told = client->Receive();
    ASSERT_TRUE(told.has_value());
    EXPECT_TRUE(told->round_over().is_followed());
    EXPECT_EQ(told->round_over().reason(), "rank 2 failed");
  }
  service_.Close();
  Turn();
  EXPECT_FALSE(does_not.Receive().has_value());
}

TEST_F(WorkerServiceTest, AParkedWorkerStaysConnectedUntilItHasItsPlaceInTheNextRound) {
  Client parked(Path()), told(Path());
  parked.Greet(3, 0);
  told.Greet(3, 1);
  for (Client* client : {&parked, &told}) client->Send(SurvivesRounds());
  parked.Send(AwaitsRound());
  Turn();
  service_.TellRoundOver(true, "rank 2 failed");
  Turn();
  for (Client* client : {&parked, &told}) {
    (void)client->Receive();  // welcome
    EXPECT_TRUE(client->Receive()->has_round_over());
  }
  EXPECT_EQ(promises_.back(), (WorkerPromise{.survives = true, .awaits_round = true}));
  const size_t num_promises = promises_.size();

  service_.StartRound(Round(4), Instance(1));
  Turn();
  EXPECT_FALSE(told.Receive().has_value());  // it had not let go
  EXPECT_FALSE(service_.SendNextRound(LocalRank(1), {"RANK=5"}));
  EXPECT_TRUE(service_.SendNextRound(LocalRank(0), {"RANK=4", "MUSTER_ROUND=4"}));
  Turn();
  const auto place = parked.Receive();
  ASSERT_TRUE(place.has_value());
  EXPECT_THAT(place->next_round().environment(), testing::ElementsAre("RANK=4", "MUSTER_ROUND=4"));

  // Its old connection says no more of it, whatever becomes of that.
  Client again(Path());
  again.Greet(4, 0);
  again.Send(SurvivesRounds());
  parked.Send(AwaitsRound());
  Turn();
  EXPECT_EQ(promises_.back(), WorkerPromise{.survives = true});
  EXPECT_EQ(promises_.size(), num_promises + 1);
  EXPECT_TRUE(again.Receive()->has_welcome());
  EXPECT_THAT(left_silently_, testing::IsEmpty());
}

TEST_F(WorkerServiceTest, RefusesTheStoreToARoundThatIsOver) {
  Client worker(Path());
  worker.Greet(3);
  worker.Send(SurvivesRounds());
  Turn();
  service_.TellRoundOver(true, "rank 2 failed");
  worker.Send(Get(1, "key"));
  Turn();
  (void)worker.Receive();
  (void)worker.Receive();
  const auto reply = Decode(worker.Receive()->store());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(forwarded_.empty());
}

TEST_F(WorkerServiceTest, AWorkerThatSaysGoodbyeBeginsNothingMore) {
  {
    Client worker(Path());
    worker.Greet(3);
    worker.Send(ObeysStop());
    proto::WorkerMessage goodbye;
    goodbye.mutable_goodbye()->set_step(9);
    worker.Send(goodbye);
    Turn();
  }
  Turn();
  ASSERT_FALSE(promises_.empty());
  EXPECT_EQ(promises_.back(), (WorkerPromise{true, 9}));
}

}  // namespace
}  // namespace muster::agent
