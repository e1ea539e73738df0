// Rounds of one node, with a real guardian and log files, and a shell that remembers what it is
// told.
#include "agent/local_round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/unit/agent/console/log_pump_fixture.h"

namespace muster::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

class RecordingShell : public LocalRound::Shell {
 public:
  void Feed(Event event) override { events.push_back(std::move(event)); }
  void OnCannotStart(LocalRank local_rank, const absl::Status& why) override {
    failed[local_rank.value()] = std::string(why.message());
  }
  void OnPlaceOfKept(LocalRank local_rank, std::vector<std::string> environment) override {
    placed[local_rank.value()] = std::move(environment);
  }

  std::vector<Event> events;
  std::map<int, std::string> failed;
  std::map<int, std::vector<std::string>> placed;
};

class RoundHere : public LogPumpTest {
 protected:
  RoundHere() {
    Start({});
    options_.node = {.name = "node1", .address = "127.0.0.1", .local_world_size = 2};
    options_.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
    options_.worker_command = {"sh", "-c", "exit $((RANK + 3))"};
    options_.run_directory = directory_;
    options_.runtime_directory = directory_;
    auto handle = ForkGuardian();
    EXPECT_TRUE(handle.ok()) << handle.status();
    guardian_ = std::make_unique<GuardianClient>(
        loop_, *std::move(handle),
        GuardianListener{
            .on_spawned = [](uint64_t, pid_t, UniqueFd, bool) {},
            .on_spawn_failed = [](uint64_t, absl::Status status) { ADD_FAILURE() << status; },
            .on_exited =
                [this](const WorkerExit& exit) {
                  if (round_->programs().OnExited(exit)) return;
                  ended_[roster_.Find(exit.worker_id)->local_rank.value()] = exit.exit_code;
                },
            .on_warm = [](const WarmState&) {},
            .on_empty = [] {},
            .on_strays = [](const std::vector<pid_t>&) {},
            .on_lost = [](const std::string& reason) { ADD_FAILURE() << reason; }});
  }
  // Begins the round with a port of its own for the store.
  void Begin(const std::vector<LocalRank>& kept = {}) {
    round_ =
        std::make_unique<LocalRound>(loop_,
                                     LocalRound::Parts{.options = options_,
                                                       .roster = roster_,
                                                       .pump = *pump_,
                                                       .status = status_,
                                                       .hang_watch = hang_watch_,
                                                       .guardian = *guardian_,
                                                       .shell = shell_},
                                     [](StoreOperation, std::function<void(const StoreReply&)>) {});
    const Event reserved = round_->ReservePorts();
    ASSERT_TRUE(std::holds_alternative<PortsReserved>(reserved));
    EXPECT_THAT(std::get<PortsReserved>(reserved).worker_ports, SizeIs(2));
    roster_.StartRound(
        {.round = Round(0),
         .num_nodes = 1,
         .local_world_size = 2,
         .world_size = 2,
         .restart_count = 1,
         .master_address = "127.0.0.1",
         .master_port =
             master_port_ != 0 ? master_port_ : std::get<PortsReserved>(reserved).store_port},
        kept);
    round_->Start();
    EXPECT_TRUE(round_->is_starting());
  }
  void RunUntilStarted() {
    RunUntil([this] { return !round_->is_starting(); });
  }

  AgentOptions options_;
  int master_port_ = 0;
  WorkerRoster roster_;
  StatusLine status_{loop_, [](const std::string&) {}};
  HangWatch hang_watch_{
      loop_, {.is_on = false}, [](int, const std::string&) {}, [](const hangs::NodeWord&) {}};
  RecordingShell shell_;
  std::map<int, int> ended_;  // local rank to exit code
  std::unique_ptr<LocalRound> round_;
  std::unique_ptr<GuardianClient> guardian_;
};

TEST_F(RoundHere, StartsWorkersInTheirEnvironmentAndServesTheirStore) {
  Begin();
  RunUntil([this] { return ended_.size() == 2; });
  EXPECT_THAT(ended_, ElementsAre(Pair(0, 3), Pair(1, 4)));
  EXPECT_TRUE(round_->torch_store().is_serving());
  EXPECT_THAT(shell_.failed, IsEmpty());
}

TEST_F(RoundHere, GivesEachWorkerItsOwnErrorFileDevicesAndBoard) {
  options_.visible_devices = {"2", "5"};
  const std::string out = directory_ + "/own.";
  options_.worker_command = {"sh", "-c",
                             "echo $TORCHELASTIC_ERROR_FILE $CUDA_VISIBLE_DEVICES $MUSTER_BOARD"
                             " > \"$0$RANK\"",
                             out};
  Begin();
  RunUntil([this] { return ended_.size() == 2; });
  std::vector<std::vector<std::string>> own;
  for (const char* rank : {"0", "1"}) own.push_back(absl::StrSplit(ReadAll(out + rank), ' '));
  EXPECT_THAT(own[0], ElementsAre(HasSubstr("/0/error.json"), "2", Not(IsEmpty())));
  EXPECT_THAT(own[1], ElementsAre(HasSubstr("/1/error.json"), "5", Not(IsEmpty())));
  EXPECT_NE(own[0][2], own[1][2]);
}

TEST_F(RoundHere, GivesKeptWorkersTheirPlaceAndStartsTheOthers) {
  roster_.Add(LocalRank(1)).pid = 4711;
  Begin({LocalRank(1)});
  RunUntil([this] { return ended_.size() == 1; });
  EXPECT_THAT(ended_, ElementsAre(Pair(0, 3)));
  ASSERT_THAT(shell_.placed, SizeIs(1));
  EXPECT_THAT(shell_.placed[1], Contains("RANK=1"));
}

TEST_F(RoundHere, StartsNoWorkerWhereItsHookFails) {
  options_.spec.node_programs.round_hook.program = "false";
  LogPumpOptions with_hook = Options({});
  with_hook.has_hook = true;
  pump_ = std::make_unique<LogPump>(loop_, std::move(with_hook));
  Begin();
  RunUntilStarted();
  EXPECT_THAT(shell_.failed, ElementsAre(Pair(0, HasSubstr("false")), Pair(1, HasSubstr("false"))));
  EXPECT_THAT(roster_.workers(), IsEmpty());
}

TEST_F(RoundHere, StartsNoWorkerWhereItsStoreCannotBeServed) {
  const auto taken = TorchStoreServer::Start({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(taken.ok()) << taken.status();
  master_port_ = (*taken)->port();
  Begin();
  RunUntilStarted();
  EXPECT_THAT(shell_.failed, SizeIs(2));
  EXPECT_THAT(shell_.failed[0], HasSubstr("cannot serve PyTorch's store"));
}

TEST_F(RoundHere, TellsOfWorkersThatAStopKeepsFromStarting) {
  Begin();
  round_->Leave();
  EXPECT_FALSE(round_->is_starting());
  ASSERT_THAT(shell_.events, SizeIs(2));
  EXPECT_EQ(std::get<WorkerExited>(shell_.events[1]).local_rank, LocalRank(1));
  EXPECT_FALSE(std::get<WorkerExited>(shell_.events[1]).failure);
  round_->Leave();
  EXPECT_THAT(shell_.events, SizeIs(2)) << "there is nothing left to stop";
  loop_.restart();
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_THAT(roster_.workers(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
