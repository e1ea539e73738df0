// `python -m MODULE ...`, as another launcher is started by those who want a certain Python.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "launcher/line/run_options.h"
#include "launcher/peers/peer_line.h"
#include "proto/command_line/command_line.h"

namespace muster::launcher {
namespace {

using Words = std::vector<std::string>;

struct PeerModule {
  const char* module;
  Words becomes;
  bool gives_local_rank = false;  // as an argument, too
};

const std::vector<PeerModule>& PeerModules() {
  static const std::vector<PeerModule> rows = {
      {"torch.distributed.run", {"run"}},
      {"torch.distributed.launch", {"run"}, true},
      {"accelerate.commands.launch", {"accelerate", "launch"}},
      {"accelerate.commands.accelerate_cli", {"accelerate"}},
      {"deepspeed.launcher.runner", {"deepspeed"}}};
  return rows;
}

// python, python3, /venv/bin/python3.11.
bool IsPython(absl::string_view word) {
  word.remove_prefix(word.rfind('/') + 1);
  return absl::ConsumePrefix(&word, "python") && std::all_of(word.begin(), word.end(), [](char c) {
           return absl::ascii_isdigit(c) || c == '.';
         });
}

// Options of the interpreter without a value (-u, -O) are lost to the workers of torchrun, too.
bool IsFlagOfPython(absl::string_view word) {
  return word.size() == 2 && word[0] == '-' && absl::ascii_isalpha(word[1]) &&
         !absl::StrContains("cmXW", word[1]);
}

// `args` are those of `muster run`.
void InsertLocalRank(Words& args) {
  RunChoices choices;
  const auto line = command_line::Split(RunGrammar(choices), args, {});
  if (!line.ok() || line->script.empty() || line->IsOn("use_env")) return;
  size_t script = args.size() - line->script.size();
  if (args[script] != line->script.front()) --script;  // with a `--` behind it
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(script) + 1, "--local-rank=${local_rank}");
}

}  // namespace

bool TakeModuleLine(std::vector<std::string>& args, EnvironmentMap& environment) {
  if (args.empty() || !IsPython(args.front())) return false;
  const auto option = std::find_if_not(args.begin() + 1, args.end(), IsFlagOfPython);
  if (args.end() - option < 2 || *option != "-m") return false;
  const auto row = std::find_if(PeerModules().begin(), PeerModules().end(),
                                [&](const PeerModule& each) { return each.module == option[1]; });
  if (row == PeerModules().end()) return false;
  Words rest(option + 2, args.end());
  if (row->gives_local_rank) InsertLocalRank(rest);
  if (VariableOrEmpty(environment, "PYTHON_EXEC").empty()) {
    environment["PYTHON_EXEC"] = args.front();
  }
  args = row->becomes;
  args.insert(args.end(), rest.begin(), rest.end());
  return true;
}

}  // namespace muster::launcher
