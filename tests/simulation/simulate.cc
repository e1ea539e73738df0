#include "tests/simulation/simulate.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::simulation {
namespace {

constexpr uint64_t kProgressEvery = 10000;

SimPlan PlanWithout(uint64_t seed, const std::vector<std::string>& without) {
  SimPlan plan = SimCluster::PlanOf(seed);
  for (const SimFamily& family : SimFamilies()) {
    for (const std::string& name : without) {
      if (name == family.name) plan.*family.rate = 0;
    }
  }
  return plan;
}

std::string RunOne(uint64_t seed, const std::vector<std::string>& without, bool trace) {
  return SimCluster(seed, PlanWithout(seed, without), trace).Run();
}

std::string ReplayCommand(uint64_t seed, const std::vector<std::string>& without) {
  std::string command = absl::StrCat("deploy/dev simulate --seed=", seed);
  if (!without.empty()) {
    absl::StrAppend(&command, " --without=", absl::StrJoin(without, ","));
  }
  return command;
}

}  // namespace

Shrunk Shrink(uint64_t seed) {
  Shrunk shrunk;
  shrunk.failure = RunOne(seed, {}, false);
  const SimPlan plan = SimCluster::PlanOf(seed);
  for (const SimFamily& family : SimFamilies()) {
    if (plan.*family.rate == 0) continue;
    std::vector<std::string> fewer = shrunk.without;
    fewer.push_back(family.name);
    std::string failure = RunOne(seed, fewer, false);
    if (failure.empty()) continue;
    shrunk = {std::move(fewer), std::move(failure)};
  }
  return shrunk;
}

std::string RunSeeds(uint64_t first, uint64_t last, SimCoverage& coverage) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    SimCluster cluster(seed, SimCluster::PlanOf(seed), false);
    const std::string broken = cluster.Run();
    coverage.Add(cluster.coverage());
    if (!broken.empty()) {
      const Shrunk shrunk = Shrink(seed);
      return absl::StrCat("seed ", seed, ": ", shrunk.failure,
                          "\nreplay: ", ReplayCommand(seed, shrunk.without));
    }
    if (last - first >= kProgressEvery && (seed - first + 1) % kProgressEvery == 0) {
      std::fprintf(stderr, "%lu seeds, nothing broke\n",
                   static_cast<unsigned long>(seed - first + 1));
    }
  }
  return "";
}

int Simulate(int argc, char** argv) {
  uint64_t first = 1;
  uint64_t last = 1000;
  bool is_one = false;
  bool goes_on = false;
  std::vector<std::string> without;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool is_apart = word == "--seed" || word == "--seeds" || word == "--without";
    if (is_apart && i + 1 < argc) absl::StrAppend(&word, "=", argv[++i]);
    absl::string_view argument = word;
    bool is_understood = true;
    if (absl::ConsumePrefix(&argument, "--seed=")) {
      is_understood = is_one = absl::SimpleAtoi(argument, &first);
    } else if (absl::ConsumePrefix(&argument, "--without=")) {
      without = absl::StrSplit(argument, ',');
    } else if (absl::ConsumePrefix(&argument, "--seeds=")) {
      const std::pair<std::string, std::string> range = absl::StrSplit(argument, '-');
      const bool is_range = absl::StrContains(argument, "-");
      is_understood =
          is_range ? absl::SimpleAtoi(range.first, &first) && absl::SimpleAtoi(range.second, &last)
                   : absl::SimpleAtoi(argument, &last);
    } else if (argument == "--keep_going") {
      goes_on = true;
    } else {
      is_understood = false;
    }
    if (!is_understood) {
      std::fprintf(stderr,
                   "%s: expected --seeds=N or --seeds=A-B [--keep_going], or --seed=N "
                   "[--without=FAMILY,...]\n",
                   word.c_str());
      return 2;
    }
  }
  if (is_one) {
    const std::string broken = RunOne(first, without, true);
    std::fprintf(stderr, "%s\n", broken.empty() ? "nothing broke" : broken.c_str());
    return broken.empty() ? 0 : 1;
  }
  SimCoverage coverage;
  int failures = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const std::string broken = RunSeeds(seed, last, coverage);
    if (broken.empty()) break;
    ++failures;
    std::fprintf(stderr, "%s\n", broken.c_str());
    if (!goes_on) return 1;
    absl::string_view failed = broken;
    absl::ConsumePrefix(&failed, "seed ");
    if (!absl::SimpleAtoi(failed.substr(0, failed.find(':')), &seed)) break;
  }
  std::fprintf(stderr, "seeds %lu to %lu: %s; %d rounds, %d restarts, %d losses, %d server lives\n",
               static_cast<unsigned long>(first), static_cast<unsigned long>(last),
               failures == 0 ? "nothing broke" : absl::StrCat(failures, " broke").c_str(),
               coverage.rounds, coverage.restarts, coverage.losses, coverage.server_lives);
  return failures == 0 ? 0 : 1;
}

}  // namespace muster::simulation
