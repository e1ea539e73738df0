// The floor of launch_bench.py: the least that a launcher can do. Forks and executes N probes, and
// once one of them has ended by a signal, kills the others and starts all of them again. No agent,
// no log, no rendezvous.
//
//   exec_floor N PROBE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::vector<pid_t> Start(int num_workers, const char* probe, int restart_count) {
  setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(restart_count).c_str(), 1);
  std::vector<pid_t> workers;
  for (int rank = 0; rank < num_workers; ++rank) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    const pid_t child = fork();
    if (child == 0) {
      execl(probe, probe, static_cast<char*>(nullptr));
      _exit(127);
    }
    workers.push_back(child);
  }
  return workers;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_workers = argc == 3 ? std::atoi(argv[1]) : 0;
  if (num_workers < 1) {
    std::fprintf(stderr, "usage: exec_floor N PROBE\n");
    return 2;
  }
  int restart_count = 0;
  std::vector<pid_t> workers = Start(num_workers, argv[2], restart_count);
  for (int running = num_workers; running > 0;) {
    int how = 0;
    if (wait(&how) < 0) return 1;
    --running;
    if (!WIFSIGNALED(how)) continue;
    for (const pid_t worker : workers) kill(worker, SIGKILL);
    while (running > 0 && wait(&how) > 0) --running;
    workers = Start(num_workers, argv[2], ++restart_count);
    running = num_workers;
  }
  return 0;
}
