// The places where the process groups of PyTorch's workers meet, as torch_hook.py tells it, and who
// waits there in vain: a line where a script has written another address than the launcher's, and a
// notice for what has waited for ten seconds, with host and port.
//
// A call begins when a rank makes its store and ends when init_process_group returns. So a slow
// import is no call, and says nothing. Who waits at the launcher's own store and is connected to it
// is told by that store (torch_store/torch_store_core.h); who cannot reach it is told here.
//
// Pure: same calls, connections and times give the same lines. Its shell: torch_programs.h.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/machine/worker_sockets.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

// What a process says as it makes the store of a group.
struct GroupCall {
  int rank = 0;
  int world_size = 1;  // 0: no group, but a client of a store that the script opens by itself
  std::string host;    // of the store that it meets at
  int port = 0;
  std::string
      asked;  // "localhost:12355" of the script's variables; empty: it did not choose by them
  bool is_at_launcher =
      false;  // the store is the launcher's; otherwise rank 0 of the group hosts it
};

// One datagram of the hook.
struct GroupNote {
  Round round;
  std::optional<GroupCall> call;  // begins; nothing: the last one has returned
};

// Errors: kInvalidArgument: no note of the hook.
// Threads: pure.
absl::StatusOr<GroupNote> ReadGroupNote(absl::string_view json);

class GroupCalls {
 public:
  static constexpr absl::Duration kFirstNotice = absl::Seconds(10);
  static constexpr absl::Duration kRepeat = absl::Seconds(60);  // doubles each time

  struct Line {
    bool is_warning = false;
    std::string text;
    friend bool operator==(const Line&, const Line&) = default;
  };
  struct Question {
    pid_t pid = 0;
    int port = 0;
  };

  // `tells_waits`: false leaves the notices out.
  explicit GroupCalls(bool tells_waits) : tells_waits_(tells_waits) {}

  // `num_nodes`: of the job; calls on the others are not known here.
  void StartRound(int num_nodes);
  // The line that says where the group meets, where that is not what PyTorch would have made of it.
  std::optional<Line> Begin(pid_t pid, GroupCall call, MonoTime now);
  std::optional<Line> Return(pid_t pid, MonoTime now);

  // When notices are due, InfiniteFuture() if none; then whose connections are to be looked at for
  // them.
  MonoTime NextDeadline() const;
  std::vector<Question> Questions(MonoTime now) const;
  // `answers` by the pid of each question.
  std::vector<Line> Tell(const std::map<pid_t, Connecting>& answers, MonoTime now);

 private:
  struct Waiting {
    GroupCall call;
    MonoTime since;
  };
  // The calls of one group: those that meet at one place and count as many ranks.
  struct Group {
    std::map<pid_t, Waiting> waiting;
    std::set<int> came;  // ranks, since the first of those that wait
    MonoTime since;      // of the first
    MonoTime next_notice;
    absl::Duration interval = kRepeat;
    bool is_told = false;
  };
  using Place = std::pair<std::string, int>;  // host:port, world size

  static Place PlaceOf(const GroupCall& call);
  std::optional<Line> Notice(const Place& place, const Group& group,
                             const std::map<pid_t, Connecting>& answers, MonoTime now) const;
  std::string WhoIsMissing(const Place& place, const Group& group) const;

  const bool tells_waits_;
  int num_nodes_ = 1;
  std::map<Place, Group> groups_;
  std::set<std::string> said_;  // addresses, where it was said where their group meets
};

}  // namespace muster::agent
