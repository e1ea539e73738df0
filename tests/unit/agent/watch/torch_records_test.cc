#include "agent/watch/torch_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// One entry as torch 2.15 writes it over Gloo.
struct Entry {
  int sequence = 1;
  int op_id = 1;
  std::string name = "gloo:all_reduce";
  std::string input = "[[1024]]";
  std::string output = "[[1024]]";
  std::string dtype = "Float";
  std::string group = R"(["0","default_pg"])";
  bool is_retired = false;
  int pg_id = 0;
  bool is_p2p = false;
  int p2p = 0;

  std::string Json() const {
    return absl::StrCat(R"({"collective_seq_id":)", sequence, R"(,"input_dtypes":[")", dtype,
                        R"("],"input_sizes":)", input, R"(,"is_p2p":)", is_p2p ? "true" : "false",
                        R"(,"op_id":)", op_id, R"(,"output_dtypes":[")", dtype,
                        R"("],"output_sizes":)", output, R"(,"p2p_seq_id":)", p2p, R"(,"pg_id":)",
                        pg_id, R"(,"process_group":)", group, R"(,"profiling_name":")", name,
                        R"(","record_id":0,"retired":)", is_retired ? "true" : "false",
                        R"(,"state":"scheduled","time_created_ns":1795311522548187201})");
  }
};

std::string Dump(const std::vector<Entry>& entries) {
  return absl::StrCat(R"({"comm_lib_version":"","entries":[)",
                      absl::StrJoin(entries, ",",
                                    [](std::string* out, const Entry& entry) {
                                      absl::StrAppend(out, entry.Json());
                                    }),
                      R"(],"pg_status":{},"version":"2.10"})");
}

absl::StatusOr<TorchRecords> ReadTorchRecorder(const std::string& dump) {
  return ReadTorchRecorders(TorchDumps{dump});
}

hangs::Operation Only(const Entry& entry) {
  const absl::StatusOr<TorchRecords> records = ReadTorchRecorder(Dump({entry}));
  if (!records.ok() || records->groups.size() != 1) return {};
  return records->groups[0].operations.front();
}

TEST(ReadTorchRecorder, TakesWhatIsNotRetiredForPending) {
  const auto records = ReadTorchRecorder(
      Dump({{.is_retired = true}, {.sequence = 2, .op_id = 2, .name = "gloo:broadcast"}}));
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_THAT(records->groups, SizeIs(1));
  const TorchGroup& group = records->groups[0];
  EXPECT_EQ(group.label, "default_pg");
  EXPECT_EQ(group.num_issued, 3);
  ASSERT_THAT(group.operations, SizeIs(2));
  EXPECT_EQ(group.operations[0].state, OperationState::kDone);
  EXPECT_EQ(group.operations[1].state, OperationState::kIssued);
  EXPECT_EQ(group.operations[1].name, "broadcast");
  EXPECT_EQ(group.operations[1].bytes, 4096);
  EXPECT_EQ(group.operations[1].dtype, "f32");
}

TEST(ReadTorchRecorder, TellsGroupsApartByNameSinceDescriptionsAreShared) {
  const auto records = ReadTorchRecorder(Dump({{.group = R"(["3","mesh_dp"])"},
                                               {.group = R"(["4","mesh_dp"])"},
                                               {.group = R"(["5","undefined"])"}}));
  ASSERT_TRUE(records.ok());
  ASSERT_THAT(records->groups, SizeIs(3));
  EXPECT_EQ(records->groups[0].label, "mesh_dp 3");
  EXPECT_EQ(records->groups[1].label, "mesh_dp 4");
  EXPECT_EQ(records->groups[2].label, "5");
}

TEST(ReadTorchRecorder, ComparesSizesOnlyWhereAllRanksMustAgree) {
  EXPECT_EQ(Only({.name = "gloo:all_gather", .input = "[[3]]", .output = "[[3],[5]]"}).bytes, 32);
  EXPECT_EQ(Only({.name = "gloo:all_to_all"}).bytes, 0) << "each rank has splits of its own";
  EXPECT_EQ(Only({.name = "gloo:gather"}).dtype, "");
  EXPECT_EQ(Only({.name = "gloo:sparse_all_reduce"}).bytes, 0);
  EXPECT_EQ(Only({.dtype = "BFloat16"}).dtype, "bf16");
  EXPECT_EQ(Only({.dtype = "ComplexFloat"}).dtype, "ComplexFloat");
}

TEST(ReadTorchRecorder, NoticesThatSendsAndReceivesWereMadeBetween) {
  EXPECT_FALSE(ReadTorchRecorder(Dump({{.sequence = 7, .op_id = 7}}))->has_unrecorded);
  EXPECT_TRUE(ReadTorchRecorder(Dump({{.sequence = 7, .op_id = 9}}))->has_unrecorded);
  EXPECT_TRUE(ReadTorchRecorder(R"({"version":"2.10"})")->has_unrecorded);
}

// --- NCCL's calls, in a recorder of their own

constexpr char kEmptyDump[] = R"({"comm_lib_version":"","pg_status":{},"version":"2.10"})";

TEST(ReadTorchRecorders, HasNcclsCallsBesideThoseOfTheOtherRecorder) {
  const auto records =
      ReadTorchRecorders({Dump({{.sequence = 3, .op_id = 3, .is_retired = true}}),
                          Dump({{.sequence = 1, .name = "nccl:all_reduce", .is_retired = true},
                                {.sequence = 2, .op_id = 2, .name = "nccl:_all_gather_base"}})});
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_THAT(records->groups, SizeIs(2));
  EXPECT_FALSE(records->groups[0].is_on_device);
  EXPECT_EQ(records->groups[0].num_issued, 4);
  const TorchGroup& nccl = records->groups[1];
  EXPECT_TRUE(nccl.is_on_device);
  EXPECT_EQ(nccl.name, "0");
  EXPECT_NE(nccl.Key(), records->groups[0].Key()) << "each back end counts by itself";
  EXPECT_EQ(nccl.num_issued, 3);
  EXPECT_TRUE(nccl.operations[1].is_pending());
  EXPECT_EQ(nccl.operations[1].kind, OperationKind::kAllGather);
  EXPECT_TRUE(records->has_pending);
}

TEST(ReadTorchRecorders, TakesACallThatTwoDumpsHaveOnce) {
  const std::string dump = Dump({{.name = "nccl:all_reduce"}});
  const auto records = ReadTorchRecorders({dump, dump});
  ASSERT_THAT(records->groups, SizeIs(1));
  EXPECT_THAT(records->groups[0].operations, SizeIs(1));
  EXPECT_THAT(records->last_calls, SizeIs(1));
}

// A rank of torch 2.11 on a GPU that has called all_reduce and all_gather, and one that sleeps.
TEST(ReadTorchRecorders, TellsWhereRanksOverNcclHang) {
  const auto dump_of = [](const char* rank) {
    return testing::ReadFile(absl::StrCat(
        testing::kSourceDirectory, "/tests/unit/agent/watch/recorders/nccl_sleep.", rank, ".json"));
  };
  const auto waits = ReadTorchRecorders({kEmptyDump, dump_of("0")});
  const auto sleeps = ReadTorchRecorders({kEmptyDump, dump_of("1")});
  ASSERT_TRUE(waits.ok() && sleeps.ok());
  ASSERT_THAT(waits->groups, SizeIs(2));
  EXPECT_EQ(waits->groups[0].label, "default_pg");
  EXPECT_EQ(waits->groups[0].num_issued, 7);
  EXPECT_EQ(waits->groups[0].operations.back().bytes, 4 << 20);
  EXPECT_TRUE(waits->has_pending);
  EXPECT_EQ(sleeps->groups[0].num_issued, 6);
  EXPECT_FALSE(sleeps->has_pending);
  EXPECT_TRUE(waits->has_transfers);
  EXPECT_FALSE(waits->has_unrecorded) << "NCCL's sends are recorded";
}

TEST(ReadTorchRecorders, TakesACoalescingForOneCallThatItsLastEntryEnds) {
  const auto coalescing = [](bool is_retired) {
    return ReadTorchRecorders(
        {Dump({{.sequence = 4, .op_id = 4, .name = "nccl:_all_gather_base"},
               {.sequence = 4, .op_id = 4, .name = "nccl:_all_gather_base"},
               {.sequence = 4, .op_id = 4, .name = "nccl:coalesced", .is_retired = is_retired}})});
  };
  ASSERT_THAT(coalescing(true)->groups[0].operations, SizeIs(1));
  EXPECT_EQ(coalescing(true)->groups[0].operations[0].name, "_all_gather_base");
  EXPECT_FALSE(coalescing(true)->has_pending);
  EXPECT_TRUE(coalescing(false)->has_pending);
}

TEST(ReadTorchRecorders, KnowsThatNcclEndsTheCallsOfAGroupInTheirOrder) {
  const auto records = ReadTorchRecorders(
      {Dump({{.sequence = 4, .op_id = 4, .name = "nccl:all_reduce"},
             {.sequence = 5, .op_id = 5, .name = "nccl:all_reduce", .is_retired = true},
             {.sequence = 6, .op_id = 6, .name = "nccl:all_reduce"}})});
  const TorchGroup& group = records->groups[0];
  EXPECT_FALSE(group.operations[0].is_pending());
  EXPECT_TRUE(group.operations[2].is_pending());
}

// --- NCCL's sends and receives

Entry Transfer(const std::string& name, int sequence, int p2p, int op_id, bool is_retired) {
  return {.sequence = sequence,
          .op_id = op_id,
          .name = "nccl:" + name,
          .is_retired = is_retired,
          .is_p2p = true,
          .p2p = p2p};
}

TEST(ReadTorchRecorders, HasNcclsSendsAndReceivesThatHaveNotEnded) {
  const auto records = ReadTorchRecorders({Dump({{.name = "nccl:all_reduce", .is_retired = true},
                                                 Transfer("send 0->1", 1, 1, 2, true),
                                                 Transfer("recv 0<-3", 1, 2, 3, false),
                                                 Transfer("send 0->2", 1, 3, 4, false)})});
  ASSERT_THAT(records->groups, SizeIs(1));
  const TorchGroup& group = records->groups[0];
  EXPECT_FALSE(group.has_batches);
  ASSERT_THAT(group.transfers, SizeIs(2));
  EXPECT_EQ(group.transfers[0].kind, OperationKind::kRecv);
  EXPECT_EQ(group.transfers[0].peer, 3);
  EXPECT_EQ(group.transfers[0].name, "recv");
  EXPECT_EQ(group.transfers[1].kind, OperationKind::kSend);
  EXPECT_EQ(group.transfers[1].peer, 2);
  EXPECT_TRUE(records->has_pending);
  EXPECT_FALSE(records->has_unrecorded);
  EXPECT_THAT(records->last_calls, SizeIs(1));
}

TEST(ReadTorchRecorders, EndsABatchOfSendsAndReceivesWithItsLastEntry) {
  const auto batch = [](bool is_retired) {
    return ReadTorchRecorders({Dump({{.name = "nccl:all_reduce", .is_retired = true},
                                     Transfer("send 1->2", 2, 0, 2, false),
                                     Transfer("recv 1<-0", 2, 0, 3, false),
                                     Transfer("coalesced", 2, 0, 3, is_retired)})});
  };
  EXPECT_THAT(batch(false)->groups[0].transfers, SizeIs(2));
  EXPECT_TRUE(batch(false)->has_pending);
  EXPECT_THAT(batch(true)->groups[0].transfers, IsEmpty());
  EXPECT_FALSE(batch(true)->has_pending);
  EXPECT_TRUE(batch(true)->groups[0].has_batches);
  EXPECT_THAT(batch(true)->last_calls, IsEmpty()) << "their numbers do not compare";
}

TEST(ReadTorchRecorders, TakesOddNamesOfTransfersForThoseWithAnybody) {
  for (const char* name :
       {"send", "send 0->", "send 0->x", "send 0->-4", "recv <-", "recv 1<-9x"}) {
    const auto records = ReadTorchRecorders({Dump({Transfer(name, 0, 1, 1, false)})});
    ASSERT_THAT(records->groups[0].transfers, SizeIs(1)) << name;
    EXPECT_EQ(records->groups[0].transfers[0].peer, -1) << name;
  }
}

TEST(ReadTorchRecorder, HasAnotherFingerprintOnceAnythingIsAnother) {
  const auto before = ReadTorchRecorder(Dump({{.is_retired = false}}));
  EXPECT_EQ(before->fingerprint, ReadTorchRecorder(Dump({{.is_retired = false}}))->fingerprint);
  EXPECT_NE(before->fingerprint, ReadTorchRecorder(Dump({{.is_retired = true}}))->fingerprint);
}

TEST(ReadTorchRecorder, ForgetsAGroupThatWasMadeAnewUnderItsOldName) {
  const auto records =
      ReadTorchRecorder(Dump({{.sequence = 1, .name = "gloo:broadcast", .is_retired = true},
                              {.sequence = 9, .op_id = 9, .is_retired = true},
                              {.sequence = 1, .is_retired = true, .pg_id = 2},
                              {.sequence = 2, .op_id = 2, .pg_id = 2}}));
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_THAT(records->groups, SizeIs(1));
  EXPECT_EQ(records->groups[0].num_issued, 3);
  EXPECT_TRUE(records->has_pending);
  ASSERT_THAT(records->groups[0].operations, SizeIs(2));
  EXPECT_EQ(records->groups[0].operations[0].name, "all_reduce");
}

TEST(ReadTorchRecorder, RefusesWhatIsNoRecord) {
  for (const char* text : {"", "[]", "{}", "{\"version\":", "null", "\x80\x02}q"}) {
    EXPECT_FALSE(ReadTorchRecorder(text).ok()) << text;
  }
}

TEST(ReadTorchRecorder, PassesOverSizesThatAreNone) {
  for (const char* sizes : {"[[-1]]", "[[1e3]]", "[1]", "{}", "[[9223372036854775807,9]]"}) {
    EXPECT_EQ(Only({.input = sizes}).bytes, 0) << sizes;
  }
}

// Bytes changed at random: whatever comes out, nothing breaks.
TEST(ReadTorchRecorder, SurvivesWhateverAWorkerSays) {
  const std::string dump = Dump({{}, {.sequence = 2, .op_id = 3, .is_retired = true}});
  const std::string python = R"({"groups":{"0":[0,1]},"stack":[["step","/a/train.py",7]]})";
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    std::string text = round % 2 == 0 ? dump : python;
    for (int change = 0; change < 3; ++change) {
      text[random() % text.size()] = "{}[]\",:0-e\x80\xff"[random() % 12];
    }
    ReadTorchRecorder(text).IgnoreError();
    ReadTorchWaits(text);
    ReadTorchPython(text);
  }
  const std::string deep(100000, '[');
  EXPECT_FALSE(ReadTorchRecorder(deep).ok());
  EXPECT_THAT(ReadTorchPython(absl::StrCat(R"({"stack":)", deep)).frames, IsEmpty());
}

TEST(ReadTorchWaits, CountsTheCallsOfNewGroupAsOperationsOfAllRanks) {
  const TorchGroup waits =
      ReadTorchWaits(
          R"({"pytorch.wait_counter.c10d.new_group":{"active_count":1,"total_calls":3}})")
          .new_groups;
  EXPECT_EQ(waits.label, "default_pg");
  EXPECT_EQ(waits.num_issued, 3);
  ASSERT_THAT(waits.operations, SizeIs(1));
  EXPECT_TRUE(waits.operations[0].is_pending());
  EXPECT_EQ(waits.operations[0].sequence, 2);
  EXPECT_THAT(ReadTorchWaits("{}").new_groups.operations, IsEmpty());
  EXPECT_THAT(ReadTorchWaits("what").new_groups.operations, IsEmpty());
}

TEST(ReadTorchWaits, KnowsARankThatHasComeThroughInitProcessGroup) {
  const auto begun = [](const char* counter) {
    return ReadTorchWaits(
               absl::StrCat(R"({"pytorch.wait_counter.c10d.init_process_group":)", counter, "}"))
        .has_begun;
  };
  EXPECT_TRUE(begun(R"({"active_count":0,"total_calls":1})"));
  EXPECT_FALSE(begun(R"({"active_count":1,"total_calls":1})"));
  EXPECT_FALSE(begun(R"({"active_count":0,"total_calls":0})"));
  EXPECT_FALSE(ReadTorchWaits("{}").has_begun);
}

TEST(ReadTorchPython, HasTheRanksOfGroupsAndTheStackOfTheMainThread) {
  const TorchPython python = ReadTorchPython(
      R"({"groups":{"0":[0,1],"7":[1,3],"8":[-1]},)"
      R"("stack":[["recv","/t/torch/distributed/distributed_c10d.py",9],["main","/a/train.py",7]],)"
      R"("call":{"kind":"rooted","name":"broadcast","group":"7","peer":3},)"
      R"("has_groups":true,"has_rpc":true})");
  EXPECT_EQ(python.call.kind, TorchCall::Kind::kRooted);
  EXPECT_EQ(python.call.name, "broadcast");
  EXPECT_EQ(python.call.group, "7");
  EXPECT_EQ(python.call.peer, 3);
  EXPECT_TRUE(python.has_groups);
  EXPECT_TRUE(python.has_rpc);
  EXPECT_THAT(python.members,
              ElementsAre(Pair("0", ElementsAre(0, 1)), Pair("7", ElementsAre(1, 3))));
  EXPECT_THAT(python.frames, ElementsAre("recv at /t/torch/distributed/distributed_c10d.py:9",
                                         "main at /a/train.py:7"));
}

TEST(ReadTorchRecorder, HasTheLastCallsOfAllGroupsInTheirOrder) {
  const std::string other = R"(["7","undefined"])";
  const auto two = ReadTorchRecorder(Dump(
      {{.is_retired = true}, {.group = other}, {.sequence = 2, .op_id = 2, .input = "[[8]]"}}));
  ASSERT_TRUE(two.ok()) << two.status();
  ASSERT_THAT(two->last_calls, SizeIs(3));
  EXPECT_EQ(two->last_calls[1].group, "7");
  EXPECT_EQ(two->last_calls[2].label, "default_pg");
  EXPECT_EQ(two->last_calls[2].operation.sequence, 2);
  EXPECT_EQ(two->last_calls[2].operation.bytes, 32);

  std::vector<Entry> many;
  for (int i = 1; i <= 100; ++i) many.push_back({.sequence = i, .op_id = i});
  const auto last = ReadTorchRecorder(Dump(many));
  ASSERT_TRUE(last.ok()) << last.status();
  ASSERT_THAT(last->last_calls, SizeIs(hangs::kLastCallsMax));
  EXPECT_EQ(last->last_calls.back().operation.sequence, 100);
}

TEST(ReadTorchRecorder, HasNoLastCallsOfAGroupThatWasMadeAnewUnderItsOldName) {
  const auto records = ReadTorchRecorder(Dump(
      {{.sequence = 9, .op_id = 9}, {.group = R"(["7","a"])"}, {.input = "[[8]]", .pg_id = 5}}));
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_THAT(records->last_calls, SizeIs(2));
  EXPECT_EQ(records->last_calls[0].group, "7");
  EXPECT_EQ(records->last_calls[1].operation.bytes, 32);
}

TEST(ReadTorchPython, HasOtherThreadsBehindTheMainOne) {
  const TorchPython python = ReadTorchPython(
      R"({"stack":[["f","/a.py",1]],"threads":[{"name":"Saver","stack":[["g","/b.py",2],)"
      R"(["h","/b.py",3]]},7,{"name":"X","stack":[["i","/c.py",4]]}]})");
  EXPECT_THAT(python.frames,
              ElementsAre("f at /a.py:1", "thread Saver: g at /b.py:2", "h at /b.py:3"))
      << "up to what is not as expected";
  std::string many = R"(["f","/a.py",1])";
  for (int i = 1; i < 60; ++i) absl::StrAppend(&many, R"(,["f","/a.py",1])");
  EXPECT_THAT(ReadTorchPython(absl::StrCat(R"({"stack":[)", many, "]}")).frames, SizeIs(48));
  EXPECT_THAT(ReadTorchPython(absl::StrCat(R"({"stack":[)", many,
                                           R"(],"threads":[{"stack":[["g","/b.py",2]]}]})"))
                  .frames,
              SizeIs(25));
}

TEST(ReadTorchPython, HasTheOtherEndWhereTheFramesTellItAndNoCallThatIsNotKnown) {
  const auto call = [](const char* text) {
    return ReadTorchPython(absl::StrCat(R"({"call":)", text, "}")).call;
  };
  EXPECT_EQ(call(R"({"kind":"transfer","name":"send","peer":2})").kind, TorchCall::Kind::kTransfer);
  EXPECT_EQ(call(R"({"kind":"transfer","name":"send","peer":2})").peer, 2);
  EXPECT_EQ(call(R"({"kind":"transfer","name":"send","peer":null})").peer, -1);
  EXPECT_EQ(call(R"({"kind":"transfer","name":"send","peer":-4})").peer, -1);
  EXPECT_EQ(call(R"({"kind":"transfer","name":"send","peer":99999999999})").peer, -1);
  EXPECT_EQ(call(R"({"kind":"answer","name":"rpc_sync of load","peer":1})").peer, 1);
  EXPECT_EQ(call(R"({"kind":"key","name":"'done'"})").kind, TorchCall::Kind::kKey);
  EXPECT_EQ(call(R"({"kind":"key","name":"'done'"})").name, "'done'");
  EXPECT_EQ(call(R"({"kind":"meeting","name":"f"})").kind, TorchCall::Kind::kMeeting);
  for (const char* none : {"{}", "[]", "null", R"({"kind":7})", R"({"kind":"get"})"}) {
    EXPECT_EQ(call(none).kind, TorchCall::Kind::kNone) << none;
  }
}

// --- When ranks come to their collectives

// `calls`: number and milliseconds after some time.
RankRecords CallsOf(int rank, const std::vector<std::pair<int64_t, int>>& calls) {
  TorchGroup group{.name = "0", .label = "default_pg"};
  for (const auto& [sequence, millis] : calls) {
    group.operations.push_back({.kind = OperationKind::kAllReduce, .sequence = sequence});
    group.called_at.push_back(absl::FromUnixMillis(1000 + millis));
  }
  return {.rank = rank, .records = {.groups = {group}}};
}

TEST(FindArrivals, HasWhoCameLastToEachCollectiveThatAllHaveCalled) {
  const auto groups =
      FindArrivals({CallsOf(4, {{6, 0}, {7, 100}, {8, 200}}), CallsOf(5, {{7, 150}, {6, 40}}),
                    CallsOf(6, {{6, 10}, {7, 110}})},
                   absl::FromUnixMillis(2000));
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].label, "default_pg");
  ASSERT_THAT(groups[0].rows, SizeIs(2));
  const hangs::ArrivalRow& last = groups[0].rows[1];
  EXPECT_EQ(last.sequence, 7);
  EXPECT_EQ(last.last_rank, 5);
  EXPECT_EQ(last.num_ranks, 3);
  EXPECT_EQ(last.last_ago, absl::Milliseconds(850));
  EXPECT_EQ(last.second_ago, absl::Milliseconds(890));
  EXPECT_EQ(last.first_ago, absl::Milliseconds(900));
}

// Two nodes whose clocks are seconds apart say the same.
TEST(FindArrivals, DoesNotDependOnWhatTheClockOfTheNodeShows) {
  const auto seen = FindArrivals({CallsOf(0, {{6, 0}, {7, 100}})}, absl::FromUnixMillis(2000));
  for (const int off : {200, 5000}) {
    EXPECT_EQ(
        FindArrivals({CallsOf(0, {{6, off}, {7, 100 + off}})}, absl::FromUnixMillis(2000 + off)),
        seen);
  }
}

TEST(FindArrivals, HasNothingOfStagesThatSendToEachOther) {
  RankRecords stage = CallsOf(1, {{7, 100}});
  stage.records.has_transfers = true;
  EXPECT_THAT(FindArrivals({stage}, absl::FromUnixMillis(2000)), IsEmpty());
}

TEST(FindArrivals, ReadsTheTimesOfTheRecorder) {
  const auto records = ReadTorchRecorder(
      R"({"version":"2.10","entries":[{"process_group":["0","default_pg"],"collective_seq_id":1,)"
      R"("op_id":1,"profiling_name":"nccl:all_reduce","time_created_ns":1500000000}]})");
  ASSERT_TRUE(records.ok());
  const auto groups = FindArrivals({{3, *records}}, absl::FromUnixSeconds(2));
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_TRUE(groups[0].is_on_device);
  EXPECT_EQ(groups[0].rows[0].last_ago, absl::Milliseconds(500));
}

}  // namespace
}  // namespace muster::agent
