// `muster plan` with files of DeepSpeed, Accelerate and InstructLab: the ones that people have, and
// what becomes of mistakes in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "launcher/commands/plan_command.h"
#include "launcher/config/accelerate_config.h"
#include "launcher/config/instructlab_config.h"
#include "proto/dialects/accelerate.h"
#include "proto/dialects/instructlab.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::ReadFile;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Args = std::vector<std::string>;

struct SeedFile {
  const char* name;
  const char* option;
  const char* ranks;  // that its batch equation allows; empty: the file says it
};

const SeedFile kFiles[] = {
    {"ds_full_stage2.json", "--deepspeed", "--world_size=8"},
    {"ds_full_stage3_offload.json", "--deepspeed", "--world_size=16"},
    {"ds_minimal_stage2.json", "--deepspeed", "--world_size=32"},
    {"ds_stage1.json", "--deepspeed", "--world_size=2"},
    {"ds_stage2.json", "--deepspeed", "--world_size=2"},
    {"ds_stage3_offload.json", "--deepspeed", "--world_size=2"},
    {"accelerate_deepspeed.yaml", "--accelerate", ""},
    {"accelerate_fsdp.yaml", "--accelerate", ""},
    {"accelerate_multi_gpu.yaml", "--accelerate", ""},
    {"instructlab.yaml", "--ilab", ""},
};

std::string SeedText(const std::string& name) {
  return ReadFile(
      absl::StrCat(testing::kSourceDirectory, "/tests/unit/worker_runtime/options/configs/", name));
}

struct Outcome {
  absl::StatusOr<std::string> page;
  std::vector<std::string> warnings;
};

// The page for `text` as a file of the name "f".
Outcome PlanOf(const std::string& option, const std::string& text, const Args& more = {}) {
  const std::map<std::string, std::string> files = {
      {"f", text},
      {"/home/.config/instructlab/ds_config.json", SeedText("ds_full_stage3_offload.json")}};
  const PlanSurroundings surroundings = {
      .files = {.read_file = [&](const std::string& path) -> absl::StatusOr<std::string> {
                  const auto found = files.find(path);
                  if (found != files.end()) return found->second;
                  return absl::NotFoundError("there is no such file");
                },
                .home = "/home"}};
  Args args = {absl::StrCat(option, "=f")};
  for (const std::string& arg : more) {
    if (!arg.empty()) args.push_back(arg);
  }
  std::vector<std::string> warnings;
  absl::StatusOr<std::string> page = PlanCommandText(args, &warnings, surroundings);
  return {std::move(page), std::move(warnings)};
}

absl::StatusOr<std::string> DeepSpeed(const std::string& text, const Args& more = {}) {
  return PlanOf("--deepspeed", text, more).page;
}

// The place of a key and its plain value in the text of a file.
struct Place {
  size_t key_begin, key_end;      // of the name
  size_t value_begin, value_end;  // equal: the value is a map or a list
};

std::vector<Place> PlacesIn(const std::string& text, bool is_json) {
  std::vector<Place> places;
  for (size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1)) {
    size_t end = colon;
    while (end > 0 && (text[end - 1] == ' ' || (is_json && text[end - 1] == '"'))) --end;
    size_t begin = end;
    while (begin > 0 && (absl::ascii_isalnum(text[begin - 1]) || text[begin - 1] == '_')) --begin;
    const size_t line = text.rfind('\n', colon) + 1;
    if (begin == end || text.find('#', line) < colon) continue;
    size_t value = colon + 1;
    while (value < text.size() && text[value] == ' ') ++value;
    size_t value_end = value;
    while (value_end < text.size() && !absl::StrContains(",}\n{[", text.substr(value_end, 1))) {
      ++value_end;
    }
    while (value_end > value && text[value_end - 1] == ' ') --value_end;
    places.push_back({begin, end, value, value_end});
  }
  return places;
}

std::string Replaced(const std::string& text, size_t begin, size_t end, const std::string& by) {
  return text.substr(0, begin) + by + text.substr(end);
}

// One letter left out, doubled, changed, or swapped with the next, at four places of a name.
std::vector<std::string> TyposOf(const std::string& name) {
  std::vector<std::string> typos;
  const size_t middle = name.size() / 2;
  std::string typo = name;
  typos.push_back(typo.erase(middle, 1));
  typos.push_back(name + name.substr(name.size() - 1));
  typo = name;
  typo[name.size() / 3] = typo[name.size() / 3] == 'q' ? 'x' : 'q';
  typos.push_back(typo);
  for (size_t i = 0; i + 1 < name.size(); ++i) {
    if (name[i] == name[i + 1]) continue;
    typo = name;
    std::swap(typo[i], typo[i + 1]);
    typos.push_back(typo);
    break;
  }
  return typos;
}

std::vector<std::string> OtherValues(const std::string& value) {
  if (value == "true") return {"false", "7", "\"yes\""};
  if (value == "false") return {"true", "7", "\"no\""};
  if (!value.empty() && (absl::ascii_isdigit(value[0]) || value[0] == '-')) {
    return {"-3", "1.5", "true", "\"many\""};
  }
  return {"\"somethingelse\"", "12", "null"};
}

TEST(PlanConfig, AcceptsTheFilesThatPeopleHave) {
  for (const SeedFile& file : kFiles) {
    const Outcome outcome = PlanOf(file.option, SeedText(file.name), {file.ranks});
    EXPECT_THAT(outcome.page, IsOk()) << file.name;
  }
}

// "a.b" with the value 1, as YAML has it.
std::string YamlOf(const std::string& path) {
  std::string text;
  std::string indent;
  for (absl::string_view name : absl::StrSplit(path, '.')) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", indent, name, ":");
    indent += "  ";
  }
  return text + " 1\n";
}

// A launch and training both know the keys of `text`, or both refuse one as unknown.
void ExpectKnown(bool is_known, const std::string& option, const std::string& text) {
  const absl::StatusOr<ConfigFile> file = ReadAccelerateFile(text, "f");
  const absl::Status launch = option == "--ilab" ? LaunchOfInstructLab(text, "f").status()
                              : file.ok()
                                  ? LaunchOfAccelerate(*file, AccelerateSurroundings{}).status()
                                  : file.status();
  EXPECT_EQ(!absl::StrContains(launch.message(), "unknown key"), is_known) << text << launch;
  const absl::Status training = PlanOf(option, text).page.status();
  EXPECT_EQ(!absl::StrContains(training.message(), "not known"), is_known) << text << training;
}

TEST(PlanConfig, KnowsTheSameKeysAsALaunch) {
  for (const char* typo : {"", "q"}) {
    const bool is_known = *typo == '\0';
    for (const ConfigKey& row : InstructLabKeys()) {
      const std::string path = absl::StrCat(row.path, typo);
      const bool is_section = absl::StartsWith(path, "train");
      ExpectKnown(is_known, "--ilab",
                  absl::StrCat(is_section ? "" : "train: {num_gpus: 1}\n",
                               path == "trainq" ? "train: {}\ntrainq: 1" : YamlOf(path)));
    }
    for (const ConfigKey& row : AccelerateKeys()) {
      const std::string path = absl::StrCat(row.path, typo);
      if (path == "distributed_type") continue;
      const char* const kind = absl::StartsWith(path, "deepspeed_") ? "DEEPSPEED" : "FSDP";
      ExpectKnown(is_known, "--accelerate",
                  absl::StrCat("distributed_type: ", kind, "\n", YamlOf(path)));
    }
  }
}

TEST(PlanConfig, NamesFileLineAndPathOfAMisspelledKeyAndTheKeyThatWasMeant) {
  int typos = 0;
  int right = 0;
  for (const SeedFile& file : kFiles) {
    const std::string text = SeedText(file.name);
    const bool is_json = absl::EndsWith(file.name, ".json");
    for (const Place& place : PlacesIn(text, is_json)) {
      const std::string name = text.substr(place.key_begin, place.key_end - place.key_begin);
      for (const std::string& typo : TyposOf(name)) {
        const Outcome outcome =
            PlanOf(file.option, Replaced(text, place.key_begin, place.key_end, typo), {file.ranks});
        ASSERT_FALSE(outcome.page.ok()) << file.name << ": " << typo << " was passed over";
        const std::string message(outcome.page.status().message());
        ++typos;
        EXPECT_THAT(message, AllOf(ContainsRegex("^f:[0-9]+: "), HasSubstr(typo))) << file.name;
        if (absl::StrContains(message, absl::StrCat("did you mean ", name, "?")) ||
            absl::StrContains(message, absl::StrCat(".", name, "?"))) {
          ++right;
        } else {
          ::testing::Test::RecordProperty(typo, message);
        }
      }
    }
  }
  ::testing::Test::RecordProperty("typos", typos);
  ::testing::Test::RecordProperty("right", right);
  EXPECT_GE(typos, 300);
  EXPECT_GE(right, 0.95 * typos) << right << " of " << typos;
}

TEST(PlanConfig, PassesOverNoOtherValueAndNoMissingKeyInSilence) {
  int mutations = 0;
  for (const SeedFile& file : kFiles) {
    const std::string text = SeedText(file.name);
    const bool is_json = absl::EndsWith(file.name, ".json");
    const Outcome original = PlanOf(file.option, text, {file.ranks});
    ASSERT_THAT(original.page, IsOk());
    for (const Place& place : PlacesIn(text, is_json)) {
      if (place.value_begin == place.value_end) continue;
      const std::string value = text.substr(place.value_begin, place.value_end - place.value_begin);
      for (const std::string& other : OtherValues(value)) {
        const Outcome mutated = PlanOf(
            file.option, Replaced(text, place.value_begin, place.value_end, other), {file.ranks});
        ++mutations;
        if (!mutated.page.ok()) continue;
        EXPECT_TRUE(*mutated.page != *original.page || mutated.warnings != original.warnings)
            << file.name << ": " << text.substr(place.key_begin, place.key_end - place.key_begin)
            << ": " << other;
      }
    }
  }
  ::testing::Test::RecordProperty("mutations", mutations);
  EXPECT_GE(mutations, 300);
}

TEST(PlanConfig, ShowsWhereEachValueComesFrom) {
  const absl::StatusOr<std::string> page = DeepSpeed(
      "{\n\"zero_optimization\": {\"stage\": 2},\n\"gradient_clipping\": 0.5,\n"
      "\"optimizer\": {\"type\": \"AdamW\"}\n}",
      {"--lr=0.25", "--seed=7", "--verbose"});
  EXPECT_THAT(
      page,
      IsOkAndHolds(AllOf(
          ContainsRegex("preset +zero-2 +f:2: zero_optimization.stage\n"),
          ContainsRegex("max_gradient_norm +0.5 +f:3: gradient_clipping\n"),
          ContainsRegex("learning_rate.peak +0.25 +--lr\n"),
          ContainsRegex("update.beta2 +0.999 +f:4: optimizer .DeepSpeed's default of betas.\n"),
          ContainsRegex("mode +fast +default\n"), ContainsRegex("seed +7 +--seed\n"))));
  PlanSurroundings surroundings;
  surroundings.environment = {{"WORLD_SIZE", "4"}};
  EXPECT_THAT(PlanCommandText({}, nullptr, surroundings),
              IsOkAndHolds(AllOf(HasSubstr("plan, for 4 ranks"),
                                 ContainsRegex("world_size +4 +variable WORLD_SIZE\n"))));
}

TEST(PlanConfig, OfAdviceShowsTheSameSourcesAndWhichOfThemAreOnlyAStart) {
  const std::string text =
      "{\n\"zero_optimization\": {\"stage\": 2},\n\"gradient_clipping\": 0.5,\n"
      "\"wall_clock_breakdown\": true\n}";
  EXPECT_THAT(
      DeepSpeed(text, {"--advise", "--gpu=h100", "--gpus=2", "--batch_size=2", "--steps=9"}),
      IsOkAndHolds(AllOf(
          HasSubstr("quickest:"),
          ContainsRegex("plan +zero-2 +f:2: zero_optimization.stage; --advise tries others\n"),
          ContainsRegex("max_gradient_norm +0.5 +f:3: gradient_clipping\n"),
          ContainsRegex("steps +9 +--steps\n"), HasSubstr("accepted and change nothing:\n"),
          HasSubstr("f:4: wall_clock_breakdown=true"))));
}

TEST(PlanConfig, ReadsNumbersAsPeopleWriteThem) {
  for (const char* number : {"1e7", "10000000", "1.0e7", "\"1e7\""}) {
    EXPECT_THAT(DeepSpeed(absl::StrCat("{\"zero_optimization\": {\"stage\": 3, "
                                       "\"stage3_prefetch_bucket_size\": ",
                                       number, "}}"),
                          {"--world_size=2"}),
                IsOkAndHolds(ContainsRegex("gathering.prefetch_elements +10000000 ")));
  }
  EXPECT_THAT(DeepSpeed("{\"train_batch_size\": 1.5}"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("f:1: train_batch_size=1.5: expected a whole number")));
}

TEST(PlanConfig, FillsAutoFromOptionsAndTheModel) {
  const std::string text =
      "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\",\n"
      "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\",\n"
      "\"bf16\": {\"enabled\": \"auto\"},\n"
      "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\",\n"
      "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": "
      "\"auto\"},\n"
      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\"}},\n"
      "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": \"auto\",\n"
      "\"warmup_min_lr\": \"auto\", \"total_num_steps\": \"auto\", \"warmup_num_steps\": "
      "\"auto\"}}}";
  EXPECT_THAT(
      DeepSpeed(text, {"--hidden_size=100", "--num_heads=2", "--lr=0.5", "--steps=77",
                       "--warmup_steps=3", "--batch_size=2", "--world_size=2", "--dtype=bf16"}),
      IsOkAndHolds(AllOf(
          ContainsRegex("gathering.prefetch_elements +9000 "),
          ContainsRegex("gathering.persistence_threshold +1000 "),
          ContainsRegex("bucket_bytes_max +40000 "), ContainsRegex("learning_rate.peak +0.5 +--lr"),
          ContainsRegex("learning_rate.total_steps +77 +default, for auto at f:8"),
          ContainsRegex("update.beta2 +0.95 +default, for auto at f:6"), HasSubstr(", in bf16"),
          HasSubstr("4 = 2 per micro-batch x 1 micro-batches x 2 ranks"))));
}

TEST(PlanConfig, ChecksTheBatchEquationAndNamesWhatHolds) {
  const std::string text =
      "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 3, "
      "\"gradient_accumulation_steps\": 4}";
  EXPECT_THAT(DeepSpeed(text, {"--world_size=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("64 is not 3 x 4 x 2"), HasSubstr("train_batch_size of 24"),
                             HasSubstr("a micro-batch of 8"), HasSubstr("from f:1"))));
  EXPECT_THAT(DeepSpeed("{\"train_batch_size\": 64, \"gradient_accumulation_steps\": 4}",
                        {"--world_size=3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("64 is not ? x 4 x 3"), HasSubstr("60 or 72"),
                             HasSubstr("2 or 4 ranks"))));
  EXPECT_THAT(DeepSpeed("{\"train_batch_size\": 64}", {"--world_size=4"}),
              IsOkAndHolds(HasSubstr("64 = 16 per micro-batch x 1 micro-batches x 4 ranks")));
}

TEST(PlanConfig, KeepsAnOptionAndNamesTheKeyThatItOverrules) {
  const Outcome outcome = PlanOf("--deepspeed", SeedText("ds_full_stage2.json"),
                                 {"--world_size=2", "--dtype=f32", "--beta2=0.9", "--verbose"});
  EXPECT_THAT(outcome.page, IsOkAndHolds(AllOf(ContainsRegex("update.beta2 +0.9 +--beta2"),
                                               ContainsRegex("loss_scaling.kind +none "))));
  EXPECT_THAT(outcome.warnings,
              AllOf(Contains("f:5: fp16.enabled=true is overruled by --dtype=f32"),
                    Contains("f:21: optimizer.params.betas=[0.9, 0.999] is overruled by "
                             "--beta2=0.9")));
}

TEST(PlanConfig, TurnsRefusalsIntoWarningsWhereAsked) {
  const std::string text = "{\"train_bach_size\": 8,\n\"prescale_gradients\": true}";
  EXPECT_THAT(DeepSpeed(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("f:1: train_bach_size=8: this key is not known; "
                                                  "did you mean train_batch_size?")));
  const Outcome outcome = PlanOf("--deepspeed", text, {"--config_compat=deepspeed"});
  EXPECT_THAT(outcome.page, IsOk());
  EXPECT_THAT(outcome.warnings, ::testing::ElementsAre(HasSubstr("train_bach_size"),
                                                       HasSubstr("prescale_gradients")));
}

TEST(PlanConfig, TakesOffloadingToTheHostForWhatItIsOnTheHost) {
  const std::string text = SeedText("ds_stage3_offload.json");
  EXPECT_THAT(DeepSpeed(text, {"--world_size=2"}),
              IsOkAndHolds(ContainsRegex("offloaded optimizer +to the host, which on the cpu")));
  EXPECT_THAT(DeepSpeed(text, {"--world_size=2", "--device=cuda"}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("offload_optimizer=cpu"), HasSubstr("MiB per rank"))));
  EXPECT_THAT(DeepSpeed(absl::StrReplaceAll(
                            text, {{"\"offload_optimizer\": { \"device\": \"cpu\"",
                                    "\"offload_optimizer\": { \"nvme_path\": \"/x\", \"device\": "
                                    "\"nvme\""}}),
                        {"--world_size=2"}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("--offload_optimizer=nvme: this version cannot offload the "
                                 "optimizer (")));
}

TEST(PlanConfig, RefusesStagesThatTwoFilesSayDifferently) {
  const std::string text =
      absl::StrReplaceAll(SeedText("instructlab.yaml"), {{"zero_stage: 3", "zero_stage: 2"}});
  EXPECT_THAT(PlanOf("--ilab", text).page,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("f:9: train.deepspeed.zero_stage=2"),
                             HasSubstr("ds_config.json:10: zero_optimization.stage says zero-3"))));
}

TEST(PlanConfig, SaysWhichOfAKeyThatStandsTwiceHolds) {
  EXPECT_THAT(
      PlanOf("--accelerate", "distributed_type: MULTI_GPU\ndebug: false\ndebug: true\n").warnings,
      Contains("f: line 3: the key 'debug' is there twice; this one holds, not that of line 2"));
}

TEST(PlanConfig, TakesOlderSpellingsOfAccelerate) {
  EXPECT_THAT(PlanOf("--accelerate", "distributed_type: MULTI_GPU\nfp16: true\n").page,
              IsOkAndHolds(ContainsRegex("dtype +f16 +f:2: fp16")));
  EXPECT_THAT(PlanOf("--accelerate",
                     "distributed_type: FSDP\nfsdp_config:\n  backward_prefetch_policy: X\n")
                  .page,
              IsOkAndHolds(HasSubstr("f:3: fsdp_config.fsdp_backward_prefetch_policy=X: ")));
}

TEST(PlanConfig, RefusesTextsThatAreNoFilesOfTheirKind) {
  for (const auto& [text, part] :
       {std::pair<std::string, std::string>{"{\"fp16\": {\"enabled\": true,}", "of line 1"},
        {"{\"a\": 1, \"a\": 2}", "is there twice"},
        {std::string(5000, '['), "nested deeper"},
        {"[]", "expected a map"},
        {"{\"gradient_clipping\": NaN}", "of line 1 has no end"},
        {"", "the text ends"}}) {
    EXPECT_THAT(DeepSpeed(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part)))
        << text.substr(0, 40);
  }
  EXPECT_THAT(DeepSpeed("// a comment\n{# another\n\"gradient_clipping\": 2 /* and one */,}\n"),
              IsOkAndHolds(ContainsRegex("max_gradient_norm +2 ")));
  EXPECT_THAT(PlanCommandText({"--deepspeed=f", "--ilab=g"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give one file")));
}

TEST(PlanMemory, RefusesAPlanThatDoesNotFitWithTheCheapestChangeThatDoes) {
  EXPECT_THAT(PlanCommandText(
                  {"--model=gpt2-124m", "--world_size=8", "--batch_size=1", "--memory_limit=2"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a rank takes 2.65 GiB, and its memory is 2 GiB"),
                             HasSubstr("the cheapest change that fits is --plan=zero-1, which"))));
  EXPECT_THAT(PlanCommandText({"--model=gpt2-124m", "--world_size=8", "--batch_size=1",
                               "--plan=zero-1", "--memory_limit=2"}),
              IsOk());
  EXPECT_THAT(PlanCommandText({"--model=gpt2-1558m", "--memory_limit=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the least took")));
}

TEST(PlanMemory, NeverReducesInAWayThatTakesMoreAndSendsMore) {
  EXPECT_THAT(
      PlanCommandText({"--plan=zero-2", "--model=gpt2-124m", "--world_size=8", "--accumulation=8"}),
      IsOkAndHolds(AllOf(ContainsRegex("gradient_reduction +once +chosen: it sends less"),
                         ContainsRegex("once, held whole before .*<- chosen"))));
}

TEST(PlanModels, PlanLlamaGraniteAndQwen) {
  EXPECT_THAT(
      PlanCommandText({"--model=meta-llama/Llama-3-8B", "--plan=full-shard", "--world_size=8",
                       "--dtype=bf16", "--batch_size=1", "--recompute=full"}),
      IsOkAndHolds(AllOf(HasSubstr("llama-3-8b of 32 layers"), HasSubstr("8,030,261,248"))));
  EXPECT_THAT(PlanCommandText({"--model=granite-8b"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a known model")));
  EXPECT_THAT(PlanCommandText({"--model=qwen2.5-7b", "--world_size=4", "--stages=4",
                               "--accumulation=4", "--context=2048"}),
              IsOkAndHolds(HasSubstr("pipeline of 4 stages")));
}

TEST(PlanAdvice, PrefersThePlanThatSendsLeastWhereAllFitAndShardsWhereTheyDoNot) {
  const Args small = {"--advise", "--model=gpt2-124m", "--gpu=h100", "--gpus=8", "--batch_size=8"};
  EXPECT_THAT(PlanCommandText(small),
              IsOkAndHolds(AllOf(HasSubstr("advice for 8 ranks and 64 sequences"),
                                 HasSubstr("NVIDIA H100 datasheet"), HasSubstr("runners-up:"))));
  EXPECT_THAT(PlanCommandText({"--advise", "--model=llama-3-8b", "--gpu_memory=80", "--gpus=8",
                               "--nodes=2", "--network=ndr", "--batch_size=1"}),
              IsOkAndHolds(Not(ContainsRegex("--plan=ddp --dtype=f32"))));
  EXPECT_THAT(PlanCommandText({"--advise", "--model=llama-3-70b", "--gpu_memory=24", "--gpus=2",
                               "--batch_size=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no plan fits"), HasSubstr("--plan=shard-grad-op"),
                             HasSubstr("--recompute=full"), HasSubstr("choose a smaller"))));
  EXPECT_THAT(PlanCommandText({"--advise", "--model=gpt2-1558m", "--gpu=h100", "--gpus=2",
                               "--batch_size=1", "--memory_limit=20"}),
              IsOkAndHolds(HasSubstr("that fit 20 GiB")));
  for (const char* bad : {"--gpu_memory=-1", "--gpu_memory=1e300", "--gemm_gflops=0", "--gpus=0",
                          "--network=nothing"}) {
    EXPECT_THAT(PlanCommandText({"--advise", "--gpu=h100", "--nodes=2", bad}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
  EXPECT_THAT(PlanCommandText({"--advise", "--gpus=1048576", "--nodes=1048576"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 1048576 ranks")));
  EXPECT_THAT(PlanCommandText({"--advise", "--gpu=h10"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean h100?")));
}

// Megatron's published runs of such blocks lie so: tensor ranks on a node, stages over nodes.
TEST(PlanAdvice, ProposesTensorRanksWhereLayersAreLarge) {
  EXPECT_THAT(PlanCommandText({"--advise", "--model=llama-3-70b", "--num_layers=8", "--gpu=h100",
                               "--gpu_memory=40", "--gpus=8", "--nodes=2", "--sequence_length=4096",
                               "--train_batch_size=64"}),
              IsOkAndHolds(ContainsRegex("quickest:\n.*--plan=ddp .*--stages=4 --mesh=tp=4\n")));
}

TEST(PlanAdvice, TriesPlansThatKnowNodesWhereThereAreSeveral) {
  // Two ranks do not share its 25 heads.
  Args args = {"--advise", "--model=gpt2-1558m", "--num_layers=6", "--gpu=h100",
               "--gpus=4", "--network=ndr",      "--batch_size=1", "--nodes=2"};
  EXPECT_THAT(PlanCommandText(args),
              IsOkAndHolds(AllOf(HasSubstr("--plan=hybrid-shard "), HasSubstr("--plan=mics "),
                                 HasSubstr("--plan=hybrid-shard-zero2 "),
                                 HasSubstr("--plan=zero-3-hpz "))));
  args.back() = "--nodes=1";
  EXPECT_THAT(PlanCommandText(args), IsOkAndHolds(Not(ContainsRegex("hybrid-shard|mics|hpz"))));
}

double PredictedMilliseconds(const Args& args) {
  const absl::StatusOr<std::string> page = PlanCommandText(args);
  EXPECT_THAT(page, IsOk());
  const size_t begin = page->rfind("  total ") + 8;
  double milliseconds = 0;
  const std::string rest = page->substr(page->find_first_not_of(' ', begin));
  EXPECT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find(' ')), &milliseconds)) << rest;
  return milliseconds;
}

// 71.6 MFLOP for each of 1024 tokens, and what is no product.
TEST(PlanStepTime, OfTheHostFollowsFromTheRateOfProducts) {
  const Args one = {"--batch_size=4", "--gemm_gflops=50", "--link_gigabytes=2"};
  EXPECT_NEAR(PredictedMilliseconds(one), 1e3 * 71.6e6 * 1024 * 1.23 / 50e9, 20);
}

TEST(PlanStepTime, OfTheHostNamesWhatMeasuresItsRates) {
  EXPECT_THAT(PlanCommandText({"--advise"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--gemm_gflops=X and --link_gigabytes=X"),
                             HasSubstr("machine_rates"))));
  EXPECT_THAT(PlanCommandText({"--advise", "--gemm_gflops=100", "--link_gigabytes=5",
                               "--memory_limit=1", "--world_size=2", "--cores=2"}),
              IsOkAndHolds(AllOf(HasSubstr("2 cores of 100 GFLOP/s each"), HasSubstr("--plan="))));
}

// 43.4 MB that each of two ranks sends at 2 GB/s, by the cores that compute.
TEST(PlanStepTime, HidesAnExchangeOnTheHostOnlyBehindCoresToSpare) {
  Args args = {"--batch_size=4", "--gemm_gflops=50", "--link_gigabytes=2", "--world_size=2",
               "--cores=2"};
  const double busy = PredictedMilliseconds(args);
  args.back() = "--cores=4";
  EXPECT_NEAR(busy - PredictedMilliseconds(args), 43.4 / 2, 2);
  args.back() = "--cores=1";
  EXPECT_NEAR(PredictedMilliseconds(args), 2 * busy, 5);
}

TEST(PlanStepTime, DividesTheCoresAmongMoreRanksAndSaysSo) {
  Args args = {"--batch_size=4", "--gemm_gflops=50", "--link_gigabytes=2", "--cores=2",
               "--world_size=2"};
  const double two = PredictedMilliseconds(args);
  EXPECT_THAT(PlanCommandText(args), IsOkAndHolds(Not(HasSubstr("share the cores"))));
  args.back() = "--world_size=4";
  EXPECT_GT(PredictedMilliseconds(args), 1.9 * two);
  EXPECT_THAT(PlanCommandText(args), IsOkAndHolds(HasSubstr("4 ranks of a node share the cores")));
}

}  // namespace
}  // namespace muster::launcher
