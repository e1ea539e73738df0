// RecordKeeper on a StateFile: a thread of its own writes, so that the loop waits for no disk. All
// that has come since the last transaction goes into the next. While the disk takes nothing, it
// tries again every second; what was decided meanwhile has not left the server, and running workers
// go on.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "asio/io_context.hpp"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/server/record_keeper.h"
#include "rendezvous/server/state_file.h"

namespace muster::rendezvous {

class StateWriter final : public RecordKeeper {
 public:
  // `loop` must outlive this.
  StateWriter(asio::io_context& loop, std::unique_ptr<StateFile> file);
  // Writes what is left, or tries to, once.
  ~StateWriter() override;

  void Open(Listener listener) override;
  void Keep(std::vector<KeptChange> changes, uint64_t ticket) override;

 private:
  using Pending = absl::btree_map<std::pair<JobKey, Instance>, KeptChange>;

  // What has come since `written`; nothing, after a while.
  struct Turn {
    std::vector<KeptChange> changes;
    uint64_t ticket = 0;
    bool is_last = false;
  };
  Turn WaitForTurn(uint64_t written);
  void Run();
  // Tries until it is written, or the end.
  bool WriteUntilDone(const std::vector<KeptChange>& changes);
  // What is wrong with the file, or that it is well again; once each.
  void Say(const absl::Status& status);

  const LoopMailbox mailbox_;
  Listener listener_;  // loop thread only

  // The writer's thread only, once it runs.
  const std::unique_ptr<StateFile> file_;
  std::string said_;  // of what is wrong with it; empty: nothing is

  base::Mutex mu_;
  base::Condition changed_;
  // The newest of each job.
  Pending pending_ ABSL_GUARDED_BY(mu_);
  uint64_t ticket_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // last: it uses the others
};

}  // namespace muster::rendezvous
