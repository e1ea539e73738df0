#include "launcher/config/instructlab_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"

namespace muster::launcher {
namespace {

constexpr char kSection[] = "train";
constexpr size_t kNamedKeys = 3;

// Beside `train`, in the file of all of InstructLab.
constexpr std::array<absl::string_view, 10> kOtherSections = {
    "chat", "evaluate", "general", "generate", "log_level",
    "mcp",  "metadata", "rag",     "serve",    "version"};

// A key and the option of `muster run` that says the same.
struct Row {
  const char* key;
  const char* option;
};

constexpr Row kTaken[] = {
    {"num_gpus", "nproc_per_node"}, {"nproc_per_node", "nproc_per_node"},
    {"nnodes", "nnodes"},           {"node_rank", "node_rank"},
    {"rdzv_id", "rdzv_id"},         {"rdzv_endpoint", "rdzv_endpoint"},
    {"master_addr", "master_addr"}, {"master_port", "master_port"},
};

// They say what is trained and how.
constexpr const char* kOfTheProgram[] = {
    "additional_args",
    "batch_size",
    "checkpoint_at_epoch",
    "ckpt_output_dir",
    "data_output_dir",
    "data_path",
    "deepspeed.config_path",
    "deepspeed.enabled",
    "deepspeed.zero_stage",
    "deepspeed_cpu_offload_optimizer",
    "deepspeed_cpu_offload_optimizer_pin_memory",
    "deepspeed_cpu_offload_optimizer_ratio",
    "device",
    "disable_flash_attn",
    "distributed_backend",
    "effective_batch_size",
    "fsdp_cpu_offload_optimizer",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "is_padding_free",
    "lora_alpha",
    "lora_dropout",
    "lora_quantize_dtype",
    "lora_rank",
    "lora_target_modules",
    "max_batch_len",
    "max_seq_len",
    "mixed_precision",
    "model.base",
    "model.max_seq_length",
    "model_path",
    "num_epochs",
    "phased_base_dir",
    "phased_mt_bench_judge",
    "phased_phase1_effective_batch_size",
    "phased_phase1_learning_rate",
    "phased_phase1_num_epochs",
    "phased_phase1_samples_per_save",
    "phased_phase2_effective_batch_size",
    "phased_phase2_learning_rate",
    "phased_phase2_num_epochs",
    "phased_phase2_samples_per_save",
    "pipeline",
    "save_samples",
    "training_journal",
};

absl::Status Wrong(int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

absl::Status Bad(absl::string_view key, const PythonValue& value, absl::string_view why) {
  return Wrong(value.line, absl::StrCat(kSection, ".", key, ": ", value.text, ": ", why));
}

const char* OptionOf(absl::string_view key) {
  for (const Row& row : kTaken) {
    if (key == row.key) return row.option;
  }
  return nullptr;
}

bool IsOfTheProgram(absl::string_view key) {
  return absl::StartsWith(key, "additional_args.") ||
         std::find(std::begin(kOfTheProgram), std::end(kOfTheProgram), key) !=
             std::end(kOfTheProgram);
}

absl::Status UnknownKey(const std::string& key, int line) {
  std::vector<std::string> known(std::begin(kOfTheProgram), std::end(kOfTheProgram));
  for (const Row& row : kTaken) known.push_back(row.key);
  known.push_back("distributed");
  return Wrong(line, absl::StrCat("unknown key '", key, "' in ", kSection, DidYouMean(key, known)));
}

absl::Status CheckSections(const PythonSection& section) {
  if (!section.is_there) {
    return absl::InvalidArgumentError(absl::StrCat("the section ", kSection, " is missing"));
  }
  for (const auto& [name, line] : section.others) {
    if (std::find(kOtherSections.begin(), kOtherSections.end(), name) != kOtherSections.end()) {
      continue;
    }
    std::vector<std::string> known(kOtherSections.begin(), kOtherSections.end());
    known.push_back(kSection);
    return Wrong(line, absl::StrCat("unknown key '", name, "'", DidYouMean(name, known)));
  }
  return absl::OkStatus();
}

// A number of workers, or torchrun's words for one.
absl::Status CheckWorkers(const std::string& key, const PythonValue& value) {
  int number = 0;
  const bool is_number = absl::SimpleAtoi(value.text, &number);
  if (is_number ? number >= 1 : value.text == "gpu" || value.text == "auto") {
    return absl::OkStatus();
  }
  return Bad(key, value, "expected a number of GPUs of 1 or more, or gpu");
}

std::string NoteOnTheRest(const std::vector<std::string>& keys) {
  const size_t named = std::min(keys.size(), kNamedKeys);
  const std::string names = absl::StrJoin(keys.begin(), keys.begin() + named, ", ");
  return absl::StrCat(keys.size(), keys.size() == 1 ? " key" : " keys", " of ", kSection, " (",
                      names, keys.size() > named ? ", ..." : "",
                      ") say what is trained and how: that is for the program to read");
}

}  // namespace

absl::StatusOr<LaunchConfig> ReadInstructLabConfig(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(const PythonSection section, ReadPythonYamlSection(text, kSection));
  MUSTER_RETURN_IF_ERROR(CheckSections(section));
  LaunchConfig config{.notes = section.notes};
  std::map<std::string, std::string> sources;  // by option
  std::vector<std::string> rest;
  PythonValue distributed{PythonValue::Kind::kBool, "True"};
  for (const auto& [key, value] : section.values) {
    if (key == "distributed") {
      if (value.kind != PythonValue::Kind::kBool) return Bad(key, value, "expected true or false");
      distributed = value;
    } else if (IsOfTheProgram(key)) {
      rest.push_back(key);
    } else if (const char* option = OptionOf(key)) {
      if (value.is_none()) continue;
      if (!sources.emplace(option, key).second) {
        return Bad(key, value, absl::StrCat("says the same as ", sources[option]));
      }
      const bool counts_workers = absl::string_view(option) == "nproc_per_node";
      if (counts_workers) MUSTER_RETURN_IF_ERROR(CheckWorkers(key, value));
      config.options.push_back({option, value.text, absl::StrCat(kSection, ".", key)});
    } else {
      return UnknownKey(key, value.line);
    }
  }
  for (const TakenOption& taken : config.options) {
    if (distributed.is_true() || taken.option != "nproc_per_node" || taken.value == "1") continue;
    return Bad("distributed", distributed,
               absl::StrCat("one process, but ", taken.source, " is ", taken.value));
  }
  if (!rest.empty()) config.notes.push_back(NoteOnTheRest(rest));
  return config;
}

}  // namespace muster::launcher
