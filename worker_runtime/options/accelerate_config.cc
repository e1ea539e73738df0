#include "worker_runtime/options/accelerate_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"

namespace muster::plan {
namespace {

using Type = ConfigKey::Type;
using Train = TrainingUse;

constexpr char kLaunching[] = "for launching; muster run --config_file reads it";
constexpr char kNoTpu[] = "this version does not support TPUs; leave it out";
constexpr char kWhole[] =
    "checkpoints always hold the whole model, and any number of ranks loads it";
constexpr char kNoDynamo[] = "no PyTorch runs here";
constexpr char kOfDeepSpeed[] = "read in a file of DeepSpeed's own alone, deepspeed_config_file";
constexpr char kBlocks[] = "units are the model's blocks";

constexpr ConfigKey kKeys[] = {
    {"compute_environment", Type::kText,
     Train::Only("LOCAL_MACHINE", "jobs run on your own machines; use LOCAL_MACHINE")},
    {"distributed_type", Type::kAny},
    {"mixed_precision", Type::kAny},
    {"fp16", Type::kBool},  // of older versions; without mixed_precision it says the same
    {"use_cpu", Type::kBool},
    {"num_processes", Type::kWhole},
    {"num_machines", Type::kWhole},
    {"machine_rank", Type::kWhole, Train::NoEffect(kLaunching)},
    {"main_process_ip", Type::kAny, Train::NoEffect(kLaunching)},
    {"main_process_port", Type::kWhole, Train::NoEffect(kLaunching)},
    {"rdzv_backend", Type::kText, Train::NoEffect(kLaunching)},
    {"same_network", Type::kBool, Train::NoEffect(kLaunching)},
    {"gpu_ids", Type::kAny, Train::NoEffect(kLaunching)},
    {"main_training_function", Type::kText, Train::NoEffect(kLaunching)},
    {"enable_cpu_affinity", Type::kBool, Train::NoEffect(kLaunching)},
    {"debug", Type::kBool, Train::NoEffect("calls of all ranks are compared in every run")},
    {"downcast_bf16", Type::kAny, Train::NoEffect("for TPUs only")},
    {"dynamo_backend", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config", Type::kAny, Train::Section()},
    {"dynamo_config.dynamo_backend", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config.dynamo_mode", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config.dynamo_use_fullgraph", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config.dynamo_use_dynamic", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config.dynamo_use_regional_compilation", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"tpu_name", Type::kAny, Train::Only("null", kNoTpu)},
    {"tpu_zone", Type::kAny, Train::Only("null", kNoTpu)},
    {"tpu_use_cluster", Type::kBool, Train::Only("false", kNoTpu)},
    {"tpu_use_sudo", Type::kBool, Train::Only("false", kNoTpu)},
    {"tpu_env", Type::kAny, Train::Disabled(kNoTpu)},
    {"tpu_vm", Type::kAny, Train::Disabled(kNoTpu)},
    {"command_file", Type::kAny, Train::Only("null", kNoTpu)},
    {"commands", Type::kAny, Train::Only("null", kNoTpu)},
    {"fp8_config", Type::kAny,
     Train::Disabled("this version computes in f32, bf16 and fp16; use mixed_precision: bf16")},
    {"megatron_lm_config", Type::kAny,
     Train::Disabled(
         "this version has no tensor parallelism; use FSDP, or --stages=N for a pipeline")},
    {"parallelism_config", Type::kAny,
     Train::Disabled("this version has data parallelism and pipelines; use FSDP, or --stages=N")},
    {"mpirun_config", Type::kAny,
     Train::Disabled("muster-train understands the variables of mpirun by itself; leave it out")},
    // FSDP
    {"fsdp_config", Type::kAny, Train::Section()},
    {"fsdp_config.fsdp_version", Type::kWhole},
    {"fsdp_config.fsdp_sharding_strategy", Type::kAny},
    {"fsdp_config.fsdp_reshard_after_forward", Type::kAny},
    {"fsdp_config.fsdp_backward_prefetch_policy", Type::kAny,
     Train::NoEffect("accelerate does not read it; its name is fsdp_backward_prefetch now")},
    {"fsdp_config.fsdp_backward_prefetch", Type::kText},
    {"fsdp_config.fsdp_forward_prefetch", Type::kBool},
    {"fsdp_config.fsdp_offload_params", Type::kBool},
    {"fsdp_config.fsdp_auto_wrap_policy", Type::kText},
    {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", Type::kAny, Train::NoEffect(kBlocks)},
    {"fsdp_config.fsdp_min_num_params", Type::kWhole,
     Train::NoEffect("it counts with SIZE_BASED_WRAP alone")},
    {"fsdp_config.fsdp_state_dict_type", Type::kText},
    {"fsdp_config.fsdp_use_orig_params", Type::kBool,
     Train::NoEffect("parameters always keep their own names and shapes")},
    {"fsdp_config.fsdp_cpu_ram_efficient_loading", Type::kBool,
     Train::NoEffect("rank 0 reads a checkpoint and the others receive it")},
    {"fsdp_config.fsdp_sync_module_states", Type::kBool,
     Train::Only("true", "all ranks begin with the same parameters, by the seed; leave it out")},
    {"fsdp_config.fsdp_activation_checkpointing", Type::kBool},
    {"fsdp_config.fsdp_activation_checkpointing_offload", Type::kBool,
     Train::Only("false",
                 "activations stay on the device; fsdp_activation_checkpointing keeps one input "
                 "per layer")},
    {"fsdp_config.fsdp_ignored_modules", Type::kAny,
     Train::Only("null", "all parameters are sharded; leave it out")},
    // DeepSpeed
    {"deepspeed_config", Type::kAny, Train::Section()},
    {"deepspeed_config.zero_stage", Type::kWhole},
    {"deepspeed_config.gradient_accumulation_steps", Type::kWhole,
     Train::Option("gradient_accumulation_steps")},
    {"deepspeed_config.gradient_clipping", Type::kNumber, Train::Option("max_gradient_norm")},
    {"deepspeed_config.offload_optimizer_device", Type::kText},
    {"deepspeed_config.offload_param_device", Type::kText},
    {"deepspeed_config.offload_optimizer_nvme_path", Type::kText,
     Train::NoEffect("nothing goes to NVMe")},
    {"deepspeed_config.offload_param_nvme_path", Type::kText,
     Train::NoEffect("nothing goes to NVMe")},
    {"deepspeed_config.zero3_init_flag", Type::kBool,
     Train::NoEffect("a rank only ever takes memory for its own shard")},
    {"deepspeed_config.zero3_save_16bit_model", Type::kBool, Train::NoEffect(kWhole)},
    {"deepspeed_config.steps_per_print", Type::kAny, Train::NoEffect(kOfDeepSpeed)},
    {"deepspeed_config.train_batch_size", Type::kAny, Train::NoEffect(kOfDeepSpeed)},
    {"deepspeed_config.train_micro_batch_size_per_gpu", Type::kAny, Train::NoEffect(kOfDeepSpeed)},
    {"deepspeed_config.wall_clock_breakdown", Type::kAny, Train::NoEffect(kOfDeepSpeed)},
    {"deepspeed_config.deepspeed_config_file", Type::kText},
    {"deepspeed_config.deepspeed_multinode_launcher", Type::kText, Train::NoEffect(kLaunching)},
    {"deepspeed_config.deepspeed_hostfile", Type::kText, Train::NoEffect(kLaunching)},
    {"deepspeed_config.deepspeed_exclusion_filter", Type::kText, Train::NoEffect(kLaunching)},
    {"deepspeed_config.deepspeed_inclusion_filter", Type::kText, Train::NoEffect(kLaunching)},
    {"deepspeed_config.deepspeed_moe_layer_cls_names", Type::kAny,
     Train::Only("null", "this version has no experts; leave it out")},
};

constexpr char kFsdp[] = "fsdp_config.fsdp_";
constexpr char kDeepSpeed[] = "deepspeed_config.";

std::string Fsdp(const char* key) { return absl::StrCat(kFsdp, key); }
std::string DeepSpeed(const char* key) { return absl::StrCat(kDeepSpeed, key); }

// Accelerate knows the keys of fsdp_config with and without their beginning.
void CompleteNames(ConfigNode& root) {
  for (auto& [name, block] : root.members) {
    if (name != "fsdp_config") continue;
    for (auto& [key, value] : block.members) {
      if (absl::StartsWith(key, "fsdp_")) continue;
      const std::string full = absl::StrCat("fsdp_", key);
      const bool is_known = std::any_of(
          std::begin(kKeys), std::end(kKeys),
          [&](const ConfigKey& row) { return absl::StrCat("fsdp_config.", full) == row.path; });
      if (is_known) key = full;
    }
  }
}

class Reading {
 public:
  Reading(const ConfigFileText& file, ConfigCompat compat)
      : file_(file), reading_(file.name, kKeys, compat) {}

  absl::StatusOr<AccelerateContents> Run() {
    MUSTER_ASSIGN_OR_RETURN(ConfigNode root, reading_.ReadYaml(file_.text));
    CompleteNames(root);
    MUSTER_RETURN_IF_ERROR(reading_.Walk(root));
    MUSTER_RETURN_IF_ERROR(SetKind());
    MUSTER_RETURN_IF_ERROR(SetRanks());
    MUSTER_RETURN_IF_ERROR(SetPrecision());
    if (kind_ == "FSDP") MUSTER_RETURN_IF_ERROR(SetFsdp());
    if (kind_ == "DEEPSPEED") MUSTER_RETURN_IF_ERROR(SetDeepSpeed());
    found_.contents = reading_.Finish();
    return std::move(found_);
  }

 private:
  absl::Status SetKind() {
    const char* const path = "distributed_type";
    if (reading_.Find(path) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.name, ": the key distributed_type is missing"));
    }
    kind_ = reading_.Text(path, "NO");
    if (kind_ == "false") kind_ = "NO";  // an unquoted `no` is that in YAML
    const std::vector<std::string> known = {"NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED", "FSDP"};
    if (std::find(known.begin(), known.end(), kind_) == known.end()) {
      return reading_.Bad(path,
                          absl::StrCat("expected NO, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP; "
                                       "others are not in this version",
                                       DidYouMean(kind_, known)));
    }
    for (const auto& [section, kind] :
         {std::pair{"fsdp_config", "FSDP"}, {"deepspeed_config", "DEEPSPEED"}}) {
      const ConfigNode* const node = reading_.Find(section);
      if (node == nullptr || node->members.empty() || kind_ == kind) continue;
      MUSTER_RETURN_IF_ERROR(
          reading_.Refuse(section, absl::StrCat("it needs distributed_type: ", kind, ", which is ",
                                                kind_, "; leave one of them out")));
    }
    const bool on_cpu = reading_.Bool("use_cpu") || kind_ == "MULTI_CPU";
    if (reading_.Bool("use_cpu") && kind_ == "MULTI_GPU") {
      return reading_.Bad("use_cpu", "distributed_type is MULTI_GPU; use MULTI_CPU there");
    }
    const bool says_cpu = reading_.Find("use_cpu") != nullptr && kind_ != "MULTI_CPU";
    reading_.Set("device", on_cpu ? "cpu" : "cuda", says_cpu ? "use_cpu" : path);
    if (!says_cpu && reading_.Find("use_cpu") != nullptr) {
      reading_.NoEffect("use_cpu", "distributed_type says MULTI_CPU");
    }
    if (kind_ != "DEEPSPEED" && kind_ != "FSDP") reading_.Set("plan", "ddp", path);
    return absl::OkStatus();
  }

  absl::Status SetRanks() {
    const int64_t machines = reading_.Whole("num_machines", 1);
    const int64_t processes = reading_.Whole("num_processes", kind_ == "NO" ? 1 : 0);
    if (machines < 1) return reading_.Bad("num_machines", "expected 1 or more");
    if (reading_.Find("num_processes") != nullptr) {
      if (processes < 1 || processes % machines != 0) {
        return reading_.Bad("num_processes",
                            absl::StrCat("expected a multiple of num_machines, ", machines,
                                         ": it counts the processes of all machines"));
      }
      reading_.Set("world_size", absl::StrCat(processes), "num_processes");
      if (machines > 1) {
        reading_.Set("nproc_per_node", absl::StrCat(processes / machines), "num_machines");
      } else if (reading_.Find("num_machines") != nullptr) {
        reading_.Set("nproc_per_node", absl::StrCat(processes), "num_machines");
      }
    } else if (reading_.Find("num_machines") != nullptr) {
      reading_.NoEffect("num_machines", kLaunching);
    }
    return absl::OkStatus();
  }

  absl::Status SetPrecision() {
    const bool is_older = reading_.Find("mixed_precision") == nullptr;
    const char* const path = is_older ? "fp16" : "mixed_precision";
    if (reading_.Find(path) == nullptr) return absl::OkStatus();
    std::string precision = absl::AsciiStrToLower(reading_.Text(path, "no"));
    if (is_older) precision = reading_.Bool(path) ? "fp16" : "no";
    if (!is_older && reading_.Find("fp16") != nullptr) {
      reading_.NoEffect("fp16", "mixed_precision says it");
    }
    if (precision == "false") precision = "no";
    if (precision == "fp8") {
      return reading_.Bad(path, "this version computes in f32, bf16 and fp16; use bf16");
    }
    const std::vector<std::string> known = {"no", "fp16", "bf16"};
    if (std::find(known.begin(), known.end(), precision) == known.end()) {
      return reading_.Bad(path,
                          absl::StrCat("expected no, fp16 or bf16", DidYouMean(precision, known)));
    }
    reading_.Set("dtype", precision == "no" ? "f32" : precision == "fp16" ? "f16" : "bf16", path);
    // DeepSpeed scales the loss by itself; elsewhere PyTorch's GradScaler does.
    if (precision == "fp16") {
      reading_.Set("loss_scale", kind_ == "DEEPSPEED" ? "deepspeed" : "torch", path, "f16");
    }
    return absl::OkStatus();
  }

  absl::Status SetFsdp() {
    const int64_t version = reading_.Whole(Fsdp("version"), 1);
    if (version != 1 && version != 2) return reading_.Bad(Fsdp("version"), "expected 1 or 2");
    if (reading_.Find(Fsdp("version")) != nullptr) {
      reading_.NoEffect(Fsdp("version"), "both shard alike here");
    }
    MUSTER_RETURN_IF_ERROR(SetStrategy(version));
    MUSTER_RETURN_IF_ERROR(SetPrefetch());
    MUSTER_RETURN_IF_ERROR(SetWrapping());
    const std::string offload = Fsdp("offload_params");
    if (reading_.Find(offload) != nullptr) {
      // FSDP keeps the optimizer where it keeps the shards.
      const std::string device = reading_.Bool(offload) ? "cpu" : "none";
      reading_.Set("offload_parameters", device, offload);
      reading_.Set("offload_optimizer", device, offload);
    }
    const std::string recompute = Fsdp("activation_checkpointing");
    if (reading_.Find(recompute) != nullptr) {
      reading_.Set("recompute", reading_.Bool(recompute) ? "full" : "none", recompute);
    }
    const std::string state = Fsdp("state_dict_type");
    if (reading_.Find(state) == nullptr) return absl::OkStatus();
    const std::vector<std::string> known = {"FULL_STATE_DICT", "LOCAL_STATE_DICT",
                                            "SHARDED_STATE_DICT"};
    const std::string type = reading_.Text(state, known[0]);
    if (std::find(known.begin(), known.end(), type) == known.end()) {
      return reading_.Bad(
          state, absl::StrCat("expected ", absl::StrJoin(known, ", "), DidYouMean(type, known)));
    }
    reading_.NoEffect(state, kWhole);
    return absl::OkStatus();
  }

  absl::Status SetStrategy(int64_t version) {
    const std::string path = Fsdp("sharding_strategy");
    const std::string reshard = Fsdp("reshard_after_forward");
    const std::vector<std::pair<std::string, std::string>> plans = {
        {"FULL_SHARD", "full-shard"},
        {"SHARD_GRAD_OP", "shard-grad-op"},
        {"NO_SHARD", "ddp"},
        {"HYBRID_SHARD", "hybrid-shard"},
        {"HYBRID_SHARD_ZERO2", "hybrid-shard-zero2"}};
    std::string asked = absl::AsciiStrToUpper(reading_.Text(path, ""));
    bool is_from_reshard = false;
    if (asked.empty() && reading_.Find(reshard) != nullptr) {
      asked = absl::AsciiStrToUpper(reading_.Text(reshard, "true"));
      is_from_reshard = true;
      if (asked == "TRUE") asked = "FULL_SHARD";
      if (asked == "FALSE") asked = "SHARD_GRAD_OP";
    } else if (reading_.Find(reshard) != nullptr) {
      reading_.NoEffect(reshard, version == 1 ? "fsdp_sharding_strategy says it"
                                              : "fsdp_sharding_strategy overrules it");
    }
    if (asked.empty()) {
      reading_.SetDefault("plan", "full-shard", "fsdp_config", "Accelerate's default strategy");
      return absl::OkStatus();
    }
    std::vector<std::string> known;
    for (size_t i = 0; i < plans.size(); ++i) {
      known.push_back(plans[i].first);
      if (asked != plans[i].first && asked != absl::StrCat(i + 1)) continue;
      reading_.Set("plan", plans[i].second, is_from_reshard ? reshard : path);
      return absl::OkStatus();
    }
    return reading_.Bad(
        is_from_reshard ? reshard : path,
        absl::StrCat("expected ", absl::StrJoin(known, ", "),
                     is_from_reshard ? ", true or false" : "", DidYouMean(asked, known)));
  }

  absl::Status SetPrefetch() {
    const std::string backward = Fsdp("backward_prefetch");
    if (reading_.Find(backward) != nullptr) {
      const std::string text = reading_.Text(backward, "");
      const std::vector<std::string> known = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
      if (std::find(known.begin(), known.end(), text) == known.end()) {
        return reading_.Bad(backward, absl::StrCat("expected ", absl::StrJoin(known, ", "),
                                                   DidYouMean(text, known)));
      }
      reading_.Set("backward_prefetch",
                   text == "NO_PREFETCH" ? "none" : absl::AsciiStrToLower(text), backward);
    }
    const std::string forward = Fsdp("forward_prefetch");
    if (reading_.Find(forward) != nullptr) {
      reading_.NoEffect(forward,
                        "--prefetch_units says how many units are gathered ahead, "
                        "forward too");
    }
    return absl::OkStatus();
  }

  absl::Status SetWrapping() {
    const std::string path = Fsdp("auto_wrap_policy");
    if (reading_.Find(path) == nullptr) return absl::OkStatus();
    const std::string policy = reading_.Text(path, "");
    const std::vector<std::string> known = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};
    if (policy == known[0]) {
      reading_.NoEffect(path, kBlocks);
      return absl::OkStatus();
    }
    if (std::find(known.begin(), known.end(), policy) == known.end()) {
      return reading_.Bad(
          path, absl::StrCat("expected ", absl::StrJoin(known, ", "), DidYouMean(policy, known)));
    }
    return reading_.Refuse(path, absl::StrCat(kBlocks,
                                              ", whatever their size; use "
                                              "TRANSFORMER_BASED_WRAP, which needs less memory"));
  }

  absl::Status SetDeepSpeed() {
    const std::string path = DeepSpeed("deepspeed_config_file");
    if (reading_.Find(path) != nullptr) {
      for (const char* key : {"zero_stage", "gradient_accumulation_steps", "gradient_clipping",
                              "offload_optimizer_device", "offload_param_device"}) {
        if (reading_.Find(DeepSpeed(key)) == nullptr) continue;
        return reading_.Bad(DeepSpeed(key),
                            "deepspeed_config_file is there too; say it in that file alone");
      }
      found_.deepspeed_file = reading_.Text(path, "");
      found_.deepspeed_source = reading_.SourceOf(path);
      return absl::OkStatus();
    }
    const std::string stage_path = DeepSpeed("zero_stage");
    const int64_t stage = reading_.Whole(stage_path, 2);
    if (stage < 0 || stage > 3) {
      return reading_.Bad(stage_path, "expected a stage of ZeRO, 0 to 3");
    }
    if (reading_.Find(stage_path) != nullptr) {
      reading_.Set("plan", absl::StrCat("zero-", stage), stage_path);
    } else {
      reading_.SetDefault("plan", "zero-2", "deepspeed_config", "Accelerate's default stage");
    }
    for (const auto& [key, option, least] :
         {std::tuple{"offload_optimizer_device", "offload_optimizer", 1},
          {"offload_param_device", "offload_parameters", 3}}) {
      if (reading_.Find(DeepSpeed(key)) == nullptr) continue;
      const std::string device = reading_.Text(DeepSpeed(key), "none");
      const std::vector<std::string> known = {"none", "cpu", "nvme"};
      if (std::find(known.begin(), known.end(), device) == known.end()) {
        return reading_.Bad(DeepSpeed(key),
                            absl::StrCat("expected none, cpu or nvme", DidYouMean(device, known)));
      }
      if (device != "none" && stage < least) {
        return reading_.Bad(DeepSpeed(key),
                            absl::StrCat("needs zero_stage ", least, ", not ", stage));
      }
      reading_.Set(option, device, DeepSpeed(key));
    }
    return absl::OkStatus();
  }

  const ConfigFileText& file_;
  ConfigReading reading_;
  std::string kind_;
  AccelerateContents found_;
};

}  // namespace

absl::StatusOr<AccelerateContents> ReadAccelerateConfig(const ConfigFileText& file,
                                                        ConfigCompat compat) {
  return Reading(file, compat).Run();
}

}  // namespace muster::plan
