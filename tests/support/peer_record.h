// What another project's program did, as tests/data/peers holds it, so that not every run of the
// tests has to run the program again: its luck would be ours.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tests/support/subprocess.h"

namespace muster::testing {

// $MUSTER_TEST_PEERS says where outcomes come from.
enum class PeerSource {
  kRecord,     // unset: the file
  kLive,       // "live": the program runs, and must do what the file says
  kRecording,  // "record": the program runs, and the file takes what it did
};
PeerSource PeersComeFrom();

// Whether they are equal but for numbers, which may be `tolerance` apart, times the larger of the
// two where that is above 1.
bool IsNear(const nlohmann::json& one, const nlohmann::json& other, double tolerance);

// Whether a peer's run ended with 0; prints it if not.
bool HasSucceeded(const SubprocessResult& theirs);

class PeerRecord {
 public:
  // tests/data/peers/<program>-<version>.json, with the version of `package` in tests/peers.txt.
  PeerRecord(const std::string& program, const std::string& package);
  explicit PeerRecord(const std::string& path) : path_(path) {}

  // What the program does in the running test, or in that `part` of it: from the file, or by `run`,
  // which gives null for a run that says nothing about the program. One of those, or one that is
  // not near what is recorded, is tried again, three in all: PyTorch 2.15 on Gloo ends a rank at
  // times by its own fault, seen once in 12 runs on a loaded machine. What is near is not recorded
  // anew. Where nothing is known or live and recorded differ, the test fails.
  nlohmann::json Outcome(const std::string& part, const std::function<nlohmann::json()>& run,
                         double tolerance = 0) const;
  // Whether the file has it.
  bool HasOutcome(const std::string& part) const;

 private:
  void Keep(const std::string& key, const nlohmann::json& outcome) const;

  std::string path_;
};

}  // namespace muster::testing
