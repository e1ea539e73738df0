#include "proto/dialects/accelerate.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"

namespace muster {
namespace {

using Type = ConfigKey::Type;
using Form = LaunchUse::Form;
using Train = TrainingUse;
using Run = LaunchUse;

constexpr char kNoDynamo[] = "no PyTorch runs here";
constexpr char kNothingToNvme[] = "nothing goes to NVMe";
constexpr char kAbsent[] = "is not in this version";

constexpr char kOfDeepSpeed[] = "DeepSpeed reads it in its own file, deepspeed_config_file";
constexpr ConfigKey OfDeepSpeed(const char* path) {
  return {path, Type::kAny, Train::NoEffect(kOfDeepSpeed), Run::Ignored()};
}

constexpr ConfigKey kAccelerateKeys[] = {
    {"compute_environment", Type::kText,
     Train::Only("LOCAL_MACHINE", "jobs run on your own machines; use LOCAL_MACHINE")},
    {"distributed_type", Type::kAny},
    {"mixed_precision", Type::kAny},
    {"fp16", Type::kBool},  // of older versions; without mixed_precision it says the same
    {"use_cpu", Type::kBool},
    {"num_processes", Type::kWhole},
    {"num_machines", Type::kWhole},
    {"machine_rank", Type::kWhole, Train::NoEffect(kForLaunching)},
    {"main_process_ip", Type::kAny, Train::NoEffect(kForLaunching)},
    {"main_process_port", Type::kWhole, Train::NoEffect(kForLaunching)},
    {"rdzv_backend", Type::kText, Train::NoEffect(kForLaunching)},
    {"same_network", Type::kBool, Train::NoEffect(kForLaunching)},
    {"gpu_ids", Type::kAny, Train::NoEffect(kForLaunching)},
    {"main_training_function", Type::kText, Train::NoEffect(kForLaunching)},
    {"enable_cpu_affinity", Type::kBool, Train::NoEffect(kForLaunching)},
    {"debug", Type::kBool, Train::NoEffect("calls of all ranks are compared in every run")},
    {"downcast_bf16", Type::kAny, Train::NoEffect("for TPUs only")},
    {"dynamo_backend", Type::kAny, Train::NoEffect(kNoDynamo)},
    {"dynamo_config", Type::kAny, Train::Section()},
    {"dynamo_config.dynamo_backend", Type::kAny, Train::NoEffect(kNoDynamo),
     Run::Variable("ACCELERATE_DYNAMO_BACKEND", "NO", Form::kUpper)},
    {"dynamo_config.dynamo_mode", Type::kAny, Train::NoEffect(kNoDynamo),
     Run::Variable("ACCELERATE_DYNAMO_MODE", "default")},
    {"dynamo_config.dynamo_use_fullgraph", Type::kAny, Train::NoEffect(kNoDynamo),
     Run::Variable("ACCELERATE_DYNAMO_USE_FULLGRAPH", "False")},
    {"dynamo_config.dynamo_use_dynamic", Type::kAny, Train::NoEffect(kNoDynamo),
     Run::Variable("ACCELERATE_DYNAMO_USE_DYNAMIC", "False")},
    {"dynamo_config.dynamo_use_regional_compilation", Type::kAny, Train::NoEffect(kNoDynamo),
     Run::Variable("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False")},
    {"tpu_name", Type::kAny, Train::Only("null", kNoTpus)},
    {"tpu_zone", Type::kAny, Train::Only("null", kNoTpus)},
    {"tpu_use_cluster", Type::kBool, Train::Only("false", kNoTpus)},
    {"tpu_use_sudo", Type::kBool, Train::Only("false", kNoTpus)},
    {"tpu_env", Type::kAny, Train::Disabled(kNoTpus)},
    {"tpu_vm", Type::kAny, Train::Disabled(kNoTpus)},
    {"command_file", Type::kAny, Train::Only("null", kNoTpus)},
    {"commands", Type::kAny, Train::Only("null", kNoTpus)},
    {"fp8_config", Type::kAny,
     Train::Disabled("this version computes in f32, bf16 and fp16; use mixed_precision: bf16"),
     Run::Refused(kAbsent)},
    {"megatron_lm_config", Type::kAny,
     Train::Disabled(
         "this version has no tensor parallelism; use FSDP, or --stages=N for a pipeline"),
     Run::Refused(kAbsent)},
    {"parallelism_config", Type::kAny,
     Train::Disabled("this version has data parallelism and pipelines; use FSDP, or --stages=N"),
     Run::Refused(kAbsent)},
    {"mpirun_config", Type::kAny, Train::Section()},
    {"mpirun_config.mpirun_hostfile", Type::kText, Train::NoEffect(kForLaunching)},
    {"mpirun_config.mpirun_ccl", Type::kAny,
     Train::NoEffect("oneCCL's number of threads is the variable CCL_WORKER_COUNT"),
     Run::Ignored()},
    // FSDP
    {"fsdp_config", Type::kAny, Train::Section()},
    {"fsdp_config.fsdp_version", Type::kWhole, Train::Handled(),
     Run::Variable("FSDP_VERSION", "1")},
    {"fsdp_config.fsdp_sharding_strategy", Type::kAny, Train::Handled(),
     Run::Variable("FSDP_SHARDING_STRATEGY", "FULL_SHARD")},
    {"fsdp_config.fsdp_reshard_after_forward", Type::kAny, Train::Handled(),
     Run::Variable("FSDP_RESHARD_AFTER_FORWARD", "true", Form::kLower)},
    {"fsdp_config.fsdp_backward_prefetch_policy", Type::kAny,
     Train::NoEffect("its name is fsdp_backward_prefetch now"), Run::Ignored()},
    {"fsdp_config.fsdp_backward_prefetch", Type::kText, Train::Handled(),
     Run::Variable("FSDP_BACKWARD_PREFETCH")},
    {"fsdp_config.fsdp_forward_prefetch", Type::kBool, Train::Handled(),
     Run::Variable("FSDP_FORWARD_PREFETCH", "false", Form::kLower)},
    {"fsdp_config.fsdp_offload_params", Type::kBool, Train::Handled(),
     Run::Variable("FSDP_OFFLOAD_PARAMS", "false", Form::kLower)},
    {"fsdp_config.fsdp_auto_wrap_policy", Type::kText, Train::Handled(),
     Run::Variable("FSDP_AUTO_WRAP_POLICY")},
    {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", Type::kAny, Train::NoEffect(kBlocksAreUnits),
     Run::Variable("FSDP_TRANSFORMER_CLS_TO_WRAP")},
    {"fsdp_config.fsdp_min_num_params", Type::kWhole,
     Train::NoEffect("it counts with SIZE_BASED_WRAP alone"),
     Run::Variable("FSDP_MIN_NUM_PARAMS", "100000000")},
    {"fsdp_config.fsdp_state_dict_type", Type::kText, Train::Handled(),
     Run::Variable("FSDP_STATE_DICT_TYPE")},
    {"fsdp_config.fsdp_use_orig_params", Type::kBool,
     Train::NoEffect("parameters always keep their own names and shapes"),
     Run::Variable("FSDP_USE_ORIG_PARAMS", "true", Form::kLower)},
    {"fsdp_config.fsdp_cpu_ram_efficient_loading", Type::kBool,
     Train::NoEffect("rank 0 reads a checkpoint and the others receive it"),
     Run::Variable("FSDP_CPU_RAM_EFFICIENT_LOADING", "true", Form::kLower)},
    {"fsdp_config.fsdp_sync_module_states", Type::kBool,
     Train::Only("true", "all ranks begin with the same parameters, by the seed"),
     Run::Variable("FSDP_SYNC_MODULE_STATES", "true", Form::kLower)},
    {"fsdp_config.fsdp_activation_checkpointing", Type::kBool, Train::Handled(),
     Run::Variable("FSDP_ACTIVATION_CHECKPOINTING", "false", Form::kLower)},
    {"fsdp_config.fsdp_activation_checkpointing_offload", Type::kBool,
     Train::Only(
         "false",
         "activations stay on the device; fsdp_activation_checkpointing keeps one input per layer"),
     Run::Variable("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false", Form::kLower)},
    {"fsdp_config.fsdp_ignored_modules", Type::kAny,
     Train::Only("null", "all parameters are sharded"), Run::Variable("FSDP_IGNORED_MODULES")},
    // DeepSpeed
    {"deepspeed_config", Type::kAny, Train::Section()},
    {"deepspeed_config.zero_stage", Type::kWhole, Train::Handled(),
     Run::Variable("ACCELERATE_DEEPSPEED_ZERO_STAGE")},
    {"deepspeed_config.gradient_accumulation_steps", Type::kWhole,
     Train::Option("gradient_accumulation_steps"),
     Run::Variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")},
    {"deepspeed_config.gradient_clipping", Type::kNumber, Train::Option("max_gradient_norm"),
     Run::Variable("ACCELERATE_GRADIENT_CLIPPING", nullptr, Form::kLower)},
    {"deepspeed_config.offload_optimizer_device", Type::kText, Train::Handled(),
     Run::Variable("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", nullptr, Form::kLower)},
    {"deepspeed_config.offload_param_device", Type::kText, Train::Handled(),
     Run::Variable("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", nullptr, Form::kLower)},
    {"deepspeed_config.offload_optimizer_nvme_path", Type::kText, Train::NoEffect(kNothingToNvme)},
    {"deepspeed_config.offload_param_nvme_path", Type::kText, Train::NoEffect(kNothingToNvme)},
    {"deepspeed_config.zero3_init_flag", Type::kBool,
     Train::NoEffect("a rank only ever takes memory for its own shard"),
     Run::Variable("ACCELERATE_DEEPSPEED_ZERO3_INIT", nullptr, Form::kLower)},
    {"deepspeed_config.zero3_save_16bit_model", Type::kBool, Train::NoEffect(kWholeCheckpoints),
     Run::Variable("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", nullptr, Form::kLower)},
    OfDeepSpeed("deepspeed_config.communication_data_type"),
    OfDeepSpeed("deepspeed_config.dump_state"),
    OfDeepSpeed("deepspeed_config.gradient_predivide_factor"),
    OfDeepSpeed("deepspeed_config.memory_breakdown"),
    OfDeepSpeed("deepspeed_config.prescale_gradients"),
    OfDeepSpeed("deepspeed_config.steps_per_print"),
    OfDeepSpeed("deepspeed_config.train_batch_size"),
    OfDeepSpeed("deepspeed_config.train_micro_batch_size_per_gpu"),
    OfDeepSpeed("deepspeed_config.wall_clock_breakdown"),
    OfDeepSpeed("deepspeed_config.zero_allow_untested_optimizer"),
    OfDeepSpeed("deepspeed_config.zero_force_ds_cpu_optimizer"),
    {"deepspeed_config.deepspeed_config_file", Type::kText, Train::Handled(),
     Run::Variable("ACCELERATE_DEEPSPEED_CONFIG_FILE")},
    {"deepspeed_config.deepspeed_multinode_launcher", Type::kText, Train::NoEffect(kForLaunching)},
    {"deepspeed_config.deepspeed_hostfile", Type::kText, Train::NoEffect(kForLaunching)},
    {"deepspeed_config.deepspeed_exclusion_filter", Type::kText, Train::NoEffect(kForLaunching)},
    {"deepspeed_config.deepspeed_inclusion_filter", Type::kText, Train::NoEffect(kForLaunching)},
    {"deepspeed_config.deepspeed_moe_layer_cls_names", Type::kAny,
     Train::Only("null", "this version has no experts"),
     Run::Variable("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES")},
};

}  // namespace

absl::Span<const ConfigKey> AccelerateKeys() { return kAccelerateKeys; }

std::string AccelerateKey(absl::string_view block, absl::string_view key) {
  for (const char* beginning : {"fsdp_", "dynamo_"}) {
    const std::string full = absl::StrCat(beginning, key);
    if (block == absl::StrCat(beginning, "config") &&
        FindKey(kAccelerateKeys, absl::StrCat(block, "."), full) != nullptr) {
      return full;
    }
  }
  return std::string(key);
}

absl::StatusOr<std::string> AccelerateKind(absl::string_view text) {
  // An unquoted `no` is that in YAML.
  std::string kind = absl::EqualsIgnoreCase(text, "false") ? "NO" : std::string(text);
  const std::vector<std::string> known = {"NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED", "FSDP"};
  if (std::find(known.begin(), known.end(), kind) != known.end()) return kind;
  return absl::InvalidArgumentError(
      kind == "MEGATRON_LM" ? kNoMegatron
      : kind == "XLA" || kind == "TPU"
          ? kNoTpus
          : absl::StrCat("expected NO, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP; others are not in "
                         "this version",
                         DidYouMean(kind, known)));
}

}  // namespace muster
