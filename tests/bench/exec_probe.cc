// The worker of launch_bench.py: notes when it began, then waits to be released.
//
// Writes "<CLOCK_MONOTONIC ns> <pid>" to $PROBE_DIRECTORY/<restart count>.<rank>, by a rename so
// that a reader never sees half of it, then opens the FIFO $PROBE_DIRECTORY/release, which blocks
// until the benchmark opens its other end. Links nothing of ours, so that its own start costs as
// little as possible.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int main() {
  timespec begin = {};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  const std::string directory = Variable("PROBE_DIRECTORY");
  const std::string note =
      directory + "/" + Variable("TORCHELASTIC_RESTART_COUNT") + "." + Variable("RANK");
  std::FILE* file = std::fopen((note + ".new").c_str(), "w");
  if (file == nullptr) return 1;
  std::fprintf(file, "%lld %d\n", begin.tv_sec * 1000000000LL + begin.tv_nsec, getpid());
  if (std::fclose(file) != 0 || std::rename((note + ".new").c_str(), note.c_str()) != 0) return 1;
  return open((directory + "/release").c_str(), O_RDONLY | O_CLOEXEC) < 0 ? 1 : 0;
}
