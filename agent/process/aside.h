// Questions that the loop asks and does not wait for: they are asked on another thread, a lane's or
// the file writer's, and answered on the loop, or given up.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "agent/process/file_writer.h"
#include "agent/process/lane.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/loop_mailbox.h"

namespace muster::agent {

class Aside {
 public:
  // Work runs on a thread of the lane.
  Aside(asio::io_context& loop, Lane lane);
  // Work runs on the file writer's thread, behind everything that is to be written.
  Aside(asio::io_context& loop, std::shared_ptr<FileWriter> files);
  // Answers that are still due never come.
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  // Runs `work` aside, and then, on the loop, `then` with its result; with none if it is not to be
  // had: there is no thread or no memory for it, or it has taken longer than `at_most`. A result
  // that comes later is dropped.
  template <typename Result>
  void Run(absl::Duration at_most, absl::AnyInvocable<Result()> work,
           absl::AnyInvocable<void(std::optional<Result>)> then) {
    auto result = std::make_shared<std::optional<Result>>();
    Start(
        at_most,
        [result, work = std::move(work)]() mutable {
          try {
            result->emplace(work());
          } catch (const std::bad_alloc&) {
          }
        },
        [result, then = std::move(then)](bool in_time) mutable {
          then(in_time ? std::move(*result) : std::nullopt);
        });
  }

 private:
  struct Due {
    asio::steady_timer timer;
    absl::AnyInvocable<void(bool in_time)> then;
  };
  // False: the task will not run.
  using Thread = std::function<bool(absl::Duration at_most, absl::AnyInvocable<void()> task)>;

  void Start(absl::Duration at_most, absl::AnyInvocable<void()> work,
             absl::AnyInvocable<void(bool in_time)> then);
  void Answer(uint64_t id, bool in_time);

  asio::io_context& loop_;
  const Thread thread_;
  const LoopMailbox mailbox_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Due> due_;
  // Timers that have expired look whether this is still there.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster::agent
