// Programs of PyTorch whose ranks wait for what no recorder has (programs/torch_waits.py), several
// of each kind: what is said of those that hang, and that nothing ends their healthy twins.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "tests/integration/torch_jobs.h"

namespace muster::testing {

class TorchWaits : public TorchJobs {
 protected:
  TorchWaits() : TorchJobs("torch_waits.py") {}

  // Hangs over so many ranks, of which the last is at fault.
  static std::vector<Said> Hangs(int num_ranks) {
    const std::string odd = absl::StrCat("rank ", num_ranks - 1);
    std::vector<int> others(num_ranks - 1);
    std::iota(others.begin(), others.end(), 0);
    const std::string them = RanksInWords(others);
    const std::string wait = absl::StrCat("; ", them, others.size() == 1 ? " waits" : " wait");
    const std::string missing = absl::StrCat("hang: ", odd, " has not called ");
    const std::string in_never = absl::StrCat(odd, " in never at torch_waits.py:");
    const std::string unanswered =
        absl::StrCat(odd, " has not answered rpc_sync of never, for which rank 0 waits");
    const std::string root = absl::StrCat("with root ", num_ranks - 1);
    const std::string serves = "its thread of RPC in never at torch_waits.py:";
    std::vector<Said> programs = {
        {"monitored_barrier", absl::StrCat(missing, "monitored_barrier (group default_pg)", wait),
         in_never},
        {"monitored_pair", absl::StrCat(missing, "monitored_barrier (group "), in_never},
        {"monitored_all", absl::StrCat(missing, "monitored_barrier (group default_pg)", wait),
         in_never},
        {"rpc_shutdown", absl::StrCat(missing, "rpc.shutdown", wait), in_never},
        {"rpc_never", unanswered, serves},
        {"rpc_alone", unanswered, serves},
        {"rpc_moves_on", unanswered, serves},
        {"roots", root},
        {"roots_reduce", root},
        {"roots_gather", root},
        {"no_member", absl::StrCat(missing, "all_reduce #6"), in_never},
        {"saver", absl::StrCat(missing, "all_reduce #6"),
         "its thread Saver_0 in never at torch_waits.py:"},
        {"saver_group", absl::StrCat(missing, "all_reduce #1"),
         "its thread Saver_0 in never at torch_waits.py:"},
        {"loss", absl::StrCat(missing, "all_reduce #6"),
         "its thread Loss in compute at torch_waits.py:"},
        {"key", absl::StrCat(odd, " waits for the key 'done' of a store (key at torch_waits.py:"),
         absl::StrCat("which has not been set; ", them, others.size() == 1 ? " has" : " have",
                      " gone on to all_reduce #6")},
        {"key_below", " for the key 'done' of a store (key_below at torch_waits.py:",
         "which has not been set; "},
        {"own_store", " for the key 'part 0' or 1 more of a store (own_store at torch_waits.py:"},
        {"own_receive", absl::StrCat(odd,
                                     " waits in a send or receive (group default_pg), with "
                                     "whom is not known; ",
                                     them)},
        {"end_destroy",
         absl::StrCat(them, others.size() == 1 ? " has" : " have", " ended; ", odd, " has not: "),
         "destroy_process_group at distributed_c10d.py:"},
        {"end_elsewhere", absl::StrCat(odd, " has not called destroy_process_group", wait),
         in_never.substr(odd.size())},
        {"end_atexit",
         absl::StrCat(them, others.size() == 1 ? " has" : " have", " ended; ", odd, " has not: "),
         "never at torch_waits.py:"}};
    if (num_ranks < 4 || num_ranks % 2 != 0) return programs;
    programs.push_back({"mesh", absl::StrCat(missing, "all_reduce #6")});
    programs.push_back({"mesh_rows", absl::StrCat("hang: ", odd, " ")});
    programs.push_back({"mesh_skips", absl::StrCat(missing, "all_reduce #2"), in_never});
    return programs;
  }
  static std::vector<Said> HangsOf(int num_ranks, const std::vector<std::string>& hows) {
    std::vector<Said> all = Hangs(num_ranks);
    std::erase_if(all, [&](const Said& each) {
      return std::find(hows.begin(), hows.end(), each.how) == hows.end();
    });
    return all;
  }

  // Programs that are well, and whether something may be said of them.
  struct Healthy {
    std::string how;
    bool may_be_noticed = false;
  };
  static std::vector<Healthy> HealthyOnes() {
    return {{"future"},      {"pool"},          {"event"},          {"after_send", true},
            {"evaluator"},   {"rpc_server"},    {"rpc_long", true}, {"key_late", true},
            {"saver_works"}, {"end_late", true}};
  }
  // Nobody is accused or ended, although all of them wait for longer than --hang_timeout.
  void ExpectNoHangs(Shape shape) {
    const std::vector<Healthy> programs = HealthyOnes();
    const size_t at_once = std::max(1, kRanksAtOnce / shape.num_ranks());
    for (size_t begin = 0; begin < programs.size(); begin += at_once) {
      std::vector<std::pair<Healthy, std::vector<Subprocess>>> jobs;
      for (size_t i = begin; i < std::min(begin + at_once, programs.size()); ++i) {
        jobs.emplace_back(programs[i],
                          StartAgents(programs[i].how, shape,
                                      {"--max_restarts=1", "--watch=restart", "--hang_timeout=12"},
                                      {{"SECONDS", "40"}}));
      }
      for (auto& [program, agents] : jobs) {
        for (Subprocess& agent : agents) ExpectNoHang(program, agent.Wait(kPatience));
      }
    }
  }

  static void ExpectNoHang(const Healthy& program, const SubprocessResult& result) {
    using ::testing::AllOf, ::testing::HasSubstr, ::testing::Not;
    EXPECT_THAT(result, ExitsWith(0)) << program.how;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))))
        << program.how;
    if (program.may_be_noticed) return;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("has not")), Not(HasSubstr("in no operation"))))
        << program.how;
  }
};

}  // namespace muster::testing
