#include "agent/torch_store/store_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

#include "asio/post.hpp"

namespace muster::agent {

StoreThread::StoreThread() : work_(asio::make_work_guard(loop_)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { loop_.run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "torch_store");
}

StoreThread::~StoreThread() { Join(); }

void StoreThread::Join() {
  if (!thread_.joinable()) return;
  asio::post(loop_, [this] { loop_.stop(); });
  thread_.join();
}

void StoreThread::Post(absl::AnyInvocable<void()> task) {
  asio::post(loop_, [task = std::move(task)]() mutable { task(); });
}

}  // namespace muster::agent
