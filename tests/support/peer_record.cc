#include "tests/support/peer_record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "tests/support/files.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using Json = nlohmann::json;

constexpr int kRuns = 3;

std::string VersionOf(const std::string& package) {
  const std::string pins = ReadFile(absl::StrCat(kSourceDirectory, "/tests/peers.txt"));
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

std::string KeyOf(const std::string& part) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(test->name(), part.empty() ? "" : ".", part);
}

Json Find(const std::string& path, const std::string& key) {
  const Json all = ReadAll(path);
  return all.contains(key) ? all.at(key) : Json();
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

bool IsNear(const Json& one, const Json& other, double tolerance) {
  const Json a = one.flatten(), b = other.flatten();
  const auto is_near = [&](const auto& place, const Json& x) {
    if (!b.contains(place)) return false;
    const Json& y = b.at(place);
    if (!x.is_number() || !y.is_number()) return x == y;
    const double p = x.get<double>(), q = y.get<double>();
    return std::abs(p - q) <= tolerance * std::max({1.0, std::abs(p), std::abs(q)});
  };
  if (a.size() != b.size()) return false;
  for (const auto& [place, value] : a.items()) {
    if (!is_near(place, value)) return false;
  }
  return true;
}

bool HasSucceeded(const SubprocessResult& theirs) {
  const bool has = theirs.ended && theirs.exit_code == 0;
  if (!has) std::cout << "The peer's run " << ToString(theirs) << "\n";
  return has;
}

PeerRecord::PeerRecord(const std::string& program, const std::string& package)
    : path_(absl::StrCat(kSourceDirectory, "/tests/data/peers/", program, "-", VersionOf(package),
                         ".json")) {}

Json PeerRecord::Outcome(const std::string& part, const std::function<Json()>& run,
                         double tolerance) const {
  const std::string key = KeyOf(part);
  const Json recorded = Find(path_, key);
  const PeerSource source = PeersComeFrom();
  if (source == PeerSource::kRecord) {
    EXPECT_FALSE(recorded.is_null()) << key << ": what the peer does is not recorded (run this "
                                     << "test with MUSTER_TEST_PEERS=record) in " << path_;
    return recorded;
  }
  if (PeerPython().empty()) {
    ADD_FAILURE() << kNoPeerPython;
    return {};
  }
  Json seen;
  bool is_recorded = false;
  for (int i = 0; i < kRuns && !is_recorded; ++i) {
    seen = run();
    is_recorded = !seen.is_null() && IsNear(seen, recorded, tolerance);
    if (!seen.is_null() && recorded.is_null()) break;
  }
  if (seen.is_null()) {
    ADD_FAILURE() << key << ": the peer did not do it in " << kRuns << " runs";
  } else if (!is_recorded && source == PeerSource::kRecording) {
    Keep(key, seen);
  } else if (!is_recorded) {
    ADD_FAILURE() << key << ": the peer does " << seen << "\nand not what is recorded in " << path_
                  << ": " << recorded;
  }
  return seen;
}

bool PeerRecord::HasOutcome(const std::string& part) const {
  return !Find(path_, KeyOf(part)).is_null();
}

// Other processes may do the same at that time.
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
