// Tells PyTorch's store, from the nodes that do not serve it, which connections are which worker's,
// so that it can say who is missing by rank (README.md, "Who is there").
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "agent/torch_store/store_thread.h"
#include "proto/base/ids.h"

namespace muster::agent {

// Looks a few seconds after the start, and more and more seldom until every worker's connection has
// been found. Nothing depends on it but what people are told: where the store cannot be reached, it
// says nothing.
//
// Threads: one owner (the agent's loop); its own thread does the work.
class StoreWitness {
 public:
  // A witness of the store at `host`:`port`.
  StoreWitness(std::string host, int port);
  ~StoreWitness();

  // A worker of this node.
  void AddWorker(Rank rank, pid_t pid);

 private:
  class Loop;
  // Destroyed in reverse: sockets and timers go before the loop that they belong to; the thread has
  // ended by then.
  StoreThread thread_;
  std::unique_ptr<Loop> loop_;  // on the thread only
};

}  // namespace muster::agent
