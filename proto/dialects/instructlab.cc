#include "proto/dialects/instructlab.h"

namespace muster {
namespace {

using Type = ConfigKey::Type;
using Train = TrainingUse;
using Run = LaunchUse;

constexpr char kOther[] = "not about training";
constexpr char kLaunching[] = "for launching; muster run --ilab reads it";
constexpr char kData[] = "--data names the training data";
constexpr char kPhased[] = "for InstructLab's phases; training here has a single phase";
constexpr char kNoLora[] =
    "--lora=RANK asks for adapters here, whose product is added as it is: alpha is the rank";
constexpr char kSteps[] = "--steps sets the length of training";
constexpr char kSave[] = "--save_every sets when checkpoints are written";

constexpr ConfigKey kInstructLabKeys[] = {
    {"chat", Type::kAny, Train::NoEffect(kOther)},
    {"evaluate", Type::kAny, Train::NoEffect(kOther)},
    {"general", Type::kAny, Train::NoEffect(kOther)},
    {"generate", Type::kAny, Train::NoEffect(kOther)},
    {"log_level", Type::kAny, Train::NoEffect(kOther)},
    {"mcp", Type::kAny, Train::NoEffect(kOther)},
    {"metadata", Type::kAny, Train::NoEffect(kOther)},
    {"rag", Type::kAny, Train::NoEffect(kOther)},
    {"serve", Type::kAny, Train::NoEffect(kOther)},
    {"version", Type::kAny, Train::NoEffect(kOther)},
    {"train", Type::kAny, Train::Section()},
    // Ranks
    {"train.distributed", Type::kBool},
    {"train.num_gpus", Type::kWhole, Train::Handled(), Run::Option("nproc_per_node")},
    {"train.nproc_per_node", Type::kWhole, Train::Handled(), Run::Option("nproc_per_node")},
    {"train.nnodes", Type::kWhole, Train::Handled(), Run::Option("nnodes")},
    {"train.node_rank", Type::kWhole, Train::NoEffect(kLaunching), Run::Option("node_rank")},
    {"train.rdzv_id", Type::kAny, Train::NoEffect(kLaunching), Run::Option("rdzv_id")},
    {"train.rdzv_endpoint", Type::kAny, Train::NoEffect(kLaunching), Run::Option("rdzv_endpoint")},
    {"train.master_addr", Type::kAny, Train::NoEffect(kLaunching), Run::Option("master_addr")},
    {"train.master_port", Type::kAny, Train::NoEffect(kLaunching), Run::Option("master_port")},
    {"train.device", Type::kText},
    // Batches
    {"train.batch_size", Type::kWhole, Train::Option("batch_size")},
    {"train.gradient_accumulation_steps", Type::kWhole,
     Train::Option("gradient_accumulation_steps")},
    {"train.effective_batch_size", Type::kWhole, Train::Option("train_batch_size")},
    {"train.max_batch_len", Type::kWhole,
     Train::NoEffect("sequences have one length, and batch_size says how many there are")},
    // Memory and types
    {"train.gradient_checkpointing", Type::kBool},
    {"train.mixed_precision", Type::kAny},
    {"train.disable_flash_attn", Type::kBool,
     Train::NoEffect("--cuda_attention chooses the attention kernels")},
    {"train.distributed_backend", Type::kText},
    {"train.fsdp_cpu_offload_optimizer", Type::kBool},
    {"train.deepspeed_cpu_offload_optimizer", Type::kBool},
    {"train.deepspeed_cpu_offload_optimizer_pin_memory", Type::kBool,
     Train::NoEffect("nothing is copied to a device, so nothing needs to be pinned")},
    {"train.deepspeed_cpu_offload_optimizer_ratio", Type::kNumber,
     Train::Only("1", "an optimizer is offloaded whole or not at all; expected 1")},
    {"train.deepspeed", Type::kAny, Train::Section()},
    {"train.deepspeed.enabled", Type::kBool},
    {"train.deepspeed.config_path", Type::kText},
    {"train.deepspeed.zero_stage", Type::kWhole},
    // Model
    {"train.model", Type::kAny, Train::Section()},
    {"train.model.base", Type::kText, Train::Option("model")},
    {"train.model.max_seq_length", Type::kWhole, Train::Option("sequence_length")},
    {"train.model_path", Type::kText, Train::Option("model")},
    {"train.max_seq_len", Type::kWhole, Train::Option("sequence_length")},
    {"train.lora_rank", Type::kWhole, Train::Only("0", kNoLora)},
    {"train.lora_alpha", Type::kWhole, Train::NoEffect(kNoLora)},
    {"train.lora_dropout", Type::kNumber, Train::NoEffect(kNoLora)},
    {"train.lora_quantize_dtype", Type::kAny, Train::Only("null", kNoLora)},
    {"train.lora_target_modules", Type::kAny, Train::NoEffect(kNoLora)},
    {"train.is_padding_free", Type::kBool, Train::NoEffect("batches have no padding")},
    // Data, files and phases
    {"train.data_path", Type::kText, Train::NoEffect(kData)},
    {"train.data_output_dir", Type::kText, Train::NoEffect(kData)},
    {"train.ckpt_output_dir", Type::kText, Train::Option("save")},
    {"train.save_samples", Type::kWhole, Train::NoEffect(kSave)},
    {"train.checkpoint_at_epoch", Type::kBool, Train::NoEffect(kSave)},
    {"train.num_epochs", Type::kWhole, Train::NoEffect(kSteps)},
    {"train.pipeline", Type::kText, Train::NoEffect(kPhased)},
    {"train.training_journal", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_base_dir", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_mt_bench_judge", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase1_effective_batch_size", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase1_learning_rate", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase1_num_epochs", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase1_samples_per_save", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase2_effective_batch_size", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase2_learning_rate", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase2_num_epochs", Type::kAny, Train::NoEffect(kPhased)},
    {"train.phased_phase2_samples_per_save", Type::kAny, Train::NoEffect(kPhased)},
    {"train.additional_args", Type::kAny,
     Train::Disabled("arguments of another program; give muster-train its own options")},
};

}  // namespace

absl::Span<const ConfigKey> InstructLabKeys() { return kInstructLabKeys; }

}  // namespace muster
