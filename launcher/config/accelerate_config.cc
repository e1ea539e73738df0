#include "launcher/config/accelerate_config.h"

#include <algorithm>
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
#include "proto/base/status_macros.h"
#include "proto/config/python_yaml.h"
#include "proto/dialects/accelerate.h"

namespace muster::launcher {
namespace {

using Form = LaunchUse::Form;
using Kind = ConfigNode::Kind;
using Use = LaunchUse::Use;

constexpr int kDefaultPort = 29500;

std::string Formed(const std::string& text, Form form) {
  return form == Form::kLower   ? absl::AsciiStrToLower(text)
         : form == Form::kUpper ? absl::AsciiStrToUpper(text)
                                : text;
}

absl::Status CheckPlain(const ConfigFile& file, const ConfigNode& map, bool has_blocks) {
  for (const auto& [key, node] : map.members) {
    if (has_blocks && node.kind == Kind::kMap) {
      MUSTER_RETURN_IF_ERROR(CheckPlain(file, node, /*has_blocks=*/false));
    } else if (!IsPlain(node)) {
      return file.Refusal(node.line, absl::StrCat(key, ": ", kExpectedPlain));
    }
  }
  return absl::OkStatus();
}

class Reading {
 public:
  Reading(ConfigFile file, const AccelerateSurroundings& around)
      : file_(std::move(file)), around_(around) {
    launch_.notes = std::move(file_.notes);
  }

  absl::StatusOr<LaunchConfig> Run() {
    MUSTER_RETURN_IF_ERROR(ReadKind());  // first, since other keys are known to other kinds
    MUSTER_RETURN_IF_ERROR(CheckKeys());
    MUSTER_RETURN_IF_ERROR(ReadNumbers());
    MUSTER_ASSIGN_OR_RETURN(const bool has_hosts, PlaceHosts());
    if (!has_hosts) MUSTER_RETURN_IF_ERROR(PlaceMachines());
    MUSTER_RETURN_IF_ERROR(SetPrecision());
    SetCommon();
    if (kind_ == "DEEPSPEED") {
      MUSTER_RETURN_IF_ERROR(SetDeepSpeed());
    } else {
      MUSTER_RETURN_IF_ERROR(SetBlock("dynamo_config"));
    }
    if (kind_ == "FSDP") MUSTER_RETURN_IF_ERROR(SetFsdp());
    if (kind_ == "NO") SetSimple();
    MUSTER_RETURN_IF_ERROR(SetBlock("mpirun_config"));
    return std::move(launch_);
  }

 private:
  absl::Status Bad(const std::string& key, absl::string_view value, absl::string_view why) const {
    const std::string text = absl::StrCat(key, ": ", value, ": ", why);
    const ConfigNode* const node = file_.root.Find(key);
    return node == nullptr ? absl::InvalidArgumentError(file_.OfAll(text))
                           : file_.Refusal(node->line, text);
  }
  // The map of that key; an empty one, of no line, if there is none.
  const ConfigNode& Block(const std::string& name) const {
    static const ConfigNode kEmpty = {.kind = Kind::kMap};
    const ConfigNode* const node = file_.root.Find(name);
    return node == nullptr || node->kind != Kind::kMap ? kEmpty : *node;
  }

  const ConfigNode* Find(const std::string& key) const { return file_.Find(key); }
  // The value of a key of a block that says something.
  const ConfigNode* FindIn(const std::string& block, const std::string& key) const {
    const ConfigNode* const node = Block(block).Find(key);
    return node == nullptr || PythonText(*node).empty() || node->kind == Kind::kNull ? nullptr
                                                                                     : node;
  }
  std::string TextOf(const std::string& key, const std::string& otherwise) const {
    const ConfigNode* const node = Find(key);
    return node == nullptr ? otherwise : PythonText(*node);
  }
  bool IsTrue(const std::string& key) const {
    const ConfigNode* const node = Find(key);
    return node != nullptr && node->IsTrue();
  }
  void Set(const std::string& variable, std::string value) {
    launch_.environment[variable] = std::move(value);
  }
  void Note(int line, absl::string_view text) { launch_.notes.push_back(file_.At(line, text)); }
  void Take(std::string option, std::string value, const std::string& key) {
    const ConfigNode* const given = Find(key);
    TakeFrom(given == nullptr ? 0 : given->line, std::move(option), std::move(value),
             given == nullptr ? file_.OfAll(key) : key);
  }
  void TakeFrom(int line, std::string option, std::string value, absl::string_view key) {
    launch_.options.push_back(
        {std::move(option), std::move(value), file_.At(line, key), /*is_of_file=*/line != 0});
  }

  absl::Status CheckKeys() const {
    for (const auto& [key, node] : file_.root.members) {
      const ConfigKey* const row = FindKey(AccelerateKeys(), "", key);
      if (row == nullptr) return file_.Refusal(node.line, UnknownKey(AccelerateKeys(), "", key));
      if (row->launch.use == Use::kRefused && !node.members.empty()) {
        return file_.Refusal(node.line, absl::StrCat(key, " ", row->launch.word));
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
    const ConfigNode* const type = file_.root.Find("distributed_type");
    if (type == nullptr || type->kind == Kind::kMap) {
      return absl::InvalidArgumentError(file_.OfAll("the key distributed_type is missing"));
    }
    const std::string said = TextOf("distributed_type", "NO");
    const absl::StatusOr<std::string> kind = AccelerateKind(said);
    if (!kind.ok()) return Bad("distributed_type", said, kind.status().message());
    // On CPUs it is one process, too, unless mpirun starts it.
    kind_ = *kind == "MULTI_CPU" ? "NO" : *kind;
    return absl::OkStatus();
  }

  absl::Status ReadNumber(const std::string& key, int otherwise, int& out) const {
    out = otherwise;
    const ConfigNode* const node = Find(key);
    if (node == nullptr || absl::SimpleAtoi(PythonText(*node), &out)) return absl::OkStatus();
    return Bad(key, PythonText(*node), "expected a number");
  }

  absl::Status ReadNumbers() {
    MUSTER_RETURN_IF_ERROR(ReadNumber("num_processes", kind_ == "NO" ? 1 : -1, processes_));
    MUSTER_RETURN_IF_ERROR(ReadNumber("num_machines", 1, machines_));
    MUSTER_RETURN_IF_ERROR(ReadNumber("machine_rank", 0, rank_));
    MUSTER_RETURN_IF_ERROR(ReadNumber("main_process_port", 0, port_));
    if (machines_ < 1) return Bad("num_machines", absl::StrCat(machines_), "expected 1 or more");
    const std::string ids = TextOf("gpu_ids", "all");
    if (ids != "all") Set("CUDA_VISIBLE_DEVICES", ids);
    return absl::OkStatus();
  }

  // The hosts that Accelerate would have `deepspeed` or mpirun start; false: it starts this
  // machine's part alone.
  absl::StatusOr<bool> PlaceHosts() {
    const int workers = std::max(processes_ / machines_, 1);
    const ConfigNode* file = FindIn("mpirun_config", "mpirun_hostfile");
    if (kind_ == "DEEPSPEED" && machines_ > 1) {
      file = FindIn("deepspeed_config", "deepspeed_hostfile");
      const ConfigNode* launcher = FindIn("deepspeed_config", "deepspeed_multinode_launcher");
      const std::string by = launcher == nullptr ? "pdsh" : PythonText(*launcher);
      if (file == nullptr || by == "standard") return false;
      if (by != "pdsh" && by != "nossh") {
        return file_.Refusal(
            launcher->line,
            absl::StrCat("deepspeed_multinode_launcher: ", by,
                         ": expected pdsh, whose hosts muster reaches over ssh, or nossh"));
      }
      TakeFrom(file->line, "hostfile", PythonText(*file), "deepspeed_hostfile");
      if (by == "nossh") {
        Take("node_rank", absl::StrCat(rank_), "machine_rank");
      } else {
        TakeFrom(file->line, "no_local_rank", "1", "deepspeed_hostfile");
      }
      TakeFilter(workers);
    } else if (kind_ == "NO" && file != nullptr) {
      TakeFrom(file->line, "hostfile", PythonText(*file), "mpirun_hostfile");
      TakeFrom(file->line, "no_local_rank", "1", "mpirun_hostfile");
      Take("num_nodes", absl::StrCat(machines_), "num_machines");
      Take("nproc_per_node", absl::StrCat(workers), "num_processes");
    } else {
      if (file != nullptr) {
        Note(file->line,
             absl::StrCat("mpirun_hostfile means nothing to accelerate with distributed_type ",
                          kind_, ": mpirun starts jobs of MULTI_CPU and NO"));
      }
      return false;
    }
    if (const ConfigNode* ip = Find("main_process_ip")) {
      Take("master_addr", PythonText(*ip), "main_process_ip");
    }
    if (port_ != 0) Take("master_port", absl::StrCat(port_), "main_process_port");
    return true;
  }

  void TakeFilter(int workers) {
    const ConfigNode* exclude = FindIn("deepspeed_config", "deepspeed_exclusion_filter");
    const ConfigNode* include = FindIn("deepspeed_config", "deepspeed_inclusion_filter");
    if (exclude != nullptr) {
      TakeFrom(exclude->line, "exclude", PythonText(*exclude), "deepspeed_exclusion_filter");
    } else if (include != nullptr) {
      TakeFrom(include->line, "include", PythonText(*include), "deepspeed_inclusion_filter");
    } else {
      Take("num_gpus", absl::StrCat(workers), "num_processes");
    }
  }

  absl::Status PlaceMachines() {
    const ConfigNode* ip = Find("main_process_ip");
    if (machines_ > 1 && ip == nullptr) {
      return Bad("num_machines", absl::StrCat(machines_), "needs main_process_ip too");
    }
    if (kind_ == "NO") {
      PlaceOneProcess(TextOf("main_process_ip", "127.0.0.1"), port_);
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
      if (port_ != 0) Take("master_port", absl::StrCat(port_), "main_process_port");
      return absl::OkStatus();
    }
    const int port = port_ == 0 ? kDefaultPort : port_;
    Take("nnodes", absl::StrCat(machines_), "num_machines");
    Take("node_rank", absl::StrCat(rank_), "machine_rank");
    Take("rdzv_backend", TextOf("rdzv_backend", "static"), "rdzv_backend");
    Take("rdzv_endpoint", absl::StrCat(PythonText(*ip), ":", port), "main_process_ip");
    return absl::OkStatus();
  }

  // Accelerate starts the script as anybody would by hand, once on each machine it is called on.
  void PlaceOneProcess(const std::string& ip, int port) {
    Take("nproc_per_node", "1", "distributed_type");
    Take("rank_variables", "off", "distributed_type");
    if (processes_ < 2 && machines_ == 1) return;
    Set("MASTER_ADDR", ip);
    Set("MASTER_PORT", absl::StrCat(port == 0 ? kDefaultPort : port));
    Note(file_.root.Find("distributed_type")->line,
         absl::StrCat("without --multi_gpu (distributed_type NO) `accelerate launch` starts one "
                      "process on a machine, alone, though ",
                      machines_ > 1 ? "num_machines" : "num_processes", " is ",
                      machines_ > 1 ? machines_ : processes_,
                      "; with it (MULTI_GPU) they train together, also without GPUs"));
  }

  absl::Status SetPrecision() {
    const std::string said = TextOf("mixed_precision", "no");
    const absl::StatusOr<std::string> precision = MixedPrecision(said);
    if (!precision.ok()) return Bad("mixed_precision", said, precision.status().message());
    Set("ACCELERATE_MIXED_PRECISION", *precision);
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

  // The variables of a block's keys, given or not.
  absl::Status SetBlock(const std::string& name) {
    const std::string prefix = name + ".";
    for (const auto& [path, type, training, launch] : AccelerateKeys()) {
      const bool is_set = launch.otherwise != nullptr && absl::StartsWith(path, prefix);
      if (is_set) Set(launch.word, launch.otherwise);
    }
    for (const auto& [key, node] : Block(name).members) {
      const ConfigKey* const row = FindKey(AccelerateKeys(), prefix, AccelerateKey(name, key));
      if (row == nullptr)
        return file_.Refusal(node.line, UnknownKey(AccelerateKeys(), prefix, key));
      const LaunchUse& launch = row->launch;
      const bool is_left_out = node.kind == Kind::kNull && launch.otherwise == nullptr;
      if (launch.use == Use::kIgnored) {
        Note(node.line,
             absl::StrCat(key, " in ", name, " means nothing to accelerate: ", row->training.why));
      } else if (launch.use == Use::kRefused && !is_left_out) {
        return file_.Refusal(node.line,
                             absl::StrCat(key, ": ", PythonText(node), ": ", launch.word));
      } else if (launch.use == Use::kVariable && !is_left_out) {
        Set(launch.word, Formed(PythonText(node), launch.form));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetFsdp() {
    Set("ACCELERATE_USE_FSDP", "true");
    MUSTER_RETURN_IF_ERROR(SetBlock("fsdp_config"));
    if (launch_.environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true" &&
        launch_.environment["FSDP_SYNC_MODULE_STATES"] == "false") {
      return file_.Refusal(Block("fsdp_config").line,
                           "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: true");
    }
    return absl::OkStatus();
  }

  absl::Status SetDeepSpeed() {
    MUSTER_RETURN_IF_ERROR(SetBlock("deepspeed_config"));
    std::vector<std::string> fields;
    for (const auto& [key, node] : Block("deepspeed_config").members) fields.push_back(key);
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

  ConfigFile file_;
  const AccelerateSurroundings& around_;
  std::string kind_;
  int processes_ = -1;  // of all machines
  int machines_ = 1;
  int rank_ = 0;  // of this machine
  int port_ = 0;  // 0: not given
  LaunchConfig launch_;
};

}  // namespace

// Source: accelerate 1.15, commands/config/config_args.py (process_config).
absl::StatusOr<ConfigFile> ReadAccelerateFile(const std::string& text, std::string source) {
  MUSTER_ASSIGN_OR_RETURN(ConfigFile file, ReadConfigFile(text, std::move(source)));
  MUSTER_RETURN_IF_ERROR(CheckPlain(file, file.root, /*has_blocks=*/true));
  const auto take_out = [&root = file.root](const std::string& key) -> std::optional<ConfigNode> {
    const ConfigNode* const found = root.Find(key);
    if (found == nullptr || found->kind == Kind::kMap) return std::nullopt;
    ConfigNode node = *found;
    root.Erase(key);
    return node;
  };
  if (std::optional<ConfigNode> fp16 = take_out("fp16");
      fp16 && fp16->IsTrue() && file.root.Find("mixed_precision") == nullptr) {
    file.root.Put("mixed_precision", {Kind::kText, "fp16", fp16->line});
  }
  if (const std::optional<ConfigNode> backend = take_out("dynamo_backend")) {
    ConfigNode block{.line = backend->line};
    block.Put("dynamo_backend", *backend);
    file.root.Put("dynamo_config", std::move(block));
  }
  return file;
}

absl::StatusOr<LaunchConfig> LaunchOfAccelerate(ConfigFile file,
                                                const AccelerateSurroundings& around) {
  return Reading(std::move(file), around).Run();
}

}  // namespace muster::launcher
