// The mark that musterd leaves for its port: while musterd is down, nobody else shall take its
// port. An agent that might host the server there waits for it instead, so that a musterd that was
// killed comes back to a free port, and to its jobs.
//
// A file in /tmp by user, network namespace and port, locked while musterd lives and touched every
// few seconds. It goes at a clean end; after a kill it counts for as long as agents do without a
// server. Heeded only if it is root's or the reader's own, so that no other user can keep a job
// waiting.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/unique_fd.h"

namespace muster::rendezvous {

// Loop thread only.
class PortMark {
 public:
  // Nothing is done where the file cannot be made. `loop` must outlive the mark.
  PortMark(asio::io_context& loop, int port);
  // The clean end.
  ~PortMark();
  PortMark(const PortMark&) = delete;
  PortMark& operator=(const PortMark&) = delete;

 private:
  void RenewOnLoop();

  std::string path_;
  UniqueFd file_;
  asio::steady_timer timer_;
};

struct MarkedServer {
  std::string who;            // "musterd (pid 4711) of root"
  absl::Duration silent_for;  // since it renewed its mark, at least
};

// The musterd that had `port` on this machine, is there no more without having come to a clean end,
// and was there less than `patience` ago.
std::optional<MarkedServer> FindMarkedServer(int port, absl::Duration patience);

}  // namespace muster::rendezvous
