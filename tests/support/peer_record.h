// What another project's program did, as tests/data/peers holds it, so that not every run of the
// tests has to run the program again: its luck would be ours.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace muster::testing {

// $MUSTER_TEST_PEERS says where outcomes come from.
enum class PeerSource {
  kRecord,     // unset: the file
  kLive,       // "live": the program runs, and must do what the file says
  kRecording,  // "record": the program runs, and the file takes what it did
};
PeerSource PeersComeFrom();

// tests/data/peers/<program>-<version>.json, with the version of `package` in tests/peers.txt.
class PeerRecord {
 public:
  PeerRecord(const std::string& program, const std::string& package);

  // What stands under `key`; null if nothing does.
  nlohmann::json Find(const std::string& key) const;
  // Replaces what stands there, or adds it; other processes may do the same at that time.
  void Keep(const std::string& key, const nlohmann::json& outcome) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster::testing
