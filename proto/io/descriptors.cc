#include "proto/io/descriptors.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

// The leak sanitizer's, null in programs without it.
extern "C" void __lsan_do_leak_check() __attribute__((weak));

namespace muster {
namespace {

// gRPC's pollers, timers and executors; it starts more on machines with many CPUs, but manages with
// these.
constexpr int kThreads = 12;

}  // namespace

void OpenStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is `fd` itself.
    [[maybe_unused]] const int opened = ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
  }
}

int RaiseDescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  const rlim_t now = ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : soft;
  return static_cast<int>(std::min<rlim_t>(now, std::numeric_limits<int>::max()));
}

bool IsOfThisUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == ::geteuid();
}

std::string TextFor(int fd, absl::string_view text) {
  return ::isatty(fd) == 1 ? LinesForTerminal(text) : std::string(text);
}

int RunUntilUsedUp(const char* program, int exit_code, const std::function<int()>& run) {
  // The message needs only what is on the stack: there may be no memory for more.
  try {
    return run();
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr,
        "%s: out of memory; raise the limit on it (ulimit -v, the memory of the container)\n",
        program);
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "%s: %s; raise the limits on open files (ulimit -n) and processes (ulimit -u)\n",
                 program, error.what());
  }
  return exit_code;
}

void LeaveWith(int exit_code) {
  std::fflush(nullptr);
  if (__lsan_do_leak_check != nullptr) __lsan_do_leak_check();
  ::_exit(exit_code);
}

absl::Status CheckCanStartThreads() {
  // All of them must be there at the same time: each waits until the last has been tried.
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&gate);
  const auto wait = [](void* g) -> void* {
    pthread_mutex_lock(static_cast<pthread_mutex_t*>(g));
    pthread_mutex_unlock(static_cast<pthread_mutex_t*>(g));
    return nullptr;
  };
  std::vector<pthread_t> threads;
  int error = 0;
  while (error == 0 && threads.size() < kThreads) {
    pthread_t thread;
    error = pthread_create(&thread, nullptr, wait, &gate);
    if (error == 0) threads.push_back(thread);
  }
  pthread_mutex_unlock(&gate);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot start ", kThreads, " threads (got ",
                                                   threads.size(), "): ", std::strerror(error),
                                                   "; raise the limit on processes (ulimit -u)"));
}

}  // namespace muster
