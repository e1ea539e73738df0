// A server in the place of PyTorch's worker server, which answers whatever it is asked with one and
// the same text, and a recorder's text to answer with.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster::testing {

// That one all_reduce over all ranks, the sixth, was called and does not end.
inline std::string RecorderWithOneCall(int num_elements) {
  return absl::StrCat(
      R"({"version":"2.10","entries":[{"collective_seq_id":6,"op_id":6,"is_p2p":false,"pg_id":0,)",
      R"("input_dtypes":["Float"],"input_sizes":[[)", num_elements,
      R"(]],"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce",)",
      R"("retired":false,"state":"scheduled"}]})");
}

class FakeTorchServer {
 public:
  // Answers nobody before Release where it is held.
  FakeTorchServer(const std::string& path, const std::string& body, bool is_held = false)
      : FakeTorchServer(
            path, [body] { return body; }, is_held) {}
  // `make_body` is called for each answer, from another thread.
  FakeTorchServer(const std::string& path, std::function<std::string()> make_body, bool is_held) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    listener_.reset(socket(AF_UNIX, SOCK_STREAM, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 64), 0);
    if (!is_held) Release();
    thread_ = std::thread([this, released = released_.get_future(), make_body] {
      while (true) {
        const UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
        if (!fd) return;
        released.wait();
        char request[512];
        if (recv(fd.get(), request, sizeof(request), 0) <= 0) continue;
        ++num_asked_;
        const std::string body = make_body();
        const std::string answer =
            absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
        send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~FakeTorchServer() {
    if (!is_released_) Release();
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  void Release() {
    is_released_ = true;
    released_.set_value();
  }

  int num_asked() const { return num_asked_; }

 private:
  UniqueFd listener_;
  std::promise<void> released_;
  std::atomic<int> num_asked_ = 0;
  bool is_released_ = false;
  std::thread thread_;
};

}  // namespace muster::testing
