// The mark that musterd leaves for its port: while musterd is down, nobody else shall take its
// port. An agent that might host the server there waits for it instead, so that a musterd that was
// killed comes back to a free port, and to its jobs.
//
// A file by network namespace and port, locked while musterd lives and touched every few seconds.
// It goes at a clean end; after a kill it counts for as long as agents do without a server. It lies
// in /run/musterd, which only root can have made: of root, or of the user to whom root gave it, as
// the unit does for its own (deploy/systemd/musterd.service), whose /tmp nobody else sees. Another
// user's lies in /tmp, and only that user heeds it: no other can keep a job waiting.
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
  // Why it cannot, if somebody keeps it from it; else empty.
  const std::string& trouble() const { return trouble_; }
  // The clean end.
  ~PortMark();
  PortMark(const PortMark&) = delete;
  PortMark& operator=(const PortMark&) = delete;

 private:
  void RenewOnLoop();

  std::string path_;
  std::string trouble_;
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
