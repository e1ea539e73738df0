#include "muster/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "proto/agent.pb.h"
#include "proto/io/store_wire.h"
#include "proto/spec/worker_env.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/operation_ring.h"
#include "worker_runtime/runtime/agent_client.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Speaks the agent's end of the socket with a store in memory, one thread per worker.
class FakeAgent {
 public:
  explicit FakeAgent(Round round) : round_(round) {
    std::string pattern = std::filesystem::temp_directory_path() / "muster_agent_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/agent";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeAgent() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (const int fd : connections_) shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : connections_) close(fd);
    close(listener_);
    std::filesystem::remove_all(directory_);
  }

  const std::string& path() const { return path_; }

 private:
  void Accept() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      connections_.push_back(fd);
      threads_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  static bool ReadAll(int fd, char* data, size_t size) {
    return size == 0 || recv(fd, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }

  void Serve(int fd) {
    uint32_t size = 0;
    while (ReadAll(fd, reinterpret_cast<char*>(&size), 4)) {
      std::string body(size, '\0');
      proto::WorkerMessage message;
      if (!ReadAll(fd, body.data(), size) || !message.ParseFromString(body)) return;
      if (message.has_hello() && message.hello().round() != round_.value()) {
        shutdown(fd, SHUT_RDWR);
        return;
      }
      if (message.has_hello() || message.has_store()) Reply(fd, message);
    }
  }

  void Reply(int fd, const proto::WorkerMessage& message) {
    proto::WorkerReply reply;
    if (message.has_hello()) {
      reply.mutable_welcome()->set_round(round_.value());
    } else {
      Encode(Perform(*Decode(message.store())), reply.mutable_store());
    }
    const std::string body = reply.SerializeAsString();
    const uint32_t size = static_cast<uint32_t>(body.size());
    send(fd, &size, 4, MSG_NOSIGNAL);
    send(fd, body.data(), body.size(), MSG_NOSIGNAL);
  }

  StoreReply Perform(const StoreRequest& request) {
    StoreReply reply{.request_id = request.request_id};
    if (const auto* set = std::get_if<StoreSet>(&request.operation)) {
      reply.status = store_.Set(set->key, set->value, {});
    } else if (const auto* wait = std::get_if<StoreWait>(&request.operation)) {
      auto value = store_.Wait(wait->keys[0], MonoNow() + wait->timeout);
      reply.status = value.status();
      if (value.ok()) reply.values = {*value};
    }
    return reply;
  }

  const Round round_;
  std::string directory_;
  std::string path_;
  int listener_ = -1;
  comm::MemoryStore store_;
  std::thread acceptor_;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;
};

EnvironmentMap WorkerEnvironment(const FakeAgent& agent, int rank, int size) {
  WorkerEnv env;
  env.rank = Rank(rank);
  env.local_rank = LocalRank(rank);
  env.world_size = size;
  env.local_world_size = size;
  env.role_rank = rank;
  env.role_world_size = size;
  env.master_addr = "127.0.0.1";
  env.restart_count = 3;
  env.run_id = "j7";
  env.round = Round(2);
  env.agent_socket = agent.path();
  return EncodeWorkerEnv(env, {});
}

TEST(Runtime, IsOneRankOfOneWithoutALauncher) {
  auto runtime = Runtime::FromEnvironment(EnvironmentMap{});
  ASSERT_THAT(runtime, IsOk());
  EXPECT_EQ((*runtime)->rank(), 0);
  EXPECT_EQ((*runtime)->size(), 1);
  auto world = (*runtime)->MakeCommunicator("world");
  ASSERT_THAT(world, IsOk());
  std::vector<float> data = {1, 2, 3};
  EXPECT_THAT((*world)->AllReduce(BufferOf(data)).Wait(), IsOk());
  EXPECT_THAT(data, ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT((*runtime)->Finish(10), IsOk());
}

TEST(Runtime, MarksProgressAndOperationsOnTheBoardOfItsAgent) {
  const FakeAgent agent(Round(2));
  const testing::TemporaryDirectory directory;
  BoardHeader header = NewBoardHeader();
  std::string bytes(kBoardBytes, '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  testing::WriteFile(directory.File("board"), bytes);
  EnvironmentMap environment = WorkerEnvironment(agent, 0, 1);
  environment["MUSTER_BOARD"] = directory.File("board");
  auto runtime = Runtime::FromEnvironment(environment);
  ASSERT_THAT(runtime, IsOk());
  (*runtime)->SetProgress(5, Phase::kBackward);
  auto world = (*runtime)->MakeCommunicator("world");
  ASSERT_THAT(world, IsOk());
  ASSERT_THAT((*world)->Barrier().Wait(), IsOk());

  auto reader = comm::OperationRing::OpenBoard(directory.File("board"));
  ASSERT_THAT(reader, IsOk());
  const BoardSnapshot snapshot = (*reader)->Snapshot();
  EXPECT_EQ(snapshot.step, 5);
  EXPECT_EQ(snapshot.phase, Phase::kBackward);
  ASSERT_EQ(snapshot.operations.size(), 1u);
  EXPECT_EQ(Describe(snapshot, snapshot.operations[0]), "barrier #0 (group world), done");
}

TEST(Runtime, NamesABoardThatIsNone) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = WorkerEnvironment(agent, 0, 1);
  environment["MUSTER_BOARD"] = "/dev/null";
  EXPECT_THAT(Runtime::FromEnvironment(environment),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("MUSTER_BOARD=/dev/null")));
}

TEST(Runtime, SaysWhatToDoWhenTorchrunStartedIt) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = WorkerEnvironment(agent, 1, 4);
  std::erase_if(environment, [](const auto& entry) { return entry.first.starts_with("MUSTER_"); });
  EXPECT_THAT(Runtime::FromEnvironment(environment),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("RANK=1 and WORLD_SIZE=4"), HasSubstr("muster run"))));
}

TEST(Runtime, NamesTheSocketOfAnAgentThatIsGone) {
  EnvironmentMap environment;
  {
    const FakeAgent agent(Round(2));
    environment = WorkerEnvironment(agent, 0, 1);
  }
  EXPECT_THAT(
      Runtime::FromEnvironment(environment),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(environment["MUSTER_AGENT_SOCKET"])));
}

TEST(Runtime, SaysThatTheAgentRefusedAWorkerOfAnotherRound) {
  const FakeAgent agent(Round(5));
  EXPECT_THAT(Runtime::FromEnvironment(WorkerEnvironment(agent, 0, 1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another round than 2")));
}

TEST(Runtime, KeepsValuesInTheAgentsStore) {
  const FakeAgent agent(Round(2));
  auto a = Runtime::FromEnvironment(WorkerEnvironment(agent, 0, 2));
  auto b = Runtime::FromEnvironment(WorkerEnvironment(agent, 1, 2));
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  const MonoTime soon = MonoNow() + absl::Seconds(5);
  ASSERT_THAT((*a)->store().Set("key", "value", soon), IsOk());
  EXPECT_THAT((*b)->store().Wait("key", soon), IsOkAndHolds("value"));
  EXPECT_THAT((*b)->store().Wait("other", MonoNow() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Runtime, JoinsTheRanksOfAJobOverGloo) {
  FakeAgent agent(Round(2));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&agent, rank] {
      auto runtime = Runtime::FromEnvironment(WorkerEnvironment(agent, rank, 3));
      ASSERT_THAT(runtime, IsOk());
      EXPECT_EQ((*runtime)->restart_count(), 3);
      for (const std::string group : {"world", "again", "again"}) {
        auto communicator = (*runtime)->MakeCommunicator(group, "gloo");
        ASSERT_THAT(communicator, IsOk());
        std::vector<int64_t> sum = {rank};
        EXPECT_THAT((*communicator)->AllReduce(BufferOf(sum)).Wait(), IsOk());
        EXPECT_EQ(sum[0], 3);
        EXPECT_THAT((*communicator)->Barrier().Wait(), IsOk());
      }
      EXPECT_THAT((*runtime)->Finish(77), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Runtime, RefusesBackendsThatCannotServeTheJob) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = WorkerEnvironment(agent, 0, 2);
  environment["GLOO_SOCKET_IFNAME"] = "eth77";
  auto runtime = Runtime::FromEnvironment(environment);
  ASSERT_THAT(runtime, IsOk());
  EXPECT_THAT((*runtime)->MakeCommunicator("a", "loopback"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("threads of one process")));
  EXPECT_THAT((*runtime)->MakeCommunicator("b", "mpi"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loopback, gloo, nccl")));
  EXPECT_THAT((*runtime)->MakeCommunicator("c", "gloo"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("GLOO_SOCKET_IFNAME=eth77"), HasSubstr("lo (127.0.0.1)"))));
}

}  // namespace
}  // namespace muster
