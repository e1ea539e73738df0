#include "worker_runtime/options/instructlab_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"

namespace muster::plan {
namespace {

using Type = ConfigKey::Type;
using Use = ConfigKey::Use;

constexpr char kOther[] = "not about training";
constexpr char kLaunching[] = "for launching; muster run --ilab reads it";
constexpr char kData[] = "--data names the training data";
constexpr char kPhased[] = "for InstructLab's phases; training here has a single phase";
constexpr char kNoLora[] =
    "--lora=RANK asks for adapters here, whose product is added as it is: alpha is the rank";
constexpr char kSteps[] = "--steps sets the length of training";
constexpr char kSave[] = "--save_every sets when checkpoints are written";

constexpr ConfigKey kKeys[] = {
    {"chat", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"evaluate", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"general", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"generate", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"log_level", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"mcp", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"metadata", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"rag", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"serve", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"version", Type::kAny, Use::kWithoutEffect, "", kOther},
    {"train", Type::kAny, Use::kSection},
    // Ranks
    {"train.distributed", Type::kBool},
    {"train.num_gpus", Type::kWhole},
    {"train.nproc_per_node", Type::kWhole},
    {"train.nnodes", Type::kWhole},
    {"train.node_rank", Type::kWhole, Use::kWithoutEffect, "", kLaunching},
    {"train.rdzv_id", Type::kAny, Use::kWithoutEffect, "", kLaunching},
    {"train.rdzv_endpoint", Type::kAny, Use::kWithoutEffect, "", kLaunching},
    {"train.master_addr", Type::kAny, Use::kWithoutEffect, "", kLaunching},
    {"train.master_port", Type::kAny, Use::kWithoutEffect, "", kLaunching},
    {"train.device", Type::kText},
    // Batches
    {"train.batch_size", Type::kWhole, Use::kOption, "batch_size"},
    {"train.gradient_accumulation_steps", Type::kWhole, Use::kOption,
     "gradient_accumulation_steps"},
    {"train.effective_batch_size", Type::kWhole, Use::kOption, "train_batch_size"},
    {"train.max_batch_len", Type::kWhole, Use::kWithoutEffect, "",
     "sequences have one length, and batch_size says how many there are"},
    // Memory and types
    {"train.gradient_checkpointing", Type::kBool},
    {"train.mixed_precision", Type::kAny},
    {"train.disable_flash_attn", Type::kBool, Use::kWithoutEffect, "",
     "--cuda_attention chooses the attention kernels"},
    {"train.distributed_backend", Type::kText},
    {"train.fsdp_cpu_offload_optimizer", Type::kBool},
    {"train.deepspeed_cpu_offload_optimizer", Type::kBool},
    {"train.deepspeed_cpu_offload_optimizer_pin_memory", Type::kBool, Use::kWithoutEffect, "",
     "nothing is copied to a device, so nothing needs to be pinned"},
    {"train.deepspeed_cpu_offload_optimizer_ratio", Type::kNumber, Use::kOnly, "1",
     "an optimizer is offloaded whole or not at all; expected 1"},
    {"train.deepspeed", Type::kAny, Use::kSection},
    {"train.deepspeed.enabled", Type::kBool},
    {"train.deepspeed.config_path", Type::kText},
    {"train.deepspeed.zero_stage", Type::kWhole},
    // Model
    {"train.model", Type::kAny, Use::kSection},
    {"train.model.base", Type::kText, Use::kOption, "model"},
    {"train.model.max_seq_length", Type::kWhole, Use::kOption, "sequence_length"},
    {"train.model_path", Type::kText, Use::kOption, "model"},
    {"train.max_seq_len", Type::kWhole, Use::kOption, "sequence_length"},
    {"train.lora_rank", Type::kWhole, Use::kOnly, "0", kNoLora},
    {"train.lora_alpha", Type::kWhole, Use::kWithoutEffect, "", kNoLora},
    {"train.lora_dropout", Type::kNumber, Use::kWithoutEffect, "", kNoLora},
    {"train.lora_quantize_dtype", Type::kAny, Use::kOnly, "null", kNoLora},
    {"train.lora_target_modules", Type::kAny, Use::kWithoutEffect, "", kNoLora},
    {"train.is_padding_free", Type::kBool, Use::kWithoutEffect, "", "batches have no padding"},
    // Data, files and phases
    {"train.data_path", Type::kText, Use::kWithoutEffect, "", kData},
    {"train.data_output_dir", Type::kText, Use::kWithoutEffect, "", kData},
    {"train.ckpt_output_dir", Type::kText, Use::kOption, "save"},
    {"train.save_samples", Type::kWhole, Use::kWithoutEffect, "", kSave},
    {"train.checkpoint_at_epoch", Type::kBool, Use::kWithoutEffect, "", kSave},
    {"train.num_epochs", Type::kWhole, Use::kWithoutEffect, "", kSteps},
    {"train.pipeline", Type::kText, Use::kWithoutEffect, "", kPhased},
    {"train.training_journal", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_base_dir", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_mt_bench_judge", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase1_effective_batch_size", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase1_learning_rate", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase1_num_epochs", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase1_samples_per_save", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase2_effective_batch_size", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase2_learning_rate", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase2_num_epochs", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.phased_phase2_samples_per_save", Type::kAny, Use::kWithoutEffect, "", kPhased},
    {"train.additional_args", Type::kAny, Use::kDisabled, "",
     "arguments of another program; give muster-train its own options"},
};

class Reading {
 public:
  Reading(const ConfigFileText& file, ConfigCompat compat)
      : file_(file), reading_(file.name, kKeys, compat) {}

  absl::StatusOr<InstructLabContents> Run() {
    MUSTER_ASSIGN_OR_RETURN(ConfigNode root, reading_.ReadYaml(file_.text));
    MUSTER_RETURN_IF_ERROR(reading_.Walk(root));
    if (reading_.Find("train") == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file_.name, ": the section train is missing"));
    }
    MUSTER_RETURN_IF_ERROR(SetRanks());
    MUSTER_RETURN_IF_ERROR(SetPrecision());
    MUSTER_RETURN_IF_ERROR(SetStrategy());
    const char* const recompute = "train.gradient_checkpointing";
    if (reading_.Find(recompute) != nullptr) {
      reading_.Set("recompute", reading_.Bool(recompute) ? "full" : "none", recompute);
    }
    const char* const device = "train.device";
    if (reading_.Find(device) != nullptr) {
      reading_.Set("device", reading_.Text(device, ""), device);
    }
    found_.contents = reading_.Finish();
    return std::move(found_);
  }

 private:
  absl::Status SetRanks() {
    const bool says_gpus = reading_.Find("train.num_gpus") != nullptr;
    const char* const path = says_gpus ? "train.num_gpus" : "train.nproc_per_node";
    if (says_gpus && reading_.Find("train.nproc_per_node") != nullptr) {
      return reading_.Bad("train.nproc_per_node", "says the same as num_gpus; leave one out");
    }
    const int64_t of_node = reading_.Whole(path, 1);
    const int64_t nodes = reading_.Whole("train.nnodes", 1);
    if (of_node < 1) return reading_.Bad(path, "expected 1 or more");
    if (nodes < 1) return reading_.Bad("train.nnodes", "expected 1 or more");
    const char* const distributed = "train.distributed";
    if (reading_.Find(distributed) != nullptr) {
      if (!reading_.Bool(distributed) && of_node * nodes > 1) {
        return reading_.Bad(distributed, absl::StrCat("one process, but the file asks for ",
                                                      of_node * nodes, " ranks"));
      }
      reading_.NoEffect(distributed, "the number of ranks decides it");
    }
    if (reading_.Find(path) != nullptr) {
      reading_.Set("nproc_per_node", absl::StrCat(of_node), path);
      reading_.Set("world_size", absl::StrCat(of_node * nodes), path);
    }
    if (reading_.Find("train.nnodes") != nullptr) {
      reading_.Set("world_size", absl::StrCat(of_node * nodes), "train.nnodes");
    }
    return absl::OkStatus();
  }

  absl::Status SetPrecision() {
    const char* const path = "train.mixed_precision";
    if (reading_.Find(path) == nullptr) return absl::OkStatus();
    std::string precision = absl::AsciiStrToLower(reading_.Text(path, "no"));
    if (precision == "false") precision = "no";
    const std::vector<std::string> known = {"no", "fp16", "bf16"};
    if (std::find(known.begin(), known.end(), precision) == known.end()) {
      return reading_.Bad(path,
                          absl::StrCat("expected no, fp16 or bf16", DidYouMean(precision, known)));
    }
    reading_.Set("dtype", precision == "no" ? "f32" : precision == "fp16" ? "f16" : "bf16", path);
    return absl::OkStatus();
  }

  absl::Status SetStrategy() {
    const char* const enabled = "train.deepspeed.enabled";
    const char* const stage = "train.deepspeed.zero_stage";
    const char* const file = "train.deepspeed.config_path";
    const bool uses_deepspeed = reading_.Bool(enabled);
    if (reading_.Find(enabled) != nullptr) {
      reading_.NoEffect(enabled, uses_deepspeed ? "config_path and zero_stage apply"
                                                : "config_path and zero_stage do not apply");
    }
    const int64_t number = reading_.Whole(stage, 0);
    if (number < 0 || number > 3) return reading_.Bad(stage, "expected a stage of ZeRO, 0 to 3");
    if (uses_deepspeed && reading_.Find(file) != nullptr) {
      found_.deepspeed_file = reading_.Text(file, "");
      found_.deepspeed_source = reading_.SourceOf(file);
    }
    if (reading_.Find(stage) != nullptr && uses_deepspeed) {
      found_.zero_stage = absl::StrCat(number);
      found_.stage_source = reading_.SourceOf(stage);
      if (found_.deepspeed_file.empty()) {
        reading_.Set("plan", absl::StrCat("zero-", number), stage);
      } else {
        reading_.NoEffect(stage, "the file of config_path says the same");
      }
    } else if (reading_.Find(stage) != nullptr) {
      reading_.NoEffect(stage, "deepspeed is not enabled");
    }
    if (!uses_deepspeed && reading_.Find(file) != nullptr) {
      reading_.NoEffect(file, "deepspeed is not enabled");
    }
    MUSTER_RETURN_IF_ERROR(SetBackend(uses_deepspeed));
    for (const auto& [key, backend] : {std::pair{"train.fsdp_cpu_offload_optimizer", "fsdp"},
                                       {"train.deepspeed_cpu_offload_optimizer", "deepspeed"}}) {
      if (reading_.Find(key) == nullptr) continue;
      if (backend_ != backend) {
        reading_.NoEffect(key, absl::StrCat("applies only with ", backend));
      } else {
        reading_.Set("offload_optimizer", reading_.Bool(key) ? "cpu" : "none", key);
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetBackend(bool uses_deepspeed) {
    const char* const path = "train.distributed_backend";
    backend_ = reading_.Text(path, uses_deepspeed ? "deepspeed" : "fsdp");
    if (reading_.Find(path) == nullptr) return absl::OkStatus();
    const std::vector<std::string> known = {"fsdp", "deepspeed"};
    if (std::find(known.begin(), known.end(), backend_) == known.end()) {
      return reading_.Bad(path,
                          absl::StrCat("expected fsdp or deepspeed", DidYouMean(backend_, known)));
    }
    if (uses_deepspeed && backend_ == "fsdp") {
      return reading_.Bad(path, "deepspeed.enabled is true too; leave one out");
    }
    if (uses_deepspeed) {
      reading_.NoEffect(path, "set by deepspeed.enabled");
    } else {
      // InstructLab trains with FULL_SHARD under FSDP, and with stage 2 under DeepSpeed.
      reading_.Set("plan", backend_ == "fsdp" ? "full-shard" : "zero-2", path);
    }
    return absl::OkStatus();
  }

  const ConfigFileText& file_;
  ConfigReading reading_;
  std::string backend_;
  InstructLabContents found_;
};

}  // namespace

absl::StatusOr<InstructLabContents> ReadInstructLabConfig(const ConfigFileText& file,
                                                          ConfigCompat compat) {
  return Reading(file, compat).Run();
}

}  // namespace muster::plan
