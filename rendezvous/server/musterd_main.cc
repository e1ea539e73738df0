// The program musterd: becomes the `muster` beside it, which holds the daemon and goes by the name
// that it is called by. So it is linked once, and a package that may hold no links has both.
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

int main(int /*argc*/, char** argv) {
  constexpr char kProgram[] = "muster";
  char path[PATH_MAX + sizeof(kProgram)];
  const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
  path[length > 0 ? length : 0] = '\0';
  char* const name = std::strrchr(path, '/');
  if (name != nullptr) {
    std::strcpy(name + 1, kProgram);
    char called[] = "musterd";
    argv[0] = called;
    execv(path, argv);
  }
  std::fprintf(stderr, "musterd: cannot run the program muster beside it, %s: %s\n", path,
               std::strerror(errno));
  return 127;
}
