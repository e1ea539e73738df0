#include "agent/torch_store/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/status_matchers.h"
#include "tests/unit/agent/torch_store/store_bytes.h"

namespace muster::agent {
namespace {

using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

// The one request that `bytes` hold; the test fails if they hold less.
TorchRequest Only(const std::string& bytes) {
  RequestReader reader;
  reader.Append(bytes);
  const auto request = reader.Next();
  EXPECT_TRUE(request.ok() && request->has_value()) << request.status();
  EXPECT_EQ(reader.buffered_bytes(), 0);
  return request.ok() && request->has_value() ? **request : TorchRequest{};
}

absl::Status Refusal(const std::string& bytes) {
  RequestReader reader;
  reader.Append(bytes);
  while (true) {
    const auto request = reader.Next();
    if (!request.ok()) return request.status();
    if (!request->has_value()) return absl::OkStatus();
  }
}

TEST(RequestReader, KnowsEveryCommandOfPyTorch2) {
  const std::string two = Number<uint64_t>(2);
  const std::vector<std::pair<std::string, TorchRequest>> cases = {
      {SetBytes("k", "v"), {StoreCommand::kSet, {"k"}, {"v"}}},
      {Byte(2) + Text("k") + Text("a") + Text("b"), {StoreCommand::kCompareSet, {"k"}, {"a", "b"}}},
      {Byte(3) + Text("k"), {StoreCommand::kGet, {"k"}}},
      {AddBytes("k", -2), {StoreCommand::kAdd, {"k"}, {}, {-2}}},
      {Byte(5) + two + Text("k") + Text("l"), {StoreCommand::kCheck, {"k", "l"}}},
      {WaitBytes({"k", "l"}), {StoreCommand::kWait, {"k", "l"}}},
      {Byte(7), {StoreCommand::kGetNumKeys}},
      {Byte(8) + Text("k"), {StoreCommand::kDeleteKey, {"k"}}},
      {Byte(9) + Text("k") + Text("v"), {StoreCommand::kAppend, {"k"}, {"v"}}},
      {Byte(10) + two + Text("k") + Text("l"), {StoreCommand::kMultiGet, {"k", "l"}}},
      {Byte(11) + two + Text("k") + Text("v") + Text("l") + Text("w"),
       {StoreCommand::kMultiSet, {"k", "l"}, {"v", "w"}}},
      {Byte(12), {StoreCommand::kCancelWait}},
      {Byte(13) + Number<uint32_t>(77), {StoreCommand::kPing, {}, {}, {77}}},
      {Byte(14) + Text("q") + Text("v"), {StoreCommand::kQueuePush, {"q"}, {"v"}}},
      {Byte(15) + Text("q"), {StoreCommand::kQueuePop, {"q"}}},
      {Byte(16) + Text("q"), {StoreCommand::kQueueLen, {"q"}}},
      {Byte(17), {StoreCommand::kListKeys}},
      {Byte(18) + Text("b") + Number<int64_t>(4), {StoreCommand::kBarrier, {"b"}, {}, {4}}},
  };
  for (const auto& [bytes, request] : cases) {
    EXPECT_EQ(Only(Validate() + bytes), request) << NameOf(request.command);
  }
}

TEST(RequestReader, KnowsTheCommandsOfPyTorch1WhichSendsNoValidate) {
  const std::string one = Number<uint64_t>(1);
  const std::vector<std::pair<std::string, TorchRequest>> cases = {
      {Byte(0) + Text("k") + Text("v"), {StoreCommand::kSet, {"k"}, {"v"}}},
      {Byte(1) + Text("k") + Text("a") + Text("b"), {StoreCommand::kCompareSet, {"k"}, {"a", "b"}}},
      {Byte(2) + Text("k"), {StoreCommand::kGet, {"k"}}},
      {Byte(3) + Text("k") + Number<int64_t>(5), {StoreCommand::kAdd, {"k"}, {}, {5}}},
      {Byte(4) + one + Text("k"), {StoreCommand::kCheck, {"k"}}},
      {Byte(5) + one + Text("k"), {StoreCommand::kWait, {"k"}}},
      {Byte(6), {StoreCommand::kGetNumKeys}},
      {Byte(8) + Text("k"), {StoreCommand::kDeleteKey, {"k"}}},
  };
  for (const auto& [bytes, request] : cases) {
    EXPECT_EQ(Only(bytes), request) << NameOf(request.command);
  }
}

// Source: seen with PyTorch 2.1.2; README.md, "PyTorch 1 to 2.1".
TEST(RequestReader, TellsTheNumbersOfPyTorch21FromThoseOfItsPredecessors) {
  const std::string one = Number<uint64_t>(1);
  RequestReader reader;
  const auto next = [&](const std::string& bytes) {
    reader.Append(bytes);
    const auto request = reader.Next();
    return request.ok() && request->has_value() ? **request : TorchRequest{};
  };
  EXPECT_EQ(next(Byte(8) + Text("k")).command, StoreCommand::kDeleteKey);  // as of PyTorch 1
  EXPECT_EQ(next(Byte(8) + Text("k") + Text("v")).command, StoreCommand::kAppend);
  EXPECT_EQ(next(Byte(7) + Text("k")).command, StoreCommand::kDeleteKey);
  EXPECT_EQ(next(Byte(9) + one + Text("k")).command, StoreCommand::kMultiGet);
  EXPECT_EQ(next(Byte(10) + one + Text("k") + Text("v")).command, StoreCommand::kMultiSet);
  EXPECT_EQ(next(Byte(11)).command, StoreCommand::kCancelWait);
  reader.Append(Byte(8) + Text("k"));  // by now it is known whose it is
  EXPECT_EQ(*reader.Next(), std::nullopt);
  EXPECT_EQ(next(Text("v")).command, StoreCommand::kAppend);
}

// In PyTorch before 2.1 that would be WATCH_KEY, which Python cannot send.
TEST(RequestReader, TakesByte7ForADeleteAlsoAsTheFirstCommand) {
  RequestReader reader;
  reader.Append(Byte(7) + Text("k") + Byte(8) + Text("k"));
  EXPECT_EQ((*reader.Next())->command, StoreCommand::kDeleteKey);
  EXPECT_EQ(*reader.Next(), std::nullopt) << "of PyTorch 2.1: the value to append is to come";
  reader.Append(Text("v"));
  EXPECT_EQ((*reader.Next())->command, StoreCommand::kAppend);
}

TEST(RequestReader, PutsRequestsTogetherFromSingleBytes) {
  const std::string bytes =
      Validate() + SetBytes("key", "value") + Byte(17) + WaitBytes({"a", "b"});
  RequestReader reader;
  std::vector<StoreCommand> seen;
  for (const char byte : bytes) {
    reader.Append(std::string(1, byte));
    const auto request = reader.Next();
    ASSERT_TRUE(request.ok());
    if (request->has_value()) seen.push_back((*request)->command);
  }
  EXPECT_THAT(seen, ElementsAre(StoreCommand::kSet, StoreCommand::kListKeys, StoreCommand::kWait));
}

TEST(RequestReader, GivesSeveralRequestsThatCameTogetherOneByOne) {
  RequestReader reader;
  reader.Append(Validate() + SetBytes("a", "1") + SetBytes("b", "2"));
  EXPECT_EQ((*reader.Next())->keys, Strings{"a"});
  EXPECT_EQ((*reader.Next())->keys, Strings{"b"});
  EXPECT_EQ(*reader.Next(), std::nullopt);
}

TEST(RequestReader, KeepsEveryByteOfKeysAndValues) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const TorchRequest request = Only(Validate() + SetBytes(all, all + all));
  EXPECT_EQ(request.keys, Strings{all});
  EXPECT_EQ(request.values, Strings{all + all});
}

TEST(RequestReader, SaysWhatItSawOfAnotherProtocol) {
  EXPECT_THAT(Refusal("GET / HTTP/1.1\r\nHost: node1\r\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("does not speak the protocol of PyTorch's store: \"GET / HTTP")));
  EXPECT_THAT(Refusal(std::string("\x16\x03\x01\x02", 4)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\\x16\\x03\\x01\\x02")));
}

TEST(RequestReader, RefusesCommandsThatItDoesNotKnow) {
  EXPECT_THAT(Refusal(Validate() + Byte(19)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"\\x13\"")));
  EXPECT_THAT(Refusal(Validate() + Validate()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not known here")));
  // Clients without VALIDATE have no queues.
  EXPECT_THAT(Refusal(Byte(6) + Byte(14)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not known here")));
}

TEST(RequestReader, RefusesLengthsBeyondTheBoundsBeforeTheBytesHaveCome) {
  EXPECT_THAT(Refusal(Validate() + Byte(3) + Number<uint64_t>(kMaxTorchKeyBytes + 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a key of 8193 bytes")));
  EXPECT_THAT(
      Refusal(Validate() + Byte(1) + Text("k") + Number<uint64_t>(~uint64_t{0})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a value of 18446744073709551615")));
  EXPECT_THAT(Refusal(Validate() + Byte(6) + Number<uint64_t>(uint64_t{1} << 40)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1099511627776 keys")));
  std::string many = Validate() + Byte(kMultiSetCode) + Number<uint64_t>(3);
  const std::string big(kMaxTorchValueBytes - 1, 'x');
  for (int i = 0; i < 2; ++i) many += Text("k") + Text(big);
  many += Text("k") + Number<uint64_t>(big.size());
  EXPECT_THAT(Refusal(many), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MULTI_SET")));
}

TEST(RequestReader, ReadsBackWhatAWitnessSays) {
  const TorchRequest request = Only(EncodeIdentify({{40312, 5}, {40314, 7}}));
  EXPECT_EQ(request.command, StoreCommand::kIdentify);
  EXPECT_THAT(request.numbers, ElementsAre(40312, 5, 40314, 7));
}

// Whatever comes: requests, more bytes wanted, or a refusal.
TEST(RequestReader, SurvivesAnyBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    RequestReader reader;
    if (round % 2 == 0) reader.Append(Validate());
    for (int piece = 0; piece < 8; ++piece) {
      std::string bytes(random() % 24, '\0');
      // Small numbers are the likely ones to be taken for lengths and commands.
      for (char& byte : bytes) byte = static_cast<char>(random() % 3 ? random() % 4 : random());
      reader.Append(bytes);
      absl::StatusOr<std::optional<TorchRequest>> request = std::nullopt;
      do {
        request = reader.Next();
      } while (request.ok() && request->has_value());
      if (!request.ok()) break;
    }
    EXPECT_LE(reader.buffered_bytes(), 200);
  }
}

}  // namespace
}  // namespace muster::agent
