#include "worker_runtime/options/deepspeed_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/config/json_text.h"
#include "proto/dialects/deepspeed.h"
#include "worker_runtime/plan/plan_options.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::plan {
namespace {

constexpr char kZero[] = "zero_optimization";

std::string Zero(const char* key) { return absl::StrCat(kZero, ".", key); }

class DeepSpeedReading {
 public:
  DeepSpeedReading(const ConfigFileText& file, ConfigCompat compat)
      : file_(file), reading_(file.name, DeepSpeedKeys(), compat) {}

  absl::StatusOr<ConfigContents> Run() {
    absl::StatusOr<ConfigNode> root = ReadJson(file_.text);
    if (!root.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(file_.name, ": ", root.status().message()));
    }
    MUSTER_RETURN_IF_ERROR(reading_.Walk(*root));
    MUSTER_RETURN_IF_ERROR(SetTypes());
    MUSTER_RETURN_IF_ERROR(SetStage());
    MUSTER_RETURN_IF_ERROR(SetBuckets());
    MUSTER_RETURN_IF_ERROR(SetOffload());
    MUSTER_RETURN_IF_ERROR(SetOptimizer());
    MUSTER_RETURN_IF_ERROR(SetScheduler());
    MUSTER_RETURN_IF_ERROR(SetCommunication());
    if (reading_.Find("gradient_clipping") == nullptr &&
        reading_.Find("optimizer.params.max_grad_norm") == nullptr) {
      reading_.SetDefault("max_gradient_norm", "1", "gradient_clipping", "DeepSpeed's default");
    }
    return reading_.Finish();
  }

 private:
  absl::Status SetTypes() {
    const std::string bf16 = reading_.Find("bf16.enabled") != nullptr ? "bf16" : "bfloat16";
    const std::string bf16_enabled = bf16 + ".enabled";
    if (reading_.Bool("fp16.enabled") && reading_.Bool(bf16_enabled)) {
      return reading_.Bad(bf16_enabled, "fp16.enabled is true too; enable one of them");
    }
    for (const auto& [path, dtype] :
         {std::pair<std::string, const char*>{"fp16.enabled", "f16"}, {bf16_enabled, "bf16"}}) {
      if (reading_.IsAuto(path)) reading_.Set("dtype", "", path);
      if (reading_.Bool(path)) reading_.Set("dtype", dtype, path);
      if (reading_.Text(path, "") == "false") reading_.NoEffect(path, "it is not enabled");
    }
    MUSTER_RETURN_IF_ERROR(SetLossScale());
    const char* const check = "bf16.check_grad_overflow";
    if (reading_.Find(check) != nullptr) {
      // A scale of 1 that stays skips steps whose gradient is not finite.
      reading_.Set("loss_scale", reading_.Bool(check) ? "1" : "none", check, "bf16");
    }
    return absl::OkStatus();
  }

  absl::Status SetLossScale() {
    if (reading_.Find("fp16") == nullptr) return absl::OkStatus();
    const bool may_be_on = reading_.Bool("fp16.enabled") || reading_.IsAuto("fp16.enabled");
    const std::string scale = reading_.Text("fp16.loss_scale", "0");
    double number = 0;
    if (!absl::SimpleAtod(scale, &number) || number < 0) {
      return reading_.Bad("fp16.loss_scale",
                          "expected 0, for a scale that moves, or a number above 0");
    }
    const int64_t power = reading_.Whole("fp16.initial_scale_power", 16);
    if (power < 0 || power > 31) {
      return reading_.Bad("fp16.initial_scale_power", "expected a power of two between 0 and 31");
    }
    const bool moves = number == 0;
    const auto set = [&](const char* option, const std::string& path, std::string value) {
      if (reading_.Find(path) == nullptr) return;
      if (may_be_on && moves) {
        reading_.Set(option, std::move(value), path, "f16");
      } else {
        reading_.NoEffect(path, may_be_on ? "the loss scale does not move" : "fp16 is not enabled");
      }
    };
    if (may_be_on) {
      const char* const path = "fp16.loss_scale";
      const bool is_there = reading_.Find(path) != nullptr;
      reading_.Set("loss_scale", moves ? "deepspeed" : scale, is_there ? path : "fp16.enabled",
                   "f16");
    } else if (reading_.Find("fp16.loss_scale") != nullptr) {
      reading_.NoEffect("fp16.loss_scale", "fp16 is not enabled");
    }
    set("initial_loss_scale", "fp16.initial_scale_power", absl::StrCat(int64_t{1} << power));
    set("loss_scale_window", "fp16.loss_scale_window",
        absl::StrCat(reading_.Whole("fp16.loss_scale_window", 0)));
    set("hysteresis", "fp16.hysteresis", absl::StrCat(reading_.Whole("fp16.hysteresis", 0)));
    set("consecutive_hysteresis", "fp16.consecutive_hysteresis",
        reading_.Text("fp16.consecutive_hysteresis", "false"));
    set("min_loss_scale", "fp16.min_loss_scale", reading_.Text("fp16.min_loss_scale", "1"));
    return absl::OkStatus();
  }

  absl::Status SetStage() {
    if (reading_.Find(kZero) == nullptr) {
      reading_.SetDefault("plan", "zero-0", kZero, "DeepSpeed's default");
      return absl::OkStatus();
    }
    const std::string path = Zero("stage");
    stage_ = reading_.Whole(path, 0);
    if (stage_ < 0 || stage_ > 3) return reading_.Bad(path, "expected a stage of ZeRO, 0 to 3");
    std::string plan = absl::StrCat("zero-", stage_);
    const std::string secondary = Zero("zero_hpz_partition_size");
    const std::string mics = Zero("mics_shard_size");
    const int64_t secondary_ranks = reading_.Whole(secondary, 1);
    const int64_t shard_ranks = reading_.Whole(mics, -1);
    for (const auto& [name, ranks] : {std::pair{secondary, secondary_ranks}, {mics, shard_ranks}}) {
      if (reading_.Find(name) == nullptr) continue;
      if (ranks <= 1) {
        reading_.NoEffect(name, "all ranks share one shard of each state");
      } else if (stage_ != 3) {
        MUSTER_RETURN_IF_ERROR(reading_.Refuse(name, "needs stage 3"));
      } else if (name == secondary) {
        plan = "zero-3-hpz";
        reading_.Set("reshard_after_forward", absl::StrCat(ranks), name);
      } else {
        plan = "mics";
        reading_.Set("shard_ranks", absl::StrCat(ranks), name);
      }
    }
    if (reading_.Find(path) != nullptr) {
      reading_.Set("plan", plan, path);
    } else {
      reading_.SetDefault("plan", plan, kZero, "DeepSpeed's default stage");
    }
    return absl::OkStatus();
  }

  // DeepSpeed counts elements. Gradients are of f32, so a bucket has four bytes for each.
  absl::Status SetBuckets() {
    const int64_t hidden = file_.hidden_size;
    const std::string reduce = Zero("reduce_bucket_size");
    if (reading_.Find(reduce) != nullptr) {
      const int64_t elements =
          reading_.IsAuto(reduce) ? hidden * hidden : reading_.Whole(reduce, 0);
      if (elements < 1) return reading_.Bad(reduce, "expected a number of elements of 1 or more");
      const double mebibytes = 4.0 * static_cast<double>(elements) / (1 << 20);
      reading_.Set("bucket_mb", ExactText(std::min(mebibytes, 1048576.0)), reduce);
    }
    MUSTER_RETURN_IF_ERROR(
        SetElements("prefetch_bucket_size", "prefetch_elements", hidden * hidden * 9 / 10));
    MUSTER_RETURN_IF_ERROR(
        SetElements("param_persistence_threshold", "persistence_threshold", 10 * hidden));
    MUSTER_RETURN_IF_ERROR(SetElements("model_persistence_threshold", "model_persistence_threshold",
                                       GatherPlan::kNoLimit));
    MUSTER_RETURN_IF_ERROR(
        SetElements("max_live_parameters", "max_live_parameters", 1'000'000'000));
    return SetElements("max_reuse_distance", "max_reuse_distance", 1'000'000'000);
  }

  // Reads a key of stage 3, under both of the names that DeepSpeed knows.
  absl::Status SetElements(const char* key, const char* option, int64_t automatic) {
    for (const std::string& path : {Zero(key), absl::StrCat(kZero, ".stage3_", key)}) {
      if (reading_.Find(path) == nullptr) continue;
      const int64_t elements = reading_.IsAuto(path) ? automatic : reading_.Whole(path, 0);
      if (elements < 0) return reading_.Bad(path, "expected a number of elements of 0 or more");
      if (stage_ != 3) {
        reading_.NoEffect(path,
                          absl::StrCat("applies only with stage 3, and the stage is ", stage_));
        continue;
      }
      reading_.Set(option, absl::StrCat(std::min(elements, GatherPlan::kNoLimit)), path);
    }
    return absl::OkStatus();
  }

  absl::Status SetOffload() {
    MUSTER_RETURN_IF_ERROR(SetOffloadOf("optimizer", "offload_optimizer", 1));
    MUSTER_RETURN_IF_ERROR(SetOffloadOf("param", "offload_parameters", 3));
    const std::string ratio = Zero("offload_optimizer.ratio");
    if (reading_.Find(ratio) != nullptr) {
      if (reading_.Text(ratio, "1") == "1" || reading_.Text(ratio, "1") == "1.0") {
        reading_.NoEffect(ratio, "all of it is offloaded");
      } else {
        MUSTER_RETURN_IF_ERROR(
            reading_.Refuse(ratio, "an optimizer is offloaded whole or not at all; expected 1"));
      }
    }
    for (const auto& [key, option] : {std::pair{"cpu_offload", "offload_optimizer"},
                                      {"cpu_offload_param", "offload_parameters"}}) {
      if (reading_.Find(Zero(key)) == nullptr) continue;
      reading_.Set(option, reading_.Bool(Zero(key)) ? "cpu" : "none", Zero(key));
    }
    return absl::OkStatus();
  }

  absl::Status SetOffloadOf(const char* what, const char* option, int64_t least_stage) {
    const std::string section = absl::StrCat(kZero, ".offload_", what);
    if (reading_.Find(section) == nullptr) return absl::OkStatus();
    const std::string path = section + ".device";
    const std::string device = reading_.Text(path, "none");
    MUSTER_RETURN_IF_ERROR(reading_.CheckChoice(path, device, {"none", "cpu", "nvme"}));
    if (device != "none" && stage_ < least_stage) {
      return reading_.Bad(path, absl::StrCat("needs stage ", least_stage,
                                             least_stage == 3 ? "" : " or more", ", not ", stage_));
    }
    if (device == "nvme" && reading_.Find(section + ".nvme_path") == nullptr) {
      return reading_.Bad(path, "needs nvme_path beside it");
    }
    if (reading_.Find(path) != nullptr) reading_.Set(option, device, path);
    return absl::OkStatus();
  }

  absl::Status SetOptimizer() {
    if (reading_.Find("optimizer") == nullptr) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const std::string type, OptimizerType());
    MUSTER_RETURN_IF_ERROR(SetOptimizerKind(type));
    MUSTER_RETURN_IF_ERROR(SetBetas(type));
    SetUnlessGiven("weight_decay", "weight_decay", "0");
    if (type != "sgd") SetUnlessGiven("eps", "epsilon", "1e-8");
    return SetRate();
  }

  // One of adamw, adam and sgd.
  absl::StatusOr<std::string> OptimizerType() const {
    const char* const path = "optimizer.type";
    if (reading_.Find(path) == nullptr) {
      return reading_.Bad("optimizer", "needs a type: AdamW, Adam or SGD");
    }
    std::string type = absl::AsciiStrToLower(reading_.Text(path, "adamw"));
    if (type != "adamw" && type != "adam" && type != "sgd") {
      return reading_.Bad(path, absl::StrCat("expected AdamW, Adam or SGD; others are not in this "
                                             "version, and AdamW is the nearest",
                                             DidYouMean(type, {"adamw", "adam", "sgd"})));
    }
    return type;
  }

  // DeepSpeed's Adam is AdamW, unless its adam_w_mode is false.
  absl::Status SetOptimizerKind(const std::string& type) {
    const char* const mode = "optimizer.params.adam_w_mode";
    const bool decays_moments = reading_.Text(mode, "true") == "false" && type == "adam";
    if (reading_.Find(mode) != nullptr && type == "sgd") {
      return reading_.Bad(mode, "is of Adam, not of SGD");
    }
    if (reading_.Find(mode) != nullptr) {
      reading_.NoEffect(mode, decays_moments ? "it makes Adam of optimizer.type"
                                             : "it makes AdamW of optimizer.type");
    }
    const char* const kind = type == "sgd" ? "sgd" : decays_moments ? "adam" : "adamw";
    reading_.Set("optimizer", kind, "optimizer.type");
    return absl::OkStatus();
  }

  // `value` is DeepSpeed's default of the optimizer's parameter `key`.
  void SetUnlessGiven(const char* key, const char* option, const char* value) {
    if (reading_.Find(absl::StrCat("optimizer.params.", key)) != nullptr) return;
    reading_.SetDefault(option, value, "optimizer", absl::StrCat("DeepSpeed's default of ", key));
  }

  // The scheduler sets the rate of every step, whatever the optimizer was given.
  absl::Status SetRate() {
    const bool has_peak = reading_.Find("scheduler.params.warmup_max_lr") != nullptr;
    const bool is_scheduled = has_peak ? !reading_.IsAuto("scheduler.params.warmup_max_lr")
                                       : reading_.Text("scheduler.type", "") == "WarmupDecayLR";
    const char* const rate = "optimizer.params.lr";
    if (reading_.Find(rate) != nullptr) {
      if (is_scheduled) {
        MUSTER_RETURN_IF_ERROR(CompareRates());
      } else {
        reading_.Set("lr", reading_.Text(rate, ""), rate);
      }
    } else if (!is_scheduled) {
      SetUnlessGiven("lr", "lr", "0.001");
    }
    return absl::OkStatus();
  }

  absl::Status CompareRates() {
    double own = 0;
    double scheduled = 0;
    const std::string rate = reading_.Text("optimizer.params.lr", "");
    const std::string peak = reading_.Text("scheduler.params.warmup_max_lr", "0.001");
    if (rate.empty() ||
        (absl::SimpleAtod(rate, &own) && absl::SimpleAtod(peak, &scheduled) && own == scheduled)) {
      reading_.NoEffect("optimizer.params.lr", "scheduler.params.warmup_max_lr says the same");
      return absl::OkStatus();
    }
    reading_.Warn(absl::StrCat(reading_.SourceOf("optimizer.params.lr"), "=", rate,
                               " is overruled by scheduler.params.warmup_max_lr=", peak,
                               ", as in DeepSpeed"));
    return absl::OkStatus();
  }

  absl::Status SetBetas(const std::string& type) {
    const char* const path = "optimizer.params.betas";
    const ConfigNode* const betas = reading_.Find(path);
    if (type == "sgd") {
      return betas == nullptr ? absl::OkStatus() : reading_.Bad(path, "is of Adam, not of SGD");
    }
    if (betas == nullptr) {
      reading_.SetDefault("beta1", "0.9", "optimizer", "DeepSpeed's default of betas");
      reading_.SetDefault("beta2", "0.999", "optimizer", "DeepSpeed's default of betas");
      return absl::OkStatus();
    }
    if (reading_.IsAuto(path)) {
      reading_.Set("beta1", "", path);
      reading_.Set("beta2", "", path);
      return absl::OkStatus();
    }
    const bool are_two =
        betas->kind == ConfigNode::Kind::kList && betas->items.size() == 2 &&
        std::all_of(betas->items.begin(), betas->items.end(),
                    [](const ConfigNode& item) { return item.kind == ConfigNode::Kind::kNumber; });
    if (!are_two) return reading_.Bad(path, "expected two numbers, such as [0.9, 0.999]");
    reading_.Set("beta1", betas->items[0].text, path);
    reading_.Set("beta2", betas->items[1].text, path);
    return absl::OkStatus();
  }

  absl::Status SetScheduler() {
    if (reading_.Find("scheduler") == nullptr) return absl::OkStatus();
    const char* const path = "scheduler.type";
    if (reading_.Find(path) == nullptr) {
      return reading_.Bad("scheduler", "needs a type: WarmupLR or WarmupDecayLR");
    }
    const std::string type = reading_.Text(path, "");
    const std::vector<std::string> known = {"WarmupLR", "WarmupDecayLR"};
    if (std::find(known.begin(), known.end(), type) == known.end()) {
      return reading_.Bad(
          path, type == "WarmupCosineLR"
                    ? std::string("this version has another cosine; use --schedule=cosine with "
                                  "--warmup_steps and --min_lr")
                    : absl::StrCat("expected WarmupLR or WarmupDecayLR; others are not in this "
                                   "version, and --schedule=cosine or linear are the nearest",
                                   DidYouMean(type, known)));
    }
    const bool decays = type == "WarmupDecayLR";
    reading_.Set("schedule", decays ? "warmup_decay" : "warmup", path);
    const char* const floor = "scheduler.params.warmup_min_lr";
    if (reading_.Find(floor) != nullptr) reading_.Set("min_lr", reading_.Text(floor, "0"), floor);
    SetPeak(decays);
    const char* const rise = "scheduler.params.warmup_num_steps";
    if (reading_.Find(rise) == nullptr) {
      reading_.SetDefault("warmup_steps", "1000", "scheduler",
                          "DeepSpeed's default of warmup_num_steps");
    } else if (!reading_.IsAuto(rise) && reading_.Whole(rise, 0) < 1) {
      return reading_.Bad(rise, "expected a number of steps of 1 or more");
    } else {
      reading_.Set("warmup_steps",
                   reading_.IsAuto(rise) ? "" : absl::StrCat(reading_.Whole(rise, 0)), rise);
    }
    return SetTotal(decays);
  }

  void SetPeak(bool decays) {
    const char* const peak = "scheduler.params.warmup_max_lr";
    if (reading_.Find(peak) != nullptr) {
      // "auto" is the optimizer's rate.
      if (!reading_.IsAuto(peak)) reading_.Set("lr", reading_.Text(peak, ""), peak);
      if (reading_.IsAuto(peak) && reading_.Find("optimizer.params.lr") == nullptr) {
        reading_.Set("lr", "", peak);
      }
    } else if (decays) {
      reading_.SetDefault("lr", "0.001", "scheduler", "DeepSpeed's default of warmup_max_lr");
    }
  }

  absl::Status SetTotal(bool decays) {
    const char* const total = "scheduler.params.total_num_steps";
    if (!decays) {
      return reading_.Find(total) == nullptr
                 ? absl::OkStatus()
                 : reading_.Bad(total, "is of WarmupDecayLR, not of WarmupLR");
    }
    if (reading_.Find(total) == nullptr) {
      return reading_.Bad("scheduler.type", "needs total_num_steps");
    }
    const int64_t steps = reading_.Whole(total, 0);
    const int64_t rise = reading_.Whole("scheduler.params.warmup_num_steps", 1000);
    if (!reading_.IsAuto(total) && steps < rise &&
        !reading_.IsAuto("scheduler.params.warmup_num_steps")) {
      return reading_.Bad(total,
                          absl::StrCat("expected no fewer steps than warmup_num_steps, ", rise));
    }
    reading_.Set("schedule_steps", reading_.IsAuto(total) ? "" : absl::StrCat(steps), total);
    return absl::OkStatus();
  }

  absl::Status SetCommunication() {
    const char* const path = "communication_data_type";
    if (reading_.Find(path) == nullptr || reading_.IsAuto(path)) return absl::OkStatus();
    const std::string type = reading_.Text(path, "");
    MUSTER_RETURN_IF_ERROR(reading_.CheckChoice(path, type, {"fp32", "fp16", "bf16", "bfp16"}));
    reading_.Set("reduce_dtype", type == "bfp16" ? "bf16" : type, path);
    return absl::OkStatus();
  }

  const ConfigFileText& file_;
  ConfigReading reading_;
  int64_t stage_ = 0;
};

}  // namespace

absl::StatusOr<ConfigContents> ReadDeepSpeedConfig(const ConfigFileText& file,
                                                   ConfigCompat compat) {
  return DeepSpeedReading(file, compat).Run();
}

}  // namespace muster::plan
