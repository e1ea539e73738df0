// The command line of `ilab model train`, and the `muster run` that starts its trainer.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launcher/peers/peer_line.h"

namespace muster::launcher {
namespace {

// What InstructLab gives to torchrun, and what to its trainer.
struct Renamed {
  const char* option;
  const char* becomes;
};
constexpr Renamed kOfTheLauncher[] = {
    {"gpus", "nproc_per_node"},     {"num_gpus", "nproc_per_node"},
    {"nnodes", "nnodes"},           {"node_rank", "node_rank"},
    {"rdzv_id", "rdzv_id"},         {"rdzv_endpoint", "rdzv_endpoint"},
    {"master_addr", "master_addr"}, {"master_port", "master_port"}};
constexpr Renamed kOfTheTrainer[] = {
    {"model_path", "model_name_or_path"}, {"ckpt_output_dir", "output_dir"},
    {"num_epochs", "num_epochs"},         {"effective_batch_size", "effective_batch_size"},
    {"learning_rate", "learning_rate"},   {"warmup_steps", "num_warmup_steps"},
    {"save_samples", "save_samples"},     {"max_batch_len", "max_batch_len"}};

template <typename Rows>
const char* Find(const Rows& rows, const std::string& option) {
  for (const Renamed& row : rows) {
    if (option == row.option) return row.becomes;
  }
  return nullptr;
}

// Quotes `text` for a shell where that is needed.
std::string Quoted(const std::string& text) {
  const bool is_plain =
      text.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%") ==
      std::string::npos;
  if (is_plain) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

}  // namespace

absl::StatusOr<std::string> MusterLineForInstructLab(const std::vector<std::string>& args) {
  std::vector<std::string> launcher, trainer;
  std::string data = "DATA";
  bool has_count = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!absl::StartsWith(args[i], "--")) continue;
    const size_t equals = args[i].find('=');
    const std::string option = absl::StrReplaceAll(
        args[i].substr(2, equals == std::string::npos ? equals : equals - 2), {{"-", "_"}});
    const char* const by_us = Find(kOfTheLauncher, option);
    const char* const by_it = Find(kOfTheTrainer, option);
    const bool is_data = option == "data_output_dir";
    if (by_us == nullptr && by_it == nullptr && !is_data) continue;
    if (equals == std::string::npos && i + 1 == args.size()) {
      return absl::InvalidArgumentError(absl::StrCat(args[i], " needs a value"));
    }
    const std::string value = equals == std::string::npos ? args[++i] : args[i].substr(equals + 1);
    if (is_data) data = value;
    if (by_us != nullptr) {
      launcher.push_back(absl::StrCat("--", by_us, "=", value));
      has_count = has_count || absl::string_view(by_us) == "nproc_per_node";
    } else if (by_it != nullptr) {
      trainer.push_back(absl::StrCat("--", by_it, "=", value));
    }
  }
  if (!has_count) launcher.insert(launcher.begin(), "--nproc_per_node=gpu");
  trainer.insert(trainer.begin(), absl::StrCat("--data_path=", data, "/data.jsonl"));
  std::vector<std::string> words = {"muster", "run"};
  words.insert(words.end(), launcher.begin(), launcher.end());
  words.insert(words.end(), {"-m", "instructlab.training.main_ds"});
  words.insert(words.end(), trainer.begin(), trainer.end());
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    absl::StrAppend(out, Quoted(word));
  });
}

}  // namespace muster::launcher
