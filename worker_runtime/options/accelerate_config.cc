#include "worker_runtime/options/accelerate_config.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/dialects/accelerate.h"

namespace muster::plan {
namespace {

constexpr char kFsdp[] = "fsdp_config.fsdp_";
constexpr char kDeepSpeed[] = "deepspeed_config.";

std::string Fsdp(const char* key) { return absl::StrCat(kFsdp, key); }
std::string DeepSpeed(const char* key) { return absl::StrCat(kDeepSpeed, key); }

void CompleteNames(ConfigNode& root) {
  for (auto& [name, block] : root.members) {
    for (auto& [key, value] : block.members) key = AccelerateKey(name, key);
  }
}

class AccelerateReading {
 public:
  AccelerateReading(const ConfigFileText& file, ConfigCompat compat)
      : file_(file), reading_(file.name, AccelerateKeys(), compat) {}

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
    const absl::StatusOr<std::string> said = AccelerateKind(reading_.Text(path, "NO"));
    if (!said.ok()) return reading_.Bad(path, said.status().message());
    kind_ = *said;
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
      reading_.NoEffect("num_machines", kForLaunching);
    }
    return absl::OkStatus();
  }

  absl::Status SetPrecision() {
    const bool is_older = reading_.Find("mixed_precision") == nullptr;
    const char* const path = is_older ? "fp16" : "mixed_precision";
    if (reading_.Find(path) == nullptr) return absl::OkStatus();
    if (!is_older && reading_.Find("fp16") != nullptr) {
      reading_.NoEffect("fp16", "mixed_precision says it");
    }
    const std::string says = !is_older             ? reading_.Text(path, "no")
                             : reading_.Bool(path) ? "fp16"
                                                   : "no";
    MUSTER_ASSIGN_OR_RETURN(const std::string precision, reading_.SetPrecision(path, says));
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
    MUSTER_RETURN_IF_ERROR(
        reading_.CheckChoice(state, reading_.Text(state, "FULL_STATE_DICT"),
                             {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}));
    reading_.NoEffect(state, kWholeCheckpoints);
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
      MUSTER_RETURN_IF_ERROR(
          reading_.CheckChoice(backward, text, {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}));
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
    const char* const by_blocks = "TRANSFORMER_BASED_WRAP";
    MUSTER_RETURN_IF_ERROR(
        reading_.CheckChoice(path, policy, {by_blocks, "SIZE_BASED_WRAP", "NO_WRAP"}));
    if (policy == by_blocks) {
      reading_.NoEffect(path, kBlocksAreUnits);
      return absl::OkStatus();
    }
    return reading_.Refuse(path, absl::StrCat(kBlocksAreUnits,
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
      MUSTER_RETURN_IF_ERROR(reading_.CheckChoice(DeepSpeed(key), device, {"none", "cpu", "nvme"}));
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
  return AccelerateReading(file, compat).Run();
}

}  // namespace muster::plan
