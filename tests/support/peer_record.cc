#include "tests/support/peer_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using Json = nlohmann::json;

std::string VersionOf(const std::string& package) {
  const std::string pins = ReadFile(MUSTER_SOURCE_DIRECTORY "/tests/peers.txt");
  for (absl::string_view line : absl::StrSplit(pins, '\n')) {
    if (absl::ConsumePrefix(&line, absl::StrCat(package, "=="))) return std::string(line);
  }
  return "of-no-version";
}

Json ReadAll(const std::string& path) {
  const std::string text = ReadFile(path);
  return text.empty() ? Json::object() : Json::parse(text);
}

// A line for each outcome, for whoever reads a change of it.
std::string InLines(const Json& all) {
  std::string text = "{";
  for (const auto& [key, outcome] : all.items()) {
    absl::StrAppend(&text, text.size() == 1 ? "\n" : ",\n", Json(key).dump(), ": ", outcome.dump());
  }
  return text + "\n}\n";
}

}  // namespace

PeerSource PeersComeFrom() {
  const char* const asked = std::getenv("MUSTER_TEST_PEERS");
  const absl::string_view word = asked == nullptr ? "" : asked;
  MUSTER_CHECK(word == "" || word == "live" || word == "record");
  return word == "live"     ? PeerSource::kLive
         : word == "record" ? PeerSource::kRecording
                            : PeerSource::kRecord;
}

PeerRecord::PeerRecord(const std::string& program, const std::string& package)
    : path_(absl::StrCat(MUSTER_SOURCE_DIRECTORY "/tests/data/peers/", program, "-",
                         VersionOf(package), ".json")) {}

Json PeerRecord::Find(const std::string& key) const {
  const Json all = ReadAll(path_);
  return all.contains(key) ? all.at(key) : Json();
}

void PeerRecord::Keep(const std::string& key, const Json& outcome) const {
  const std::string folder = std::filesystem::path(path_).parent_path();
  std::filesystem::create_directories(folder);
  const int lock = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  MUSTER_CHECK(lock >= 0 && flock(lock, LOCK_EX) == 0);
  Json all = ReadAll(path_);
  all[key] = outcome;
  WriteFile(path_ + ".new", InLines(all));
  std::filesystem::rename(path_ + ".new", path_);
  close(lock);
}

}  // namespace muster::testing
