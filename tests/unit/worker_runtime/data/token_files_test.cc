// What OpenTokens makes of files, good and bad.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/data.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data/token_sources.h"

namespace muster::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

class TokenFiles : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    WriteFile(directory_.File(name), bytes);
    return directory_.File(name);
  }
  absl::Status OpeningOf(const std::string& path) {
    const std::vector<std::string> paths = {path};
    return OpenTokens(paths).status();
  }
  std::unique_ptr<TokenSource> Open(const std::vector<std::string>& paths) {
    auto source = OpenTokens(paths);
    EXPECT_THAT(source, IsOk());
    return source.ok() ? *std::move(source) : nullptr;
  }
  static std::vector<int32_t> Read(const TokenSource& source, int64_t first, int64_t count) {
    std::vector<int32_t> tokens(count, -1);
    EXPECT_THAT(source.Read(first, absl::MakeSpan(tokens)), IsOk());
    return tokens;
  }

  TemporaryDirectory directory_;
};

TEST_F(TokenFiles, GiveTheBytesOfATextAsTokens) {
  const auto source = Open({Write("a.txt", std::string("a\0\xff\n", 4))});
  EXPECT_EQ(source->num_tokens(), 4);
  EXPECT_EQ(source->vocabulary(), 256);
  EXPECT_THAT(Read(*source, 0, 4), ElementsAre('a', 0, 255, '\n'));
}

TEST_F(TokenFiles, ReadATextShorterThanAMagicNumber) {
  const auto source = Open({Write("a.txt", "x")});
  EXPECT_THAT(Read(*source, 0, 1), ElementsAre('x'));
}

TEST_F(TokenFiles, GiveTheIdsOfGpt2TokensBehindTheHeader) {
  const auto source = Open({Write("a.bin", Gpt2File({0, 258, 50256}))});
  EXPECT_EQ(source->num_tokens(), 3);
  EXPECT_EQ(source->vocabulary(), 50257);
  EXPECT_THAT(Read(*source, 0, 3), ElementsAre(0, 258, 50256));
}

TEST_F(TokenFiles, FollowOneAnother) {
  const auto source = Open({Write("a", "abc"), Write("b", "d"), Write("c", "efg")});
  EXPECT_EQ(source->num_tokens(), 7);
  for (int64_t first = 0; first < 7; ++first) {
    for (int64_t count = 0; first + count <= 7; ++count) {
      std::vector<int32_t> expected(count);
      std::iota(expected.begin(), expected.end(), 'a' + first);
      EXPECT_THAT(Read(*source, first, count), ElementsAreArray(expected));
    }
  }
}

TEST_F(TokenFiles, OfTokensFollowOneAnotherToo) {
  const std::string a = Write("a.bin", Gpt2File({1, 2}));
  const auto source = Open({a, Write("b.bin", Gpt2File({3})), a});
  EXPECT_THAT(Read(*source, 1, 4), ElementsAre(2, 3, 1, 2));
}

TEST_F(TokenFiles, AreReadInPiecesOfAnyLength) {
  std::vector<uint16_t> ids(40000);
  std::iota(ids.begin(), ids.end(), 1);
  const auto source = Open({Write("a.bin", Gpt2File(ids))});
  EXPECT_THAT(Read(*source, 3, 39997), ElementsAreArray(ids.begin() + 3, ids.end()));
}

TEST_F(TokenFiles, BeyondFourGibibytesAreReadAtTheirEnd) {
  const std::string path = Write("sparse.txt", "");
  const int64_t size = (int64_t{5} << 30) + 3;
  ASSERT_EQ(truncate(path.c_str(), size - 3), 0);
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_EQ(write(fd, "end", 3), 3);
  close(fd);
  const auto source = Open({path, Write("next.txt", "!")});
  EXPECT_EQ(source->num_tokens(), size + 1);
  EXPECT_THAT(Read(*source, size - 4, 5), ElementsAre(0, 'e', 'n', 'd', '!'));
}

TEST_F(TokenFiles, SayHowManyAndHowMuch) {
  EXPECT_EQ(Open({Write("a", "abc")})->Describe(), "1 file, 3 bytes of text");
  EXPECT_EQ(Open({Write("b", std::string(1234567, 'x')), Write("c", "d")})->Describe(),
            "2 files, 1.2 MB of text");
  EXPECT_EQ(Open({Write("d", std::string(999999, 'x'))})->Describe(), "1 file, 1.0 MB of text");
  EXPECT_EQ(Open({Write("e", Gpt2File({1, 2}))})->Describe(), "1 file, 2 GPT-2 tokens");
  EXPECT_EQ(Open({Write("f", Gpt2File(std::vector<uint16_t>(1500)))})->Describe(),
            "1 file, 1.5 thousand GPT-2 tokens");
}

TEST_F(TokenFiles, InTheHundredsTakeFewDescriptors) {
  std::vector<std::string> paths;
  for (int i = 0; i < 300; ++i) {
    paths.push_back(Write(absl::StrCat(i), std::string(1, static_cast<char>(i % 251))));
  }
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 100;
  setrlimit(RLIMIT_NOFILE, &few);
  const auto source = Open(paths);
  const std::vector<int32_t> tokens =
      source == nullptr ? std::vector<int32_t>() : Read(*source, 0, 300);
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(tokens.size(), 300u);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(tokens[i], i % 251) << i;
}

TEST_F(TokenFiles, AreReadByManyThreadsAtOnce) {
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i) {
    paths.push_back(Write(absl::StrCat(i), std::string(10, static_cast<char>(i))));
  }
  const auto source = Open(paths);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<int32_t> tokens(1000);
      for (int repeat = 0; repeat < 5; ++repeat) {
        if (!source->Read(0, absl::MakeSpan(tokens)).ok()) ++wrong;
        for (int i = 0; i < 1000; ++i) wrong += tokens[i] != i / 10;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TokenFiles, ThatShrinkAreAnErrorAndNoCrash) {
  const std::string path = Write("a.txt", std::string(100000, 'x'));
  const auto source = Open({path});
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  std::vector<int32_t> tokens(20);
  EXPECT_THAT(source->Read(0, absl::MakeSpan(tokens)),
              StatusIs(StatusCode::kUnavailable, AllOf(HasSubstr(path), HasSubstr("no byte 10"))));
  EXPECT_THAT(Read(*source, 0, 10), ElementsAreArray(std::vector<int32_t>(10, 'x')));
}

TEST_F(TokenFiles, ThatGrowKeepTheLengthTheyHad) {
  const std::string path = Write("a.txt", "abc");
  const auto source = Open({path, Write("b.txt", "d")});
  WriteFile(path, "abcxyz");
  EXPECT_THAT(Read(*source, 0, 4), ElementsAre('a', 'b', 'c', 'd'));
}

TEST_F(TokenFiles, ThatWereDeletedAreReadAsLongAsTheyAreOpen) {
  const std::string path = Write("a.txt", "abc");
  const auto source = Open({path});
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_THAT(Read(*source, 0, 3), ElementsAre('a', 'b', 'c'));
}

TEST_F(TokenFiles, ThatWereDeletedAndAreNotOpenAreNamed) {
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i) paths.push_back(Write(absl::StrCat("part", i), "x"));
  const auto source = Open(paths);
  ASSERT_EQ(unlink(paths.back().c_str()), 0);
  std::vector<int32_t> tokens(1);
  EXPECT_THAT(source->Read(99, absl::MakeSpan(tokens)),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr(paths.back()), HasSubstr("could be opened before"))));
}

TEST_F(TokenFiles, OfWhichNoneIsNamedAreRefused) {
  EXPECT_THAT(OpenTokens({}), StatusIs(StatusCode::kInvalidArgument, HasSubstr("no data file")));
  EXPECT_THAT(OpeningOf(""), StatusIs(StatusCode::kInvalidArgument, HasSubstr("name")));
}

TEST_F(TokenFiles, ThatAreNotThereAreNamed) {
  EXPECT_THAT(OpeningOf(directory_.File("absent.txt")),
              StatusIs(StatusCode::kNotFound, HasSubstr(directory_.File("absent.txt"))));
  const std::string below_a_file = Write("a.txt", "x") + "/b.txt";
  EXPECT_THAT(OpeningOf(below_a_file), StatusIs(StatusCode::kNotFound, HasSubstr(below_a_file)));
}

TEST_F(TokenFiles, AmongWhichOneIsBadAreRefusedByItsName) {
  const std::vector<std::string> paths = {Write("a.txt", "x"), directory_.File("absent.txt")};
  EXPECT_THAT(OpenTokens(paths), StatusIs(StatusCode::kNotFound, HasSubstr("absent.txt")));
}

// The superuser may read every file, so it takes another user's rights for this thread.
class RightsOfNobody {
 public:
  RightsOfNobody() : before_(setfsuid(65534)) {}
  ~RightsOfNobody() { setfsuid(before_); }

 private:
  const int before_;
};

TEST_F(TokenFiles, ThatMayNotBeReadAreNamed) {
  const std::string path = Write("secret.txt", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  const RightsOfNobody rights;
  if (access(path.c_str(), R_OK) != 0 || setfsuid(-1) == 65534) {
    EXPECT_THAT(OpeningOf(path), StatusIs(StatusCode::kPermissionDenied, HasSubstr(path)));
  } else {
    GTEST_SKIP() << "this user reads every file and cannot take another's rights";
  }
}

TEST_F(TokenFiles, ThatAreDirectoriesAreRefused) {
  EXPECT_THAT(
      OpeningOf(directory_.path()),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr(directory_.path()), HasSubstr("directory; name the files in it"))));
}

TEST_F(TokenFiles, ThatArePipesOrDevicesAreRefusedWithoutWaiting) {
  const std::string pipe = directory_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(OpeningOf(pipe), StatusIs(StatusCode::kInvalidArgument, HasSubstr(pipe)));
  EXPECT_THAT(OpeningOf("/dev/zero"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("device")));
}

TEST_F(TokenFiles, ThatAreLinksToThemselvesAreRefused) {
  const std::string loop = directory_.File("loop");
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  EXPECT_THAT(OpeningOf(loop), StatusIs(StatusCode::kInvalidArgument, HasSubstr(loop)));
}

TEST_F(TokenFiles, ThatAreEmptyAreRefused) {
  const std::string path = Write("a.txt", "");
  EXPECT_THAT(OpeningOf(path), StatusIs(StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr(path), HasSubstr("is empty"))));
}

TEST_F(TokenFiles, ThatEndInTheHeaderAreRefused) {
  const std::string header = HeaderBytes({.count = 1});
  for (const size_t length : {4, 5, 8, 11, 12, 13, 512, 1022, 1023}) {
    ASSERT_THAT(OpeningOf(Write("a.bin", header.substr(0, length))),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("less than the header's 1024")))
        << length;
  }
}

TEST_F(TokenFiles, WithoutATokenBehindTheHeaderAreRefused) {
  EXPECT_THAT(OpeningOf(Write("a.bin", Gpt2File({}))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("holds no tokens")));
}

TEST_F(TokenFiles, WithMoreOrFewerTokensThanAnnouncedAreRefused) {
  for (const uint32_t count : {0u, 1u, 3u, 0x80000002u, 0xffffffffu}) {
    const std::string path =
        Write("a.bin", HeaderBytes({.count = count}) + std::string("\1\0\2\0", 4));
    EXPECT_THAT(OpeningOf(path),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(path), HasSubstr("announces"), HasSubstr("holds 2"))))
        << count;
  }
}

TEST_F(TokenFiles, WithHalfATokenAtTheEndAreRefused) {
  EXPECT_THAT(OpeningOf(Write("a.bin", Gpt2File({1, 2}) + "x")),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("5 bytes of GPT-2 tokens, of which each takes 2")));
}

TEST_F(TokenFiles, OfAnotherVersionAreRefused) {
  EXPECT_THAT(OpeningOf(Write("a.bin", HeaderBytes({.version = 2}))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("version 2")));
}

// Those of Llama 3, or of the model that a caller has.
TEST_F(TokenFiles, OfThirtyTwoBitsHaveTheVocabularyOfAModel) {
  const std::string path = Write(
      "a.bin", HeaderBytes({20240801, 7, 3}) + std::string("\1\0\0\0\1\0\1\0\xff\xf4\1\0", 12));
  const auto source = Open({path});
  EXPECT_EQ(source->vocabulary(), 128256);
  EXPECT_THAT(Read(*source, 0, 3), ElementsAre(1, 65537, 128255));
  const auto narrower = OpenTokens(std::vector<std::string>{path}, 65537);
  ASSERT_THAT(narrower, IsOk());
  EXPECT_EQ((*narrower)->vocabulary(), 65537);
  std::vector<int32_t> tokens(2);
  EXPECT_THAT(
      (*narrower)->Read(0, absl::MakeSpan(tokens)),
      StatusIs(StatusCode::kInvalidArgument,
               AllOf(HasSubstr(path), HasSubstr("token 1 is 65537, but ids end at 65536"))));
  EXPECT_THAT(OpeningOf(Write("b.bin", HeaderBytes({20240801, 1, 1}) + std::string(4, '\0'))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("only version 7 (tokens of 32")));
}

TEST_F(TokenFiles, ThatHoldSomethingElseOfLlmCAreNotTakenForText) {
  EXPECT_THAT(OpeningOf(Write("gpt2_tokenizer.bin", HeaderBytes({.magic = 20240328}))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a tokenizer")));
}

TEST_F(TokenFiles, WithTheirBytesTheWrongWayRoundAreNotTakenForText) {
  EXPECT_THAT(OpeningOf(Write("a.bin", HeaderBytes({.magic = __builtin_bswap32(20240520)}))),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("high byte first")));
}

TEST_F(TokenFiles, OfTextAndTokensAreNotMixed) {
  const std::vector<std::string> paths = {Write("a.txt", "x"), Write("b.bin", Gpt2File({1}))};
  EXPECT_THAT(OpenTokens(paths), StatusIs(StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr(paths[0] + " holds text"),
                                                HasSubstr(paths[1] + " holds GPT-2 tokens"))));
}

TEST_F(TokenFiles, WithAnIdBeyondTheVocabularyNameFileAndPosition) {
  std::vector<uint16_t> ids(10000);
  ids[9000] = 50257;
  const std::string path = Write("b.bin", Gpt2File(ids));
  const auto source = Open({Write("a.bin", Gpt2File({1, 2})), path});
  std::vector<int32_t> tokens(10002);
  EXPECT_THAT(source->Read(0, absl::MakeSpan(tokens)),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path), HasSubstr("token 9000 is 50257"))));
  EXPECT_THAT(Read(*source, 9003, 2), ElementsAre(0, 0));
}

}  // namespace
}  // namespace muster::testing
