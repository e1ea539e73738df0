#include "agent/watch/torch_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

constexpr char kHead[] = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ";

TEST(ReadHttpAnswer, HasTheBodyOnceAllOfItIsThere) {
  const std::string whole = absl::StrCat(kHead, "5\r\n\r\nhello");
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto body = ReadHttpAnswer(absl::string_view(whole).substr(0, length));
    ASSERT_TRUE(body.ok()) << length << ": " << body.status();
    EXPECT_EQ(*body, std::nullopt) << length;
  }
  EXPECT_EQ(*ReadHttpAnswer(whole), "hello");
}

TEST(ReadHttpAnswer, RefusesWhatIsNone) {
  const std::string answers[] = {
      "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
      "HTTP/1.1 200 OK\r\n\r\n",
      absl::StrCat(kHead, "-1\r\n\r\n"),
      absl::StrCat(kHead, kTorchAnswerBytesMax + 1, "\r\n\r\n"),
      "SSH-2.0-OpenSSH\r\n\r\n",
      std::string(10000, 'x'),
  };
  for (const std::string& answer : answers) EXPECT_FALSE(ReadHttpAnswer(answer).ok()) << answer;
}

// A server that answers everybody with `answer`, in two parts, or holds still.
class Server {
 public:
  explicit Server(const std::string& path, std::string answer) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    listener_.reset(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    if (answer.empty()) return;
    thread_ = std::thread([this, answer = std::move(answer)] {
      UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      char request[512];
      if (!fd || recv(fd.get(), request, sizeof(request), 0) <= 0) return;
      const size_t half = answer.size() / 2;
      send(fd.get(), answer.data(), half, MSG_NOSIGNAL);
      send(fd.get(), answer.data() + half, answer.size() - half, MSG_NOSIGNAL);
    });
  }
  ~Server() {
    shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

 private:
  UniqueFd listener_;
  std::thread thread_;
};

TEST(AskTorch, HasTheAnswersOfThoseThatAnswer) {
  testing::TemporaryDirectory directory;
  const std::string big(3 << 20, 'x');
  Server first(directory.File("a"), absl::StrCat(kHead, big.size(), "\r\n\r\n", big));
  Server mute(directory.File("b"), "");
  Server cut(directory.File("c"), absl::StrCat(kHead, "9\r\n\r\nhalf"));
  const auto answers = AskTorch({{directory.File("a"), "x"},
                                 {directory.File("c"), "x"},
                                 {directory.File("none"), "x"},
                                 {"", "x"}},
                                MonoNow() + absl::Seconds(60));
  ASSERT_EQ(answers.size(), 4u);
  ASSERT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_EQ(answers[0]->body, big);
  EXPECT_EQ(answers[0]->pid, getpid());
  EXPECT_TRUE(absl::IsInvalidArgument(answers[1].status())) << answers[1].status();
  EXPECT_TRUE(absl::IsUnavailable(answers[2].status())) << answers[2].status();
  EXPECT_TRUE(absl::IsUnavailable(answers[3].status())) << answers[3].status();
  const auto late = AskTorch({{directory.File("b"), "x"}}, MonoNow() + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late[0].status())) << late[0].status();
}

TEST(ReadAnswerFile, TakesNothingButAnAnswer) {
  testing::TemporaryDirectory directory;
  const std::string path = directory.File("a");
  EXPECT_EQ(ReadAnswerFile(path), std::nullopt);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadAnswerFile(path), std::nullopt);
  ASSERT_EQ(unlink(path.c_str()), 0);
  testing::WriteFile(path, absl::StrCat(kHead, "5\r\n\r\nhell"));
  EXPECT_EQ(ReadAnswerFile(path), std::nullopt) << "half of one";
  testing::WriteFile(path, absl::StrCat(kHead, "5\r\n\r\nhello"));
  EXPECT_EQ(ReadAnswerFile(path), "hello");
}

}  // namespace
}  // namespace muster::agent
