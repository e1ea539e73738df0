#include "agent/torch_store/store_thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <utility>

#include "asio/post.hpp"

namespace muster::agent {

StoreThread::StoreThread() : work_(asio::make_work_guard(loop_)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "torch_store");
}

StoreThread::~StoreThread() { Join(); }

// A client that asks for more than there is memory for loses its connection's next step; the others
// are served.
void StoreThread::Run() {
  while (!loop_.stopped()) {
    try {
      loop_.run();
    } catch (const std::bad_alloc&) {
    }
  }
}

void StoreThread::Join() {
  if (!thread_.joinable()) return;
  asio::post(loop_, [this] { loop_.stop(); });
  thread_.join();
}

void StoreThread::Post(absl::AnyInvocable<void()> task) {
  asio::post(loop_, [task = std::move(task)]() mutable { task(); });
}

}  // namespace muster::agent
