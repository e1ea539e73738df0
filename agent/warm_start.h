// --warm: workers of Python that are forked by a process which has imported what they import
// (guardian/warm_parent.h). What is decided of it on this node: what is imported, when the warm
// process is made, and which workers it may fork.
//
// The first attempt starts as ever; the warm process is made ready while it runs. A worker that it
// cannot fork is started as ever too, and a line says why.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/guardian/guardian.h"

namespace muster::agent {

class WarmStart {
 public:
  struct Options {
    // Modules to import; "auto" alone: those of the first attempt's that are known to bear it;
    // empty: there is no warm process.
    std::vector<std::string> modules;
    std::string runtime_directory;
  };
  using Say = std::function<void(const std::string&)>;
  // `say` gets lines for people. `guardian` outlives this.
  WarmStart(Options options, GuardianClient& guardian, Say say);

  // Variables for the environment of local rank 0, NAME=value, with which its hook lists what it
  // has imported.
  std::vector<std::string> VariablesForListing() const;
  // Called before the guardian is asked to start a worker: has it forked where that can be.
  void OnStart(WorkerCommand& command);
  // All workers of a round have been asked for.
  void OnStarted();
  // A worker may have listed what it has imported.
  void OnListed();
  void OnState(const WarmState& state);
  void OnSpawned(bool is_forked);
  // Why the last worker that could not be forked could not; "" where none is to be.
  const std::string& why_afresh() const { return why_afresh_; }

 private:
  bool is_on() const { return !options_.modules.empty(); }
  bool is_auto() const { return options_.modules.size() == 1 && options_.modules[0] == "auto"; }
  std::string list_path() const { return options_.runtime_directory + "/warm-modules"; }
  void Begin();

  const Options options_;
  GuardianClient& guardian_;
  const Say say_;
  enum class Phase { kNone, kWanted, kMade, kReady, kFailed };
  Phase phase_ = Phase::kNone;
  WorkerCommand next_;     // how a warm process for the last worker would be started
  WorkerCommand current_;  // how the present one was
  int num_starting_ = 0;   // workers asked for in this round
  int num_workers_ = 0;    // the most workers of a round
  int num_asked_ = 0;      // workers that were to be forked, and are not said to run
  int num_forked_ = 0;
  int num_afresh_ = 0;
  std::string why_afresh_;
};

}  // namespace muster::agent
