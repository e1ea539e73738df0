// A thread with an event loop of its own, for what serves PyTorch's store or speaks to it: ranks
// poll the store, so that is never the agent's loop.
#pragma once

#include <thread>

#include "absl/functional/any_invocable.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"

namespace muster::agent {

// Threads: one owner; Post is thread-safe while the thread runs.
class StoreThread {
 public:
  // Starts the thread, with every signal blocked: they are the owner's. Throws std::system_error
  // where no thread or descriptor is to be had.
  StoreThread();
  // Ends the thread.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  asio::io_context& loop() { return loop_; }
  // Runs what was posted before, then ends the thread; what its loop owns is no longer in use.
  void Join();
  void Post(absl::AnyInvocable<void()> task);

 private:
  void Run();

  asio::io_context loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace muster::agent
