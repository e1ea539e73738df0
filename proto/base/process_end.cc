#include "proto/base/process_end.h"

#include <array>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

struct SignalMeaning {
  int number;
  const char* meaning;
};
constexpr std::array<SignalMeaning, 16> kMeanings = {{
    {SIGHUP, "terminal hung up"},
    {SIGINT, "interrupted"},
    {SIGQUIT, "quit"},
    {SIGILL, "illegal instruction"},
    {SIGTRAP, "trap"},
    {SIGABRT, "aborted"},
    {SIGBUS, "bus error"},
    {SIGFPE, "arithmetic error"},
    {SIGKILL, "killed"},
    {SIGUSR1, "user signal 1"},
    {SIGSEGV, "segmentation fault"},
    {SIGUSR2, "user signal 2"},
    {SIGPIPE, "broken pipe"},
    {SIGALRM, "alarm"},
    {SIGTERM, "terminated"},
    {SIGXCPU, "out of CPU time"},
}};

}  // namespace

std::string SignalName(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return abbreviation == nullptr ? absl::StrCat("signal ", signal)
                                 : absl::StrCat("SIG", abbreviation);
}

std::string SignalInWords(int signal) {
  for (const SignalMeaning& known : kMeanings) {
    if (known.number == signal) return absl::StrCat(SignalName(signal), " (", known.meaning, ")");
  }
  return SignalName(signal);
}

std::string HowItEnded(const WorkerFailure& failure) {
  if (failure.start_failed) return absl::StrCat("could not be started: ", failure.message);
  if (failure.probably_out_of_memory && failure.signal == SIGKILL) {
    return "was killed, probably by the kernel's out-of-memory killer (SIGKILL)";
  }
  return absl::StrCat(failure.signal != 0
                          ? absl::StrCat("was ended by ", SignalName(failure.signal))
                          : absl::StrCat("exited with code ", ExitCodeOf(failure)),
                      failure.probably_out_of_memory
                          ? ", after the kernel's out-of-memory killer had killed a process of its "
                            "node"
                          : "");
}

}  // namespace muster
