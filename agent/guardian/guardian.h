// The guardian: a single-threaded process between the agent and its workers (agent/README.md,
// "The guardian").
//
// Forked before any thread or gRPC starts; own session, child subreaper. It forks every worker on
// request (worker_process.h), with the parent-death signal bound to itself, hands out pidfds,
// reports exits, and, when the agent's end of the socket closes (also by `kill -9` of the agent),
// kills every descendant until none is left and removes the registered paths. Where the agent did
// not end in order and nothing of it is left, the guardian hands its death notice to the server, so
// that nobody waits for a lease: it becomes launcher/commands/death_notice_command.cc. The agent is
// a subreaper too: if the guardian dies, workers die with it and what they left behind falls to the
// agent, which calls KillOwnDescendants().
//
// The two speak guardian_wire.h over a socketpair.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/guardian/warm_parent.h"
#include "agent/guardian/worker_process.h"
#include "agent/machine/descendants.h"
#include "asio/io_context.hpp"
#include "proto/io/unique_fd.h"

namespace muster::agent {

struct GuardianHandle {
  pid_t pid = -1;
  UniqueFd socket;
  // The DeathNotice of proto/agent.proto that GuardianClient has the guardian hand on if the agent
  // is killed; empty: none. The orderly end takes it back.
  std::string death_notice;
};

// The name by which our own program is called to hand on the notice at its standard input.
inline constexpr char kDeathNoticeProgram[] = "muster-death-notice";

// Forks the guardian. Must be called at the start of main, before any thread exists. Makes the
// caller a subreaper, resets SIGCHLD to its default (a caller may have had it ignored), and opens
// /dev/null in place of a closed 0, 1 or 2.
//
// Errors: kInternal with errno.
absl::StatusOr<GuardianHandle> ForkGuardian();

// What the guardian tells; called on the loop thread, never from inside a call of GuardianClient. A
// worker's on_spawned comes before its on_exited. A listener may destroy the client.
struct GuardianListener {
  // Its program runs. `pidfd` is empty if the process had no descriptor left. `is_forked`: by the
  // warm process.
  std::function<void(uint64_t worker_id, pid_t pid, UniqueFd pidfd, bool is_forked)> on_spawned;
  // The program could not be executed; `status` says what and why: kNotFound, kPermissionDenied,
  // kInvalidArgument (no program, unusable directory or CPUs, too long), kResourceExhausted
  // (processes, memory, descriptors), kInternal.
  std::function<void(uint64_t worker_id, absl::Status status)> on_spawn_failed;
  std::function<void(const WorkerExit&)> on_exited;
  std::function<void(const WarmState&)> on_warm;
  std::function<void()> on_empty;  // answer to Sweep: no stray is left
  std::function<void(const std::vector<pid_t>& pids)> on_strays;  // answer to ListStrays
  std::function<void(const std::string&)> on_lost;  // the guardian is gone; the last call, once
};

// The agent's end. Loop thread only.
class GuardianClient {
 public:
  GuardianClient(asio::io_context& loop, GuardianHandle handle, GuardianListener listener);
  ~GuardianClient();  // closes the socket: the guardian kills what is left and ends
  GuardianClient(const GuardianClient&) = delete;
  GuardianClient& operator=(const GuardianClient&) = delete;

  // Starts one worker, or the warm process in place of an earlier one, in a session and process
  // group of its own. A worker is answered by on_spawned or on_spawn_failed (or on_lost), a warm
  // process by on_warm. Several calls in a row overlap: nothing is waited for between them.
  void Spawn(const WorkerCommand& command);
  // `signal` to the process group of one worker. Nothing happens if it has ended. One that takes
  // the signal itself (descendants.h) gets it alone, and the rest of its group `group_after` later,
  // or as soon as it has ended; InfiniteDuration(): never.
  void SignalGroup(uint64_t worker_id, int signal,
                   absl::Duration group_after = absl::ZeroDuration());
  // `signal` to every stray: each descendant that is neither in a live worker's tree nor of the
  // warm process; on_empty when there is none left, or at once. SIGKILL also goes to those that
  // appear meanwhile; 0 signals nobody. A sweep that is not yet answered is replaced by the next:
  // one on_empty for both.
  void Sweep(int signal);
  // Asks which strays have not ended.
  void ListStrays();
  // A file or socket, or a directory of ours with all that is in it, to remove when the agent is
  // gone.
  void RemoveAtEnd(const std::string& path);
  pid_t pid() const;

  // Lets a guardian that somebody has stopped (SIGSTOP) go on. Every request does.
  void Wake();

  // The orderly end without blocking: `on_ended(true)` follows when the guardian has ended, and
  // `on_ended(false)` when it still has not after `timeout`. With kKill it is ended by force then,
  // and with it its workers, but not what is below them (KillOwnDescendants); with kLeave it goes
  // on alone, as after the death of its agent. No other callback comes any more.
  enum class IfLate { kKill, kLeave };
  void BeginShutdown(absl::Duration timeout, IfLate if_late,
                     std::function<void(bool ended)> on_ended);

  // The orderly end: closes the socket and waits for the guardian to have killed, removed and
  // ended. Blocks; no callback comes any more. False if it is still there after `timeout`
  // (something below it cannot be killed).
  bool Shutdown(absl::Duration timeout);

 private:
  struct State;
  // Shared with handlers that are on their way through the loop when the client goes.
  std::shared_ptr<State> state_;
};

}  // namespace muster::agent
