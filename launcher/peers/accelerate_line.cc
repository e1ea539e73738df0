// The command line of `accelerate launch`: which of its options mean something here.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/config/accelerate_config.h"
#include "launcher/peers/peer_line.h"
#include "launcher/peers/peer_table.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/config/python_yaml.h"
#include "proto/dialects/accelerate.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

// The place that an option of Accelerate's goes to.
enum class To {
  kTop,   // a key of its file
  kFsdp,  // a key of a block of the file
  kDeepSpeed,
  kDynamo,
  kMpirun,
  kRun,      // an option of `muster run` of the same name
  kKind,     // one of several ways to train, of which one may be given
  kNothing,  // has no effect here that anybody would miss
  kHere,     // read below
  kRefused,  // `why` says what to do
};

using LaunchOption = PeerOption<To>;

constexpr char kFp8[] = "FP8 is not in this version: give no, fp16 or bf16";
constexpr char kParallelism[] = "an N-d parallelism config is not in this version";

constexpr LaunchOption kLaunchOptions[] = {
    {"config_file", true, To::kHere},
    {"quiet", false, To::kNothing, "", 'q'},
    {"cpu", false, To::kKind},
    {"multi_gpu", false, To::kKind},
    {"use_deepspeed", false, To::kKind},
    {"use_fsdp", false, To::kKind},
    {"tpu", false, To::kRefused, kNoTpus},
    {"mixed_precision", true, To::kTop},
    {"num_processes", true, To::kTop},
    {"num_machines", true, To::kTop},
    {"num_cpu_threads_per_process", true, To::kHere},
    {"enable_cpu_affinity", false, To::kTop},
    {"dynamo_backend", true, To::kDynamo},
    {"dynamo_mode", true, To::kDynamo},
    {"dynamo_use_fullgraph", false, To::kDynamo},
    {"dynamo_use_dynamic", false, To::kDynamo},
    {"dynamo_use_regional_compilation", false, To::kDynamo},
    {"use_parallelism_config", false, To::kRefused, kParallelism},
    {"use_megatron_lm", false, To::kRefused, kNoMegatron},
    {"gpu_ids", true, To::kTop},
    {"same_network", false, To::kTop},
    {"machine_rank", true, To::kTop},
    {"main_process_ip", true, To::kTop},
    {"main_process_port", true, To::kTop},
    {"tee", true, To::kRun, "", 't'},
    {"log_dir", true, To::kRun},
    {"role", true, To::kRun},
    {"rdzv_backend", true, To::kTop},
    {"rdzv_conf", true, To::kRun},
    {"max_restarts", true, To::kRun},
    {"monitor_interval", true, To::kRun},
    {"module", false, To::kRun, "", 'm'},
    {"no_python", false, To::kRun},
    {"tpu_cluster", false, To::kRefused, kNoTpus},
    {"no_tpu_cluster", false, To::kNothing},
    {"tpu_use_sudo", false, To::kRefused, kNoTpus},
    {"vm", true, To::kRefused, kNoTpus},
    {"env", true, To::kRefused, "it is for TPUs alone; set variables in front of the command"},
    {"main_training_function", true, To::kNothing},
    {"downcast_bf16", false, To::kNothing},
    {"deepspeed_config_file", true, To::kDeepSpeed},
    {"zero_stage", true, To::kDeepSpeed},
    {"offload_optimizer_device", true, To::kDeepSpeed},
    {"offload_param_device", true, To::kDeepSpeed},
    {"offload_optimizer_nvme_path", true, To::kDeepSpeed},
    {"offload_param_nvme_path", true, To::kDeepSpeed},
    {"gradient_accumulation_steps", true, To::kDeepSpeed},
    {"gradient_clipping", true, To::kDeepSpeed},
    {"zero3_init_flag", true, To::kDeepSpeed},
    {"zero3_save_16bit_model", true, To::kDeepSpeed},
    {"deepspeed_hostfile", true, To::kDeepSpeed},
    {"deepspeed_exclusion_filter", true, To::kDeepSpeed},
    {"deepspeed_inclusion_filter", true, To::kDeepSpeed},
    {"deepspeed_multinode_launcher", true, To::kDeepSpeed},
    {"deepspeed_moe_layer_cls_names", true, To::kDeepSpeed},
    {"fsdp_version", true, To::kFsdp},
    {"fsdp_offload_params", true, To::kFsdp},
    {"fsdp_min_num_params", true, To::kFsdp},
    {"fsdp_sharding_strategy", true, To::kFsdp},
    {"fsdp_reshard_after_forward", true, To::kFsdp},
    {"fsdp_auto_wrap_policy", true, To::kFsdp},
    {"fsdp_transformer_layer_cls_to_wrap", true, To::kFsdp},
    {"fsdp_backward_prefetch", true, To::kFsdp},
    {"fsdp_state_dict_type", true, To::kFsdp},
    {"fsdp_forward_prefetch", true, To::kFsdp},
    {"fsdp_use_orig_params", true, To::kFsdp},
    {"fsdp_cpu_ram_efficient_loading", true, To::kFsdp},
    {"fsdp_sync_module_states", true, To::kFsdp},
    {"fsdp_activation_checkpointing", true, To::kFsdp},
    {"fsdp_activation_checkpointing_offload", true, To::kFsdp},
    {"aws_access_key_id", true, To::kRefused, kNoSageMaker},
    {"aws_secret_access_key", true, To::kRefused, kNoSageMaker},
    {"debug", false, To::kTop},
    {"mpirun_hostfile", true, To::kMpirun},
};

// Families of options that are refused as one.
constexpr std::pair<const char*, const char*> kRefusedFamilies[] = {
    {"--megatron_lm_", kNoMegatron}, {"--fp8_", kFp8}, {"--parallelism_config_", kParallelism}};

absl::Status RefuseFamilies(const std::vector<std::string>& args) {
  for (std::string arg : args) {
    if (arg.empty() || arg[0] != '-') break;
    std::replace(arg.begin(), arg.end(), '-', '_');
    for (const auto& [family, why] : kRefusedFamilies) {
      std::string beginning = family;
      std::replace(beginning.begin(), beginning.end(), '-', '_');
      if (!absl::StartsWith(arg, beginning)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", arg.substr(2, arg.find('=') - 2), ": ", why));
    }
  }
  return absl::OkStatus();
}

constexpr char kAccelerateUsage[] =
    "usage: muster accelerate launch [options of accelerate launch] SCRIPT [arguments]\n"
    "\n"
    "Becomes `muster run` with the nodes, workers and variables that Accelerate would have.\n";

// The path of the file that Accelerate reads where none is given.
std::string DefaultFile(const EnvironmentMap& environment) {
  std::string home = VariableOrEmpty(environment, "HF_HOME");
  if (home.empty()) {
    const std::string cache = VariableOrEmpty(environment, "XDG_CACHE_HOME");
    home = absl::StrCat(
        cache.empty() ? absl::StrCat(VariableOrEmpty(environment, "HOME"), "/.cache") : cache,
        "/huggingface");
  }
  return home + "/accelerate/default_config.yaml";
}

// Values that are of no file.
ConfigNode Text(std::string text) { return {ConfigNode::Kind::kText, std::move(text)}; }
ConfigNode True() { return {ConfigNode::Kind::kBool, "true"}; }

class AccelerateReading {
 public:
  AccelerateReading(const CommandLine& line, const EnvironmentMap& environment,
                    const MachineView& machine)
      : line_(line), environment_(environment), machine_(machine) {}

  absl::StatusOr<PeerLine> Run() {
    MUSTER_RETURN_IF_ERROR(CheckOptions());
    MUSTER_RETURN_IF_ERROR(ReadFile());
    TakeOptions();
    MUSTER_RETURN_IF_ERROR(ChooseKind());
    const std::string fields = FieldsOfDeepSpeed();
    const bool is_alone = IsOneProcess();
    MUSTER_ASSIGN_OR_RETURN(
        LaunchConfig launch,
        LaunchOfAccelerate(std::move(file_), {.inherited = environment_,
                                              .directory = machine_.directory,
                                              .num_cores = machine_.count_cores(),
                                              .asks_for_cpu = line_.IsOn("cpu")}));
    const auto takes = [&](const std::string& option) {
      return std::any_of(launch.options.begin(), launch.options.end(),
                         [&](const TakenOption& taken) { return taken.option == option; });
    };
    const bool has_hosts = takes("hostfile");
    PeerLine out{.environment = std::move(launch.environment), .notes = std::move(launch.notes)};
    if (auto found = out.environment.find("ACCELERATE_CONFIG_DS_FIELDS");
        found != out.environment.end()) {
      found->second = fields;
    }
    if (!takes("nproc_per_node") && !has_hosts) {
      return absl::InvalidArgumentError(
          "the number of workers is not given: add --num_processes=N");
    }
    AddOptions(launch.options, out);
    AppendRunOptions(line_, kLaunchOptions, out.args);
    if (const Given* threads = line_.Find("num_cpu_threads_per_process")) {
      out.environment["OMP_NUM_THREADS"] = threads->text();
    }
    if (line_.script.empty()) {
      return absl::InvalidArgumentError(
          "no script was given; usage: muster accelerate launch [options] SCRIPT [arguments]");
    }
    if (is_alone || has_hosts) {
      AppendLiteralScript(line_, out.args);
    } else {  // Accelerate starts several as torchrun does
      out.args.push_back("--");
      out.args.insert(out.args.end(), line_.script.begin(), line_.script.end());
    }
    return out;
  }

 private:
  absl::Status CheckOptions() const {
    MUSTER_RETURN_IF_ERROR(RefuseOptions(line_, kLaunchOptions));
    std::vector<std::string> kinds;
    for (const LaunchOption& row : kLaunchOptions) {
      const Given* given = line_.Find(row.name);
      if (given != nullptr && row.to == To::kKind) kinds.push_back(given->source);
    }
    if (kinds.size() < 2) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(absl::StrJoin(kinds, " and "), " exclude each other: give one of them"));
  }

  absl::Status ReadFile() {
    const Given* given = line_.Find("config_file");
    const std::string path = given != nullptr ? given->text() : DefaultFile(environment_);
    const absl::StatusOr<std::string> text = machine_.read(path);
    if (given == nullptr && (!text.ok() || line_.IsOn("cpu"))) return absl::OkStatus();
    const std::string name = given != nullptr ? "--config_file" : "Accelerate's default file";
    if (!text.ok()) return command_line::At(name, path, text.status());
    MUSTER_ASSIGN_OR_RETURN(file_, ReadAccelerateFile(*text, command_line::InWords(name, path)));
    has_file_ = true;
    if (const ConfigNode* const block = file_.root.Find("deepspeed_config")) {
      for (const auto& [key, value] : block->members) file_fields_.push_back(key);
    }
    if (file_.Find("mixed_precision") != nullptr && line_.Find("mixed_precision") == nullptr) {
      file_fields_.push_back("mixed_precision");
    }
    return absl::OkStatus();
  }

  // Accelerate tells its program which fields of DeepSpeed's are the file's.
  std::string FieldsOfDeepSpeed() const {
    return absl::AsciiStrToLower(absl::StrJoin(file_fields_, ","));
  }

  void AddOptions(const std::vector<TakenOption>& options, PeerLine& out) const {
    for (const TakenOption& taken : options) {
      out.args.push_back(taken.option == "no_local_rank"
                             ? "--no_local_rank"
                             : absl::StrCat("--", taken.option, "=", taken.value));
      if (taken.is_of_file) out.sources[taken.option] = taken.source;
    }
  }

  void TakeOptions() {
    static const std::map<To, const char*> kBlocks = {{To::kFsdp, "fsdp_config"},
                                                      {To::kDeepSpeed, "deepspeed_config"},
                                                      {To::kDynamo, "dynamo_config"},
                                                      {To::kMpirun, "mpirun_config"}};
    for (const LaunchOption& row : kLaunchOptions) {
      const Given* given = line_.Find(row.name);
      if (given == nullptr) continue;
      ConfigNode value = row.takes_value ? Text(given->text()) : True();
      if (row.to == To::kTop) {
        file_.root.Put(row.name, std::move(value));
      } else if (const auto block = kBlocks.find(row.to); block != kBlocks.end()) {
        PutIntoBlock(block->second, row, std::move(value));
      }
    }
  }

  // A file may leave the block's name out of its keys.
  void PutIntoBlock(const std::string& name, const LaunchOption& row, ConfigNode value) {
    const ConfigNode* const found = file_.root.Find(name);
    ConfigNode block =
        found == nullptr || found->kind != ConfigNode::Kind::kMap ? ConfigNode{} : *found;
    const std::string full = row.name;
    if (row.to != To::kDeepSpeed) block.Erase(full.substr(full.find('_') + 1));
    block.Put(full, std::move(value));
    file_.root.Put(name, std::move(block));
  }

  bool Says(const std::string& key, absl::string_view text) const {
    const ConfigNode* const node = file_.Find(key);
    return node != nullptr && PythonText(*node) == text;
  }

  absl::Status ChooseKind() {
    if (!has_file_ && file_.Find("num_processes") == nullptr) {
      const int num_gpus = machine_.count_gpus();
      if (num_gpus == 0 && line_.IsOn("multi_gpu")) {
        return absl::InvalidArgumentError(
            "--multi_gpu: no GPU was found: give --num_processes=N for N workers");
      }
      file_.root.Put("num_processes", Text(absl::StrCat(num_gpus)));
    }
    std::string kind;
    if (line_.IsOn("cpu")) {
      kind = "NO";
      if (!has_file_) file_.root.Put("use_cpu", True());
    } else if (line_.IsOn("multi_gpu")) {
      kind = "MULTI_GPU";
    } else if (line_.IsOn("use_deepspeed")) {
      kind = "DEEPSPEED";
    } else if (line_.IsOn("use_fsdp")) {
      kind = "FSDP";
    } else if (!has_file_) {
      const bool are_several = !Says("num_processes", "1") && machine_.count_gpus() > 1;
      kind = are_several ? "MULTI_GPU" : "NO";
    }
    if (kind == "MULTI_GPU" && Says("num_processes", "1") &&
        line_.Find("num_processes") != nullptr) {
      return absl::InvalidArgumentError(
          "--multi_gpu needs 2 processes or more: give --num_processes=N, or leave it out");
    }
    if (!kind.empty()) file_.root.Put("distributed_type", Text(kind));
    const bool are_none = !has_file_ && Says("num_processes", "0");
    if (are_none && kind != "NO") file_.root.Put("num_processes", Text("1"));
    return absl::OkStatus();
  }

  // Started by Accelerate itself, or by its mpirun. An unquoted `no` is False in YAML.
  bool IsOneProcess() const {
    const std::string key = "distributed_type";
    return Says(key, "NO") || Says(key, "False") || Says(key, "MULTI_CPU");
  }

  const CommandLine& line_;
  const EnvironmentMap& environment_;
  const MachineView& machine_;
  ConfigFile file_;  // with what options put into it
  std::vector<std::string> file_fields_;
  bool has_file_ = false;
};

}  // namespace

absl::StatusOr<PeerLine> ReadAccelerateLine(const std::vector<std::string>& args,
                                            const EnvironmentMap& environment,
                                            const MachineView& machine) {
  MUSTER_RETURN_IF_ERROR(RefuseFamilies(args));
  const command_line::Grammar grammar =
      PeerGrammar("muster accelerate launch", kAccelerateUsage, kLaunchOptions);
  MUSTER_ASSIGN_OR_RETURN(const CommandLine line, command_line::Split(grammar, args, {}));
  if (!line.print.empty()) return PeerLine{.print = line.print};
  return AccelerateReading(line, environment, machine).Run();
}

}  // namespace muster::launcher
