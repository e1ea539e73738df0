// Calls of what may block for ever: a driver, a file on a disk that is gone.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "absl/time/time.h"

namespace muster::agent {

// What `call` returns; nothing if it takes longer than `patience`. It runs on a thread that may outlive
// this call and its caller: it has what it needs.
//
// Threads: safe; blocks for `patience` at most.
template <typename T>
std::optional<T> CallInTime(absl::Duration patience, std::function<T()> call) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> answer = promise->get_future();
  std::thread([promise, call = std::move(call)] { promise->set_value(call()); }).detach();
  const bool is_there =
      answer.wait_for(absl::ToChronoNanoseconds(patience)) == std::future_status::ready;
  return is_there ? std::optional<T>(answer.get()) : std::nullopt;
}

}  // namespace muster::agent
