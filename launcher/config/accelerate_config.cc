#include "launcher/config/accelerate_config.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"

namespace muster::launcher {
namespace {

enum class Form { kAsIs, kLower, kUpper };

// A key of a block and the variable that it becomes.
struct BlockRow {
  const char* key;
  const char* variable;   // nullptr: known, and not for workers
  const char* otherwise;  // without the key; nullptr: the variable is not set
  Form form = Form::kAsIs;
  bool without_none = false;  // `null` leaves it out, where else it is "None"
};

constexpr BlockRow kFsdp[] = {
    {"fsdp_version", "FSDP_VERSION", "1"},
    {"fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
    {"fsdp_reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", "true", Form::kLower},
    {"fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", "false", Form::kLower},
    {"fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", "100000000"},
    {"fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", nullptr, Form::kAsIs, true},
    {"fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", nullptr, Form::kAsIs,
     true},
    {"fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", nullptr, Form::kAsIs, true},
    {"fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", nullptr, Form::kAsIs, true},
    {"fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", "false", Form::kLower},
    {"fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", "true", Form::kLower},
    {"fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true", Form::kLower},
    {"fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", "true", Form::kLower},
    {"fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "false", Form::kLower},
    {"fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false",
     Form::kLower},
    {"fsdp_ignored_modules", "FSDP_IGNORED_MODULES", nullptr, Form::kAsIs, true},
};

constexpr BlockRow kDeepSpeed[] = {
    {"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", nullptr, Form::kAsIs, true},
    {"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", nullptr, Form::kAsIs,
     true},
    {"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", nullptr, Form::kLower, true},
    {"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", nullptr,
     Form::kLower, true},
    {"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", nullptr, Form::kLower,
     true},
    {"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", nullptr, Form::kLower, true},
    {"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", nullptr, Form::kLower,
     true},
    {"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", nullptr, Form::kAsIs, true},
    {"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", nullptr,
     Form::kAsIs, true},
    {"offload_optimizer_nvme_path", nullptr, nullptr},
    {"offload_param_nvme_path", nullptr, nullptr},
    {"deepspeed_multinode_launcher", nullptr, nullptr},
};

constexpr BlockRow kDynamo[] = {
    {"dynamo_backend", "ACCELERATE_DYNAMO_BACKEND", "NO", Form::kUpper},
    {"dynamo_mode", "ACCELERATE_DYNAMO_MODE", "default"},
    {"dynamo_use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
    {"dynamo_use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
    {"dynamo_use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"},
};

// Keys of blocks that Accelerate takes and does nothing with.
struct KeyWithoutMeaning {
  const char* block;
  const char* key;
  const char* why;
};

constexpr char kOfDeepSpeed[] = "DeepSpeed reads it in a file of its own, deepspeed_config_file";

constexpr KeyWithoutMeaning kWithoutMeaning[] = {
    {"fsdp_config", "fsdp_backward_prefetch_policy", "its name is fsdp_backward_prefetch now"},
    {"deepspeed_config", "communication_data_type", kOfDeepSpeed},
    {"deepspeed_config", "dump_state", kOfDeepSpeed},
    {"deepspeed_config", "gradient_predivide_factor", kOfDeepSpeed},
    {"deepspeed_config", "memory_breakdown", kOfDeepSpeed},
    {"deepspeed_config", "prescale_gradients", kOfDeepSpeed},
    {"deepspeed_config", "steps_per_print", kOfDeepSpeed},
    {"deepspeed_config", "train_batch_size", kOfDeepSpeed},
    {"deepspeed_config", "train_micro_batch_size_per_gpu", kOfDeepSpeed},
    {"deepspeed_config", "wall_clock_breakdown", kOfDeepSpeed},
    {"deepspeed_config", "zero_allow_untested_optimizer", kOfDeepSpeed},
    {"deepspeed_config", "zero_force_ds_cpu_optimizer", kOfDeepSpeed},
};

// Keys of deepspeed_config with which Accelerate has DeepSpeed start the other hosts.
constexpr const char* kHostKeys[] = {"deepspeed_hostfile", "deepspeed_exclusion_filter",
                                     "deepspeed_inclusion_filter"};
constexpr char kOwnHosts[] =
    "hosts are reached by muster itself: muster run --hostfile=FILE [--include=..|--exclude=..]";

// Keys of the top level. Blocks are known by their names.
constexpr const char* kTopKeys[] = {"compute_environment",
                                    "distributed_type",
                                    "mixed_precision",
                                    "use_cpu",
                                    "debug",
                                    "num_processes",
                                    "machine_rank",
                                    "num_machines",
                                    "gpu_ids",
                                    "main_process_ip",
                                    "main_process_port",
                                    "rdzv_backend",
                                    "same_network",
                                    "main_training_function",
                                    "enable_cpu_affinity",
                                    "downcast_bf16",
                                    "fsdp_config",
                                    "deepspeed_config",
                                    "dynamo_config",
                                    "fp8_config",
                                    "megatron_lm_config",
                                    "parallelism_config",
                                    "mpirun_config",
                                    "tpu_name",
                                    "tpu_zone",
                                    "tpu_use_cluster",
                                    "tpu_use_sudo",
                                    "command_file",
                                    "commands",
                                    "tpu_vm",
                                    "tpu_env"};
constexpr int kDefaultPort = 29500;
constexpr const char* kRefusedBlocks[] = {"fp8_config", "megatron_lm_config", "parallelism_config",
                                          "mpirun_config"};

std::string Formed(const std::string& text, Form form) {
  return form == Form::kLower   ? absl::AsciiStrToLower(text)
         : form == Form::kUpper ? absl::AsciiStrToUpper(text)
                                : text;
}

const char* WhyWithoutMeaning(absl::string_view block, absl::string_view key) {
  for (const KeyWithoutMeaning& row : kWithoutMeaning) {
    if (block == row.block && key == row.key) return row.why;
  }
  return nullptr;
}

// The value of a key of the top level, which goes.
std::optional<PythonValue> TakeOut(PythonConfig& config, absl::string_view key) {
  for (auto entry = config.values.begin(); entry != config.values.end(); ++entry) {
    if (entry->first != key) continue;
    PythonValue value = std::move(entry->second);
    config.values.erase(entry);
    return value;
  }
  return std::nullopt;
}

class Reading {
 public:
  Reading(PythonConfig config, const AccelerateSurroundings& around)
      : config_(std::move(config)), around_(around) {
    launch_.notes = config_.notes;
    for (auto& [key, value] : config_.values) values_[key] = value;
    for (auto& [key, block] : config_.blocks) blocks_[key] = block;
  }

  absl::StatusOr<LaunchConfig> Run() {
    MUSTER_RETURN_IF_ERROR(ReadKind());  // first, since other keys are known to other kinds
    MUSTER_RETURN_IF_ERROR(CheckKeys());
    MUSTER_RETURN_IF_ERROR(PlaceMachines());
    MUSTER_RETURN_IF_ERROR(SetPrecision());
    SetCommon();
    if (kind_ == "DEEPSPEED") {
      MUSTER_RETURN_IF_ERROR(SetDeepSpeed());
    } else {
      MUSTER_RETURN_IF_ERROR(SetDynamo());
    }
    if (kind_ == "FSDP") MUSTER_RETURN_IF_ERROR(SetFsdp());
    if (kind_ == "NO") SetSimple();
    return std::move(launch_);
  }

 private:
  static absl::Status Wrong(int line, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(line == 0 ? "" : absl::StrCat("line ", line, ": "), why));
  }
  absl::Status Bad(const std::string& key, absl::string_view value, absl::string_view why) const {
    const auto found = values_.find(key);
    return Wrong(found == values_.end() ? 0 : found->second.line,
                 absl::StrCat(key, ": ", value, ": ", why));
  }
  int LineOfBlock(const std::string& name) const {
    const auto found = config_.block_lines.find(name);
    return found == config_.block_lines.end() ? 0 : found->second;
  }

  // The value of a key that is there and not null.
  const PythonValue* Find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() || found->second.is_none() ? nullptr : &found->second;
  }
  std::string TextOf(const std::string& key, const std::string& otherwise) const {
    const PythonValue* value = Find(key);
    return value == nullptr ? otherwise : value->text;
  }
  bool IsTrue(const std::string& key) const {
    const PythonValue* value = Find(key);
    return value != nullptr && value->is_true();
  }
  void Set(const std::string& variable, std::string value) {
    launch_.environment[variable] = std::move(value);
  }
  void Take(std::string option, std::string value, const std::string& key) {
    const PythonValue* given = Find(key);
    const int line = given == nullptr ? 0 : given->line;
    launch_.options.push_back({std::move(option), std::move(value),
                               line == 0 ? key : absl::StrCat("line ", line, ": ", key)});
  }

  absl::Status CheckKeys() const {
    std::vector<std::string> known(std::begin(kTopKeys), std::end(kTopKeys));
    const auto check = [&](const std::string& key, int line) {
      if (std::find(known.begin(), known.end(), key) != known.end()) return absl::OkStatus();
      return Wrong(line, absl::StrCat("unknown key '", key, "'", DidYouMean(key, known)));
    };
    for (const auto& [key, value] : config_.values) MUSTER_RETURN_IF_ERROR(check(key, value.line));
    for (const auto& [key, block] : config_.blocks) {
      MUSTER_RETURN_IF_ERROR(check(key, LineOfBlock(key)));
      const bool is_refused = std::find(std::begin(kRefusedBlocks), std::end(kRefusedBlocks),
                                        key) != std::end(kRefusedBlocks);
      if (is_refused && !block.empty()) {
        return Wrong(LineOfBlock(key), absl::StrCat(key, " is not in this version"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadKind() {
    const std::string environment = TextOf("compute_environment", "LOCAL_MACHINE");
    if (environment != "LOCAL_MACHINE") {
      return Bad("compute_environment", environment,
                 environment == "AMAZON_SAGEMAKER" ? kNoSageMaker : "expected LOCAL_MACHINE");
    }
    if (values_.find("distributed_type") == values_.end()) {
      return absl::InvalidArgumentError("the key distributed_type is missing");
    }
    kind_ = TextOf("distributed_type", "NO");
    if (kind_ == "False") kind_ = "NO";      // an unquoted `no` is that in YAML
    if (kind_ == "MULTI_CPU") kind_ = "NO";  // which is one process, too, unless mpirun starts it
    if (kind_ == "NO" || kind_ == "MULTI_GPU" || kind_ == "DEEPSPEED" || kind_ == "FSDP") {
      return absl::OkStatus();
    }
    if (kind_ == "MEGATRON_LM") return Bad("distributed_type", kind_, kNoMegatron);
    if (kind_ == "XLA" || kind_ == "TPU") return Bad("distributed_type", kind_, kNoTpus);
    return Bad("distributed_type", kind_,
               "expected NO, MULTI_CPU, MULTI_GPU, DEEPSPEED or FSDP; others are not in this "
               "version");
  }

  absl::Status ReadNumber(const std::string& key, int otherwise, int& out) const {
    out = otherwise;
    const PythonValue* value = Find(key);
    if (value == nullptr || absl::SimpleAtoi(value->text, &out)) return absl::OkStatus();
    return Bad(key, value->text, "expected a number");
  }

  absl::Status PlaceMachines() {
    int rank = 0, port = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber("num_processes", kind_ == "NO" ? 1 : -1, processes_));
    MUSTER_RETURN_IF_ERROR(ReadNumber("num_machines", 1, machines_));
    MUSTER_RETURN_IF_ERROR(ReadNumber("machine_rank", 0, rank));
    MUSTER_RETURN_IF_ERROR(ReadNumber("main_process_port", 0, port));
    if (machines_ < 1) return Bad("num_machines", absl::StrCat(machines_), "expected 1 or more");
    const std::string ids = TextOf("gpu_ids", "all");
    if (ids != "all") Set("CUDA_VISIBLE_DEVICES", ids);
    const PythonValue* ip = Find("main_process_ip");
    if (machines_ > 1 && ip == nullptr) {
      return Bad("num_machines", absl::StrCat(machines_), "needs main_process_ip too");
    }
    if (kind_ == "NO") {
      PlaceOneProcess(ip == nullptr ? "127.0.0.1" : ip->text, port);
      return absl::OkStatus();
    }
    if (processes_ != -1) {
      if (processes_ < machines_ || processes_ % machines_ != 0) {
        return Bad("num_processes", absl::StrCat(processes_),
                   absl::StrCat("expected a multiple of num_machines, ", machines_,
                                ": it counts the processes of all machines"));
      }
      Take("nproc_per_node", absl::StrCat(processes_ / machines_), "num_processes");
    }
    if (machines_ == 1) {
      if (port != 0) Take("master_port", absl::StrCat(port), "main_process_port");
      return absl::OkStatus();
    }
    if (port == 0) port = kDefaultPort;
    Take("nnodes", absl::StrCat(machines_), "num_machines");
    Take("node_rank", absl::StrCat(rank), "machine_rank");
    Take("rdzv_backend", TextOf("rdzv_backend", "static"), "rdzv_backend");
    Take("rdzv_endpoint", absl::StrCat(ip->text, ":", port), "main_process_ip");
    return absl::OkStatus();
  }

  // Accelerate starts the script as anybody would by hand, once on each machine it is called on.
  void PlaceOneProcess(const std::string& ip, int port) {
    Take("nproc_per_node", "1", "distributed_type");
    Take("rank_variables", "off", "distributed_type");
    if (processes_ < 2 && machines_ == 1) return;
    Set("MASTER_ADDR", ip);
    Set("MASTER_PORT", absl::StrCat(port == 0 ? kDefaultPort : port));
    launch_.notes.push_back(absl::StrCat(
        "without --multi_gpu (distributed_type NO) `accelerate launch` starts one process on a "
        "machine, alone, though ",
        machines_ > 1 ? "num_machines" : "num_processes", " is ",
        machines_ > 1 ? machines_ : processes_,
        "; with it (MULTI_GPU) they train together, also without GPUs"));
  }

  absl::Status SetPrecision() {
    std::string precision = absl::AsciiStrToLower(TextOf("mixed_precision", "no"));
    if (precision == "false") precision = "no";
    if (precision != "no" && precision != "fp16" && precision != "bf16") {
      return Bad("mixed_precision", precision,
                 precision == "fp8" ? "not in this version" : "expected no, fp16 or bf16");
    }
    Set("ACCELERATE_MIXED_PRECISION", precision);
    return absl::OkStatus();
  }

  void SetCommon() {
    if (IsTrue("debug")) Set("ACCELERATE_DEBUG_MODE", "true");
    if (IsTrue("enable_cpu_affinity")) Set("ACCELERATE_CPU_AFFINITY", "1");
    const bool has_threads = !VariableOrEmpty(around_.inherited, "OMP_NUM_THREADS").empty();
    if (kind_ == "DEEPSPEED" || has_threads) return;
    const bool has_share = IsTrue("use_cpu") && processes_ > 0;
    const int share = has_share ? around_.num_cores / std::max(processes_ / machines_, 1) : 1;
    Set("OMP_NUM_THREADS", absl::StrCat(std::max(share, 1)));
  }

  // Accelerate puts `prefix` in front of keys that lack it.
  absl::Status SetBlock(const std::string& name, absl::Span<const BlockRow> rows,
                        const std::string& prefix) {
    std::map<std::string, PythonValue> given;
    std::vector<std::string> known;
    for (const BlockRow& row : rows) known.push_back(row.key);
    const auto block = blocks_.find(name);
    for (const auto& [key, value] : block == blocks_.end() ? PythonBlock{} : block->second) {
      const std::string full = absl::StartsWith(key, prefix) ? key : prefix + key;
      if (const char* why = WhyWithoutMeaning(name, full)) {
        launch_.notes.push_back(absl::StrCat("line ", value.line, ": ", key, " in ", name,
                                             " means nothing to accelerate: ", why));
        continue;
      }
      if (std::find(std::begin(kHostKeys), std::end(kHostKeys), full) != std::end(kHostKeys)) {
        if (value.is_none()) continue;
        return Wrong(value.line, absl::StrCat(key, ": ", value.text, ": ", kOwnHosts));
      }
      if (std::find(known.begin(), known.end(), full) == known.end()) {
        return Wrong(value.line,
                     absl::StrCat("unknown key '", key, "' in ", name, DidYouMean(full, known)));
      }
      given[full] = value;
    }
    for (const BlockRow& row : rows) {
      if (row.variable == nullptr) continue;
      const auto value = given.find(row.key);
      if (value == given.end()) {
        if (row.otherwise != nullptr) Set(row.variable, row.otherwise);
      } else if (!value->second.is_none() || !row.without_none) {
        Set(row.variable, Formed(value->second.text, row.form));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetDynamo() { return SetBlock("dynamo_config", kDynamo, "dynamo_"); }

  absl::Status SetFsdp() {
    Set("ACCELERATE_USE_FSDP", "true");
    MUSTER_RETURN_IF_ERROR(SetBlock("fsdp_config", kFsdp, "fsdp_"));
    if (launch_.environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true" &&
        launch_.environment["FSDP_SYNC_MODULE_STATES"] == "false") {
      return Wrong(LineOfBlock("fsdp_config"),
                   "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: true");
    }
    return absl::OkStatus();
  }

  absl::Status SetDeepSpeed() {
    MUSTER_RETURN_IF_ERROR(SetBlock("deepspeed_config", kDeepSpeed, ""));
    std::vector<std::string> fields;
    for (const auto& [key, value] : blocks_["deepspeed_config"]) fields.push_back(key);
    if (Find("mixed_precision") != nullptr) fields.push_back("mixed_precision");
    Set("ACCELERATE_CONFIG_DS_FIELDS", absl::AsciiStrToLower(absl::StrJoin(fields, ",")));
    Set("ACCELERATE_USE_DEEPSPEED", "true");
    const std::string path = VariableOrEmpty(around_.inherited, "PYTHONPATH");
    Set("PYTHONPATH",
        path.empty() ? around_.directory : absl::StrCat(path, ":", around_.directory));
    return absl::OkStatus();
  }

  void SetSimple() {
    const bool on_cpu = IsTrue("use_cpu") || around_.asks_for_cpu;
    Set("ACCELERATE_USE_CPU", on_cpu ? "True" : "False");
    if (!on_cpu) return;
    Set("KMP_AFFINITY", "granularity=fine,compact,1,0");
    Set("KMP_BLOCKTIME", "1");
  }

  PythonConfig config_;
  const AccelerateSurroundings& around_;
  std::map<std::string, PythonValue> values_;
  std::map<std::string, PythonBlock> blocks_;
  std::string kind_;
  int processes_ = -1;  // of all machines
  int machines_ = 1;
  LaunchConfig launch_;
};

}  // namespace

// Source: accelerate 1.15, commands/config/config_args.py (process_config).
absl::StatusOr<PythonConfig> ReadAccelerateFile(const std::string& text) {
  MUSTER_ASSIGN_OR_RETURN(PythonConfig config, ReadPythonYaml(text));
  const bool has_precision =
      std::any_of(config.values.begin(), config.values.end(),
                  [](const auto& entry) { return entry.first == "mixed_precision"; });
  if (std::optional<PythonValue> fp16 = TakeOut(config, "fp16");
      fp16 && fp16->is_true() && !has_precision) {
    fp16->kind = PythonValue::Kind::kText;
    fp16->text = "fp16";
    config.values.emplace_back("mixed_precision", *std::move(fp16));
  }
  if (std::optional<PythonValue> backend = TakeOut(config, "dynamo_backend")) {
    TakeOut(config, "dynamo_config");
    std::erase_if(config.blocks, [](const auto& block) { return block.first == "dynamo_config"; });
    config.block_lines["dynamo_config"] = backend->line;
    config.blocks.push_back({"dynamo_config", {{"dynamo_backend", *std::move(backend)}}});
  }
  return config;
}

absl::StatusOr<LaunchConfig> ReadAccelerateConfig(const std::string& text,
                                                  const AccelerateSurroundings& around) {
  MUSTER_ASSIGN_OR_RETURN(PythonConfig config, ReadAccelerateFile(text));
  return ReadAccelerateConfig(std::move(config), around);
}

absl::StatusOr<LaunchConfig> ReadAccelerateConfig(PythonConfig config,
                                                  const AccelerateSurroundings& around) {
  return Reading(std::move(config), around).Run();
}

}  // namespace muster::launcher
