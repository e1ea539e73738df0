#include "worker_runtime/options/instructlab_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/dialects/instructlab.h"

namespace muster::plan {
namespace {

class InstructLabReading {
 public:
  InstructLabReading(const ConfigFileText& file, ConfigCompat compat)
      : file_(file), reading_(file.name, InstructLabKeys(), compat) {}

  absl::StatusOr<InstructLabContents> Run() {
    MUSTER_ASSIGN_OR_RETURN(ConfigNode root, reading_.ReadYaml(file_.text));
    MUSTER_RETURN_IF_ERROR(reading_.Walk(root));
    if (reading_.Find("train") == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file_.name, ": the section train is missing"));
    }
    MUSTER_RETURN_IF_ERROR(SetRanks());
    const char* const precision = "train.mixed_precision";
    if (reading_.Find(precision) != nullptr) {
      MUSTER_RETURN_IF_ERROR(
          reading_.SetPrecision(precision, reading_.Text(precision, "no")).status());
    }
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
    MUSTER_RETURN_IF_ERROR(reading_.CheckChoice(path, backend_, {"fsdp", "deepspeed"}));
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
  return InstructLabReading(file, compat).Run();
}

}  // namespace muster::plan
