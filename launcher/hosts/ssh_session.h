// One agent behind an ssh connection: OpenSSH's client as a child process, what it is told, and
// what comes back. Performs only; commands/hosts_command.cc decides who is started, and
// host_ends.h when the others are stopped.
//
// Threads: compatible; one caller at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {

struct SshOptions {
  std::string host;    // for ssh
  std::string config;  // -F; empty: ssh's own
  int port = 0;        // -p; 0: ssh's own
  std::string binary;  // muster on the host: no character of it means anything to a shell
};

class SshSession {
 public:
  // Starts ssh in a session of its own, so that Ctrl-C reaches this process alone. No password and
  // no unknown key is asked for: there may be nobody to answer.
  //
  // Errors: kInternal: no process or pipe.
  static absl::StatusOr<SshSession> Start(const SshOptions& options, const std::string& start_line);
  ~SshSession();  // ends ssh if it still runs
  SshSession(SshSession&& other) noexcept;
  SshSession& operator=(SshSession&&) = delete;

  // The descriptors to poll; -1 once they have ended.
  int out() const { return out_.get(); }
  int err() const { return err_.get(); }
  // The descriptor to poll for room while something is left to be written; else -1.
  int in() const { return unsent_.empty() ? -1 : in_.get(); }

  // Reads what is there, and passes whole lines on to our own stdout and stderr.
  void ReadOut();
  void ReadErr();
  // Writes what the pipe takes.
  void WriteIn();
  // Sends a signal for the agent's process there. Has no effect once the connection is gone.
  void SendSignal(int signal);
  // Ends the connection by force.
  void Cut();

  // All that ssh had to say has been read, and it has ended; reaps it.
  bool HasEnded();
  bool is_running() const { return pid_ > 0; }
  bool was_greeted() const { return was_greeted_; }
  // ssh's exit code: the agent's, or 255 where the connection failed. Valid after the end.
  int exit_code() const { return exit_code_; }
  // The last line of stderr before the greeting: ssh's reason.
  const std::string& last_words() const { return last_words_; }
  const std::string& host() const { return host_; }

 private:
  SshSession() = default;
  void TakeOutLine(const std::string& line);

  std::string host_;
  pid_t pid_ = -1;
  UniqueFd in_, out_, err_;
  std::string unsent_, out_rest_, err_rest_;
  std::string last_words_;
  bool was_greeted_ = false;
  int exit_code_ = -1;
};

// The address that ssh would connect to for `host` ("HostName" of its configuration); `host` itself
// where ssh does not say. Blocks shortly.
std::string AddressForSsh(const SshOptions& options);

}  // namespace muster::launcher
