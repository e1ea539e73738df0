#include "worker_runtime/options/config_files.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"
#include "worker_runtime/options/accelerate_config.h"
#include "worker_runtime/options/config_reading.h"
#include "worker_runtime/options/deepspeed_config.h"
#include "worker_runtime/options/instructlab_config.h"
#include "worker_runtime/options/model_config.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

using command_line::CommandLine;
using command_line::Given;
using command_line::Grammar;
using command_line::Option;

absl::StatusOr<ConfigCompat> ParseCompat(const std::string& text) {
  return command_line::ParseChoice<ConfigCompat>(
      text, {{"strict", ConfigCompat::kStrict}, {"deepspeed", ConfigCompat::kDeepSpeed}});
}

std::string Expanded(const std::string& path, const std::string& home) {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, "~") || (!rest.empty() && rest[0] != '/')) return path;
  return absl::StrCat(home, rest);
}

// The hidden size of the model that the command line asks for.
int64_t HiddenSizeOf(const CommandLine& line, const PlanOptions& defaults) {
  int64_t hidden = 0;
  if (const Given* const given = line.Find("hidden_size")) {
    if (absl::SimpleAtoi(given->text(), &hidden)) return hidden;
  }
  if (const Given* const given = line.Find("model")) {
    const absl::StatusOr<DecoderConfig> model = FindModel(given->text());
    if (model.ok()) return model->hidden_size;
  }
  return defaults.model.hidden_size;
}

class Adding {
 public:
  Adding(const Grammar& grammar, const PlanOptions& defaults, const ConfigView& view,
         CommandLine& line)
      : grammar_(grammar), defaults_(defaults), view_(view), line_(line) {}

  absl::StatusOr<ConfigReport> Run() {
    MUSTER_RETURN_IF_ERROR(ReadModel());
    MUSTER_RETURN_IF_ERROR(ReadFiles());
    MUSTER_RETURN_IF_ERROR(ReadSchedule());
    for (const auto& [name, given] : line_.values) report_.sources[name] = given.source;
    // Some settings hold in one type alone, so the type comes first.
    for (const ConfigContents& contents : files_) {
      for (const ConfigSetting& setting : contents.settings) {
        if (setting.option == "dtype") Take(setting);
      }
    }
    for (ConfigContents& contents : files_) {
      for (const ConfigSetting& setting : contents.settings) {
        if (setting.option != "dtype") Take(setting);
      }
      for (std::string& text : contents.warnings) report_.warnings.push_back(std::move(text));
      for (std::string& text : contents.without_effect) {
        report_.without_effect.push_back(std::move(text));
      }
    }
    MUSTER_RETURN_IF_ERROR(ReadModel());  // a file may name it
    return std::move(report_);
  }

 private:
  // A directory is meant before a known model of that name: who has the weights wants them. The
  // text begins with its brace, by which it is told from a name.
  absl::Status ReadModel() {
    const auto given = line_.values.find("model");
    if (given == line_.values.end() || !report_.model.directory.empty()) return absl::OkStatus();
    const std::string directory = Expanded(given->second.text(), view_.home);
    const std::string path = absl::StrCat(directory, "/config.json");
    const absl::StatusOr<std::string> text =
        view_.read_file ? view_.read_file(path) : absl::NotFoundError("there are no files");
    if (!text.ok()) return absl::OkStatus();  // the option's own words
    MUSTER_RETURN_IF_ERROR(ReadModelConfig(path, *text).status());
    report_.model = {directory, std::string(absl::StripAsciiWhitespace(*text))};
    given->second.texts = {report_.model.config};
    return absl::OkStatus();
  }

  absl::Status ReadFiles() {
    const Given* named = nullptr;
    for (const char* option : {"deepspeed", "accelerate", "ilab"}) {
      const Given* const given = line_.Find(option);
      if (given == nullptr) continue;
      if (named != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(named->source, " and ", given->source,
                                                       " both say what to train; give one file"));
      }
      named = given;
    }
    const Given* const compat = line_.Find("config_compat");
    if (compat != nullptr) {
      const absl::StatusOr<ConfigCompat> parsed = ParseCompat(compat->text());
      if (!parsed.ok()) return command_line::At(compat->source, compat->text(), parsed.status());
      compat_ = *parsed;
    }
    if (named == nullptr) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const ConfigFileText file, Open(named->source, named->text()));
    if (named == line_.Find("deepspeed")) return AddDeepSpeed(file);
    return named == line_.Find("ilab") ? AddInstructLab(file) : AddAccelerate(file);
  }

  // Written anew, so that files which differ in remarks are one schedule.
  absl::Status ReadSchedule() {
    const auto given = line_.values.find("stage_schedule");
    if (given == line_.values.end() || !IsScheduleFile(given->second.text())) {
      return absl::OkStatus();
    }
    const std::string path = Expanded(given->second.text(), view_.home);
    const absl::StatusOr<std::string> text = view_.read_file(path);
    if (!text.ok()) return command_line::At(given->second.source, path, text.status());
    const absl::StatusOr<Schedule> schedule = ParseSchedule(*text);
    if (!schedule.ok()) return command_line::At(given->second.source, path, schedule.status());
    given->second.texts = {FormatSchedule(*schedule)};
    return absl::OkStatus();
  }

  absl::StatusOr<ConfigFileText> Open(const std::string& source, const std::string& path) const {
    const std::string expanded = Expanded(path, view_.home);
    absl::StatusOr<std::string> text = view_.read_file(expanded);
    if (!text.ok()) return command_line::At(source, expanded, text.status());
    return ConfigFileText{
        .name = expanded, .text = *std::move(text), .hidden_size = HiddenSizeOf(line_, defaults_)};
  }

  absl::Status AddDeepSpeed(const ConfigFileText& file) {
    MUSTER_ASSIGN_OR_RETURN(ConfigContents contents, ReadDeepSpeedConfig(file, compat_));
    files_.push_back(std::move(contents));
    return absl::OkStatus();
  }

  absl::Status AddAccelerate(const ConfigFileText& file) {
    MUSTER_ASSIGN_OR_RETURN(AccelerateContents found, ReadAccelerateConfig(file, compat_));
    files_.push_back(std::move(found.contents));
    if (found.deepspeed_file.empty()) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const ConfigFileText named,
                            Open(found.deepspeed_source, found.deepspeed_file));
    return AddDeepSpeed(named);
  }

  absl::Status AddInstructLab(const ConfigFileText& file) {
    MUSTER_ASSIGN_OR_RETURN(InstructLabContents found, ReadInstructLabConfig(file, compat_));
    files_.push_back(std::move(found.contents));
    if (found.deepspeed_file.empty()) return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(const ConfigFileText named,
                            Open(found.deepspeed_source, found.deepspeed_file));
    MUSTER_RETURN_IF_ERROR(AddDeepSpeed(named));
    for (const ConfigSetting& setting : files_.back().settings) {
      if (setting.option != "plan" || found.zero_stage.empty()) continue;
      if (absl::StartsWith(setting.value, absl::StrCat("zero-", found.zero_stage))) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(found.stage_source, "=", found.zero_stage, ": ", setting.source, " says ",
                       setting.value, "; say the same in both files, or leave zero_stage out"));
    }
    return absl::OkStatus();
  }

  bool IsOption(const std::string& name) const {
    return std::any_of(grammar_.options.begin(), grammar_.options.end(),
                       [&](const Option& option) { return option.name == name; });
  }

  void Take(const ConfigSetting& setting) {
    const std::string says = absl::StrCat(setting.source, "=", setting.shown);
    if (!setting.only_in_dtype.empty() && !HoldsInDType(setting, says)) return;
    if (!IsOption(setting.option)) return TakeFact(setting, says);
    if (const Given* const given = line_.Find(setting.option)) {
      const bool is_said = !setting.shown.empty() && !setting.value.empty();
      if (is_said && given->text() != setting.value) {
        report_.warnings.push_back(
            absl::StrCat(says, " is overruled by ", given->source, "=", given->text()));
      }
      return;
    }
    if (setting.option == "model" && SizesAreGiven()) {
      report_.warnings.push_back(
          absl::StrCat(says, " is overruled by --num_layers=", line_.Find("num_layers")->text(),
                       ", --num_heads=", line_.Find("num_heads")->text(),
                       " and --hidden_size=", line_.Find("hidden_size")->text()));
      return;
    }
    if (setting.value.empty()) {
      report_.sources.emplace(setting.option,
                              absl::StrCat("default, for auto at ", setting.source));
      return;
    }
    line_.values[setting.option] = {.texts = {setting.value}, .source = setting.source};
    report_.sources[setting.option] = setting.source;
  }

  bool HoldsInDType(const ConfigSetting& setting, const std::string& says) {
    const Given* const given = line_.Find("dtype");
    const std::string dtype = given == nullptr ? "" : given->text();
    const bool is_f16 = dtype == "f16" || dtype == "fp16" || dtype == "float16";
    if (setting.only_in_dtype == dtype || (is_f16 && setting.only_in_dtype == "f16")) return true;
    if (!setting.shown.empty() && !absl::EndsWith(setting.source, ".enabled") &&
        !absl::EndsWith(setting.source, "mixed_precision")) {
      report_.without_effect.push_back(absl::StrCat(
          says, ": applies only in ", setting.only_in_dtype, ", and ",
          given == nullptr ? "the type is f32" : absl::StrCat(given->source, " is ", dtype)));
    }
    return false;
  }

  // What the job is already, or what only the other of our programs has an option for.
  void TakeFact(const ConfigSetting& setting, const std::string& says) {
    const auto fact = view_.facts.find(setting.option);
    if (fact == view_.facts.end()) {
      report_.without_effect.push_back(
          absl::StrCat(says, ": ", grammar_.program, " has no option for it"));
    } else if (fact->second != setting.value) {
      report_.warnings.push_back(absl::StrCat(says, " is overruled by the job, whose ",
                                              setting.option, " is ", fact->second));
    }
  }

  bool SizesAreGiven() const {
    return line_.Find("num_layers") != nullptr && line_.Find("num_heads") != nullptr &&
           line_.Find("hidden_size") != nullptr;
  }

  const Grammar& grammar_;
  const PlanOptions& defaults_;
  const ConfigView& view_;
  CommandLine& line_;
  ConfigCompat compat_ = ConfigCompat::kStrict;
  std::vector<ConfigContents> files_;  // the strongest first
  ConfigReport report_;
};

}  // namespace

std::vector<Option> ConfigFileRows() {
  const auto row = [](const char* name, const char* what) {
    const auto is_read = [](const std::string&) { return absl::OkStatus(); };  // by AddConfigFiles
    return Option{
        .name = name, .value_name = "FILE", .help = what, .read = is_read, .may_differ = true};
  };
  std::vector<Option> rows = {
      row("deepspeed", "DeepSpeed configuration file (JSON); options override it"),
      row("accelerate", "Hugging Face Accelerate configuration file (YAML); options override it"),
      row("ilab", "InstructLab configuration file (YAML), its section train; options override it"),
      row("config_compat",
          "keys of a file that are unknown or cannot be honoured are errors (strict) or warnings "
          "(deepspeed) (strict)")};
  rows[0].other_names = {"deepspeed_config"};
  rows[1].other_names = {"accelerate_config"};
  rows[3].value_name = "C";
  return rows;
}

absl::StatusOr<ConfigReport> AddConfigFiles(const Grammar& grammar, const PlanOptions& defaults,
                                            const ConfigView& view, CommandLine& line) {
  return Adding(grammar, defaults, view, line).Run();
}

}  // namespace muster::plan
