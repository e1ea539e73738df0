#include "worker_runtime/train/trainer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "muster/agreement.h"
#include "muster/cuda_device.h"
#include "proto/base/mono_time.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/advice/cheapest_fit.h"
#include "worker_runtime/advice/device_table.h"
#include "worker_runtime/advice/plan_job.h"
#include "worker_runtime/options/model_config.h"
#include "worker_runtime/plan/batch_equation.h"
#include "worker_runtime/plan/known_models.h"
#include "worker_runtime/train/figures.h"
#include "worker_runtime/train/files.h"
#include "worker_runtime/train/machine.h"
#include "worker_runtime/train/operations_per_token.h"
#include "worker_runtime/train/progress_line.h"
#include "worker_runtime/train/resumed_settings.h"
#include "worker_runtime/train/sample_text.h"
#include "worker_runtime/train/step_trace.h"
#include "worker_runtime/train/stop.h"

namespace muster::train {
namespace {

// GPT-2's last token, which ends a text, and after which one begins.
constexpr int32_t kGpt2TextStart = 50256;
constexpr int64_t kGpt2Vocabulary = kGpt2TextStart + 1;

// What the shapes of a model do not show, in the metadata of its checkpoint.
constexpr char kParts[] = "parts";
// The key of the model beneath adapters in the metadata of their checkpoint.
constexpr char kBase[] = "base";

// How often, and how long, what has been trained is offered to a rendezvous that is out of reach.
// By then the agent has ended its workers (orphan_timeout, ten minutes).
constexpr int kLastSaveAttempts = 600;
constexpr absl::Duration kBetweenLastSaves = absl::Seconds(1);

// What the sample continues: of tokens that are no bytes GPT-2's beginning of a text, or what the
// data begin with.
absl::StatusOr<std::vector<int32_t>> PromptOf(const TrainOptions& options,
                                              const TokenSource& data) {
  std::vector<int32_t> prompt;
  if (data.vocabulary() == kGpt2Vocabulary) return std::vector<int32_t>{kGpt2TextStart};
  if (data.vocabulary() > kByteVocabulary) {
    prompt.resize(1);
    MUSTER_RETURN_IF_ERROR(data.Read(0, absl::MakeSpan(prompt)));
    return prompt;
  }
  for (const unsigned char byte : options.prompt.value_or("\n")) prompt.push_back(byte);
  return prompt;
}

// A save that fails for one of these has harmed nothing, and a later one may succeed.
bool IsOfTheDisk(const absl::Status& saved) {
  return IsOwnFailure(saved) &&
         (absl::IsResourceExhausted(saved) || absl::IsPermissionDenied(saved) ||
          absl::IsNotFound(saved) || absl::IsUnavailable(saved));
}

absl::Status CheckPrompt(const TrainOptions& options, int64_t vocabulary) {
  if (!options.prompt.has_value()) return absl::OkStatus();
  if (options.prompt->empty()) {
    return absl::InvalidArgumentError("--prompt is empty; give at least one character");
  }
  if (vocabulary <= kByteVocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--prompt is text, but the data are token ids, and there is no tokenizer here; leave "
      "it out");
}

// Records the first steps of a round (--trace), and writes them once they are there, or when the
// round ends before.
class TracedSteps {
 public:
  TracedSteps(Engine& engine, const TrainOptions& options, const Runtime& runtime)
      : engine_(engine),
        directory_(options.trace.directory),
        last_step_(engine.step() + options.trace.steps),
        trace_(runtime.rank(), runtime.restart_count()),
        console_(!options.print.quiet) {
    if (directory_.empty()) return;
    engine_.OnAction([this](const TimedAction& action) { trace_.Add(action); });
  }
  ~TracedSteps() { Write(); }
  TracedSteps(const TracedSteps&) = delete;
  TracedSteps& operator=(const TracedSteps&) = delete;

  void AfterStep() {
    if (engine_.step() >= last_step_) Write();
  }

 private:
  // A time line that cannot be written ends no training.
  void Write() {
    engine_.OnAction(nullptr);
    if (directory_.empty() || trace_.empty()) return;
    const absl::Status written = trace_.Write(directory_);
    if (!written.ok()) console_.Print(absl::StrCat(written.message(), "; training goes on\n"));
    directory_.clear();
  }

  Engine& engine_;
  std::string directory_;  // empty: nothing is to be written, or has been
  const int64_t last_step_;
  StepTrace trace_;
  const Console console_;
};

}  // namespace

// --- setting up ---------------------------------------------------------------------------------

Trainer::Trainer(Runtime& runtime, TrainOptions options, TrainingSoFar so_far)
    : runtime_(runtime),
      options_(std::move(options)),
      console_(runtime.rank() == 0 && !options_.print.quiet),
      so_far_(std::move(so_far)) {
  options_.plan.plan = CompletePlan(options_.plan.plan, runtime.local_size());
}

// The sample text is then made by all ranks together.
bool Trainer::needs_others() const {
  const Plan& plan = engine_->plan();
  const bool is_spread =
      plan.parameters.placement == Placement::kShard || plan.stages > 1 || plan.tensor_ranks > 1;
  return is_spread && runtime_.size() > 1;
}

absl::Status Trainer::SetUp() {
  MUSTER_RETURN_IF_ERROR(AsOwnFailure(InWordsOf(options_, CheckAlone())));
  MUSTER_ASSIGN_OR_RETURN(world_, MakeWorld());
  options_.backend = world_->backend();
  MUSTER_RETURN_IF_ERROR(InWordsOf(options_, BuildTogether()));
  MUSTER_RETURN_IF_ERROR(StartReading());
  ++so_far_.rounds;
  PrintStart();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Trainer::MakeWorld() {
  const CommunicatorOptions options = {.device = so_far_.device.get()};
  if (so_far_.former_world != nullptr) {
    return runtime_.RemakeCommunicator(std::move(so_far_.former_world), options);
  }
  return runtime_.MakeCommunicator(
      "world", options_.backend == kAutoBackend ? "" : options_.backend, options);
}

// Workers beyond the number of GPUs share them.
absl::Status Trainer::OpenDevice() {
  if (options_.plan.device == "cpu") return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const int num_gpus, CountCudaDevices());
  const int number = num_gpus == 0 ? 0 : runtime_.local_rank() % num_gpus;
  const std::optional<GpuIdentity> opened =
      so_far_.device == nullptr ? std::nullopt : so_far_.device->gpu();
  if (opened.has_value() && opened->number == number) return absl::OkStatus();
  so_far_.former_world.reset();
  MUSTER_ASSIGN_OR_RETURN(
      so_far_.device,
      OpenCudaDevice(number, {.attention = options_.plan.cuda_attention,
                              .same_bits = options_.plan.plan.mode == SumMode::kOrdered}));
  MUSTER_ASSIGN_OR_RETURN(const std::string name, CudaDeviceName(number));
  so_far_.operations_peak = advice::PeakOperations(name, options_.plan.dtype);
  return absl::OkStatus();
}

absl::Status Trainer::CheckAlone() {
  MUSTER_ASSIGN_OR_RETURN(const int stages, NumStages(options_.plan.plan, runtime_.size()));
  const int replicas = static_cast<int>(runtime_.size() / stages / options_.plan.plan.tensor_ranks);
  MUSTER_RETURN_IF_ERROR(plan::SpreadBatch(options_.plan, replicas));
  MUSTER_RETURN_IF_ERROR(OpenDevice());
  if (options_.data.empty()) {
    MUSTER_ASSIGN_OR_RETURN(options_.data, DefaultTexts());
  }
  if (so_far_.data.tokens == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(
        so_far_.data,
        TrainingData::Open(options_.data,
                           options_.model.directory.empty() ? 0 : config().vocabulary));
  }
  options_.plan.model.vocabulary = so_far_.data.tokens->vocabulary();
  if (!options_.model.directory.empty()) MUSTER_RETURN_IF_ERROR(OpenModelFiles());
  MUSTER_RETURN_IF_ERROR(config().Validate());
  MUSTER_RETURN_IF_ERROR(options_.plan.plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckPrompt(options_, config().vocabulary));
  const bool on_host = so_far_.device == nullptr;
  const Plan& plan = options_.plan.plan;
  if (on_host && plan.optimizer.placement == Placement::kReplicate && plan.tensor_ranks == 1) {
    MUSTER_RETURN_IF_ERROR(
        CheckFitsMachine(config(), options_.plan.dtype, runtime_.local_size(), MachineBytes()));
  }
  // What the engine will read, before it is there.
  MUSTER_RETURN_IF_ERROR(
      BatchReader::Create(*so_far_.data.tokens, {.rank = runtime_.rank() % replicas,
                                                 .size = replicas,
                                                 .accumulation = options_.plan.plan.accumulation,
                                                 .batch = options_.plan.batch_size,
                                                 .sequence = config().context})
          .status());
  return absl::OkStatus();
}

absl::Status Trainer::OpenModelFiles() {
  MUSTER_ASSIGN_OR_RETURN(files_, ModelFiles::Open(options_.model.directory));
  const std::string name = absl::StrCat("--model=", options_.model.directory);
  const int64_t of_data = config().vocabulary;
  options_.plan.model.vocabulary = files_->config().vocabulary;
  DecoderConfig theirs = files_->config();
  theirs.context = config().context;
  if (config() != theirs) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        " says of itself how large it is; leave out --num_layers, --num_heads, --kv_heads, "
        "--head_size, --hidden_size and --mlp_size"));
  }
  // Its tokens are those of its own tokenizer, of which the number of different ones tells.
  const bool is_gpt2 = files_->type() == "gpt2" && of_data > kByteVocabulary;
  if (is_gpt2 ? of_data <= config().vocabulary : of_data == config().vocabulary) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--data holds ", so_far_.data.tokens->Describe(), ", of ", of_data,
                   " different tokens, and ", name, " was trained on ", config().vocabulary,
                   ": give files of tokens that its tokenizer has made"));
}

// Each worker counts all that is free on its GPU: it cannot know who shares it.
int64_t Trainer::OwnMemoryBytes() const {
  const int64_t asked = options_.plan.plan.memory_bytes_max;
  int64_t bytes = MachineBytes() / runtime_.local_size();
  if (so_far_.device != nullptr) {
    const std::optional<DeviceMemory> memory = so_far_.device->memory();
    if (memory.has_value()) bytes = memory->free_bytes;
  }
  return asked > 0 ? std::min(asked, bytes) : bytes;
}

// Rank 0 measures once: a cut that changed from round to round would be of no use.
absl::Status Trainer::MeasureUnits() {
  if (!options_.plan.measures_unit_costs) return absl::OkStatus();
  options_.plan.measures_unit_costs = false;
  MUSTER_ASSIGN_OR_RETURN(const int stages, NumStages(options_.plan.plan, runtime_.size()));
  if (stages == 1) return absl::OkStatus();
  absl::StatusOr<std::string> measured = so_far_.unit_costs;
  if (runtime_.rank() == 0 && measured->empty()) measured = MeasureOwnUnits();
  MUSTER_ASSIGN_OR_RETURN(so_far_.unit_costs, FromRankZero(*world_, std::move(measured)));
  for (const absl::string_view text : absl::StrSplit(so_far_.unit_costs, ' ')) {
    MUSTER_ASSIGN_OR_RETURN(UnitCost cost, ParseUnitCost(text));
    options_.plan.plan.unit_costs.push_back(std::move(cost));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Trainer::MeasureOwnUnits() {
  MUSTER_RETURN_IF_ERROR(BuildModel());
  MUSTER_ASSIGN_OR_RETURN(const std::vector<UnitCost> costs,
                          MeasureUnitCosts(*store_, options_.plan.plan, model_->Units(),
                                           options_.plan.batch_size, config().context));
  return ToString(costs);
}

// The model on the meta device takes no memory. All ranks plan alike: by the least that one of them
// has.
absl::Status Trainer::FitMemory() {
  std::vector<int64_t> least = {OwnMemoryBytes()};
  MUSTER_RETURN_IF_ERROR(world_->AllReduce(BufferOf(least), {.op = ReduceOp::kMin}).Wait());
  const advice::JobShape shape = {.world_size = runtime_.size(),
                                  .ranks_of_node = runtime_.local_size(),
                                  .device = so_far_.device.get()};
  plan::PlanOptions limited = options_.plan;
  limited.plan.memory_bytes_max = std::min(least[0], GatherPlan::kNoLimit);
  MUSTER_ASSIGN_OR_RETURN(const plan::PlanPageInput job, advice::PlanJob(limited, shape));
  MUSTER_RETURN_IF_ERROR(advice::CheckOffload(job));
  options_.plan.plan.gradient_reduction = job.options.plan.gradient_reduction;
  // Ranks whose libraries work in more may be alone with that.
  return AllOrNone(*world_, advice::CheckFits(job, limited, shape, least[0]));
}

// Each of these fails on all ranks or on none, so that nobody waits for a rank that has gone.
absl::Status Trainer::BuildTogether() {
  MUSTER_RETURN_IF_ERROR(CheckOptionsAgree());
  MUSTER_RETURN_IF_ERROR(CheckCapture(options_, world_->size(), world_->captures()));
  MUSTER_RETURN_IF_ERROR(MeasureUnits());
  MUSTER_RETURN_IF_ERROR(FitMemory());
  if (!options_.saving.directory.empty()) MUSTER_RETURN_IF_ERROR(CheckSaveDirectory());
  const std::string& trace = options_.trace.directory;  // of this rank, which may be alone with it
  MUSTER_RETURN_IF_ERROR(
      AllOrNone(*world_, trace.empty() ? absl::OkStatus() : PrepareSaveDirectory(trace)));
  MUSTER_RETURN_IF_ERROR(BuildModel());
  MUSTER_ASSIGN_OR_RETURN(
      engine_, Engine::Create(*world_, *store_, options_.plan.plan, model_->Units(), BatchSize(),
                              {.fence = runtime_.checkpoint_fence(),
                               .keeps_checkpoints = options_.saving.keep,
                               .captures_steps = options_.capture_steps,
                               .registers_buffers = options_.register_buffers,
                               .waits_before_updates = options_.survive}));
  // The phase is for muster status, top and metrics, and lets the hang watch tell a step from a
  // checkpoint.
  engine_->OnPhase([this](int64_t step, Phase phase) { runtime_.SetProgress(step, phase); });
  return TakeUpState();
}

absl::Status Trainer::BuildModel() {
  store_ = std::make_unique<ParameterStore>(
      options_.plan.dtype, TensorRanks::Of(runtime_.rank(), options_.plan.plan.tensor_ranks));
  store_->PlaceOn(so_far_.device.get());
  MUSTER_ASSIGN_OR_RETURN(model_, Decoder::Create(config(), *store_, options_.plan.adapters));
  if (options_.plan.adapters.rank == 0) return absl::OkStatus();
  for (const auto& parameter : store_->parameters()) {
    if (parameter->frozen()) parameter->KeepElsewhere();
  }
  return absl::OkStatus();
}

// Prints with --quiet too: it tells of a loss.
void Trainer::PrintPassedOver(const Engine::Loaded& loaded) const {
  for (const std::string& why : loaded.passed_over) {
    Console(runtime_.rank() == 0).Print(absl::StrCat("passed over: ", why, "\n"));
  }
}

absl::Status Trainer::LoadBase() {
  if (files_.has_value()) {
    base_ = absl::StrCat("SHA-256 ", files_->id());
    return engine_->LoadModel(*files_);
  }
  if (options_.base.empty()) {
    base_ = absl::StrCat("drawn from seed ", options_.plan.plan.seed);
    return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(const Engine::Loaded base, engine_->LoadBase(options_.base));
  PrintPassedOver(base);
  base_ = absl::StrCat("SHA-256 ", base.model_id);
  return CheckResumedModel(options_.base, base.metadata);
}

absl::Status Trainer::TakeUpState() {
  if (options_.plan.adapters.rank > 0) MUSTER_RETURN_IF_ERROR(LoadBase());
  if (options_.survive) {
    absl::StatusOr<Engine::Restored> restored = engine_->Restore(so_far_.state);
    if (restored.ok()) {
      restored_ = *restored;
      resumed_ = absl::StrCat(WhoseState(*restored), ", after step ", restored->step);
    } else if (!absl::IsNotFound(restored.status())) {
      return restored.status();
    } else {
      no_state_ =
          so_far_.no_state.empty() ? std::string(restored.status().message()) : so_far_.no_state;
    }
  }
  bool has_state = restored_.has_value();
  if (!has_state && !options_.resume.empty()) {
    MUSTER_ASSIGN_OR_RETURN(has_state, Resume());
  }
  if (!has_state && files_.has_value() && options_.plan.adapters.rank == 0) {
    MUSTER_RETURN_IF_ERROR(engine_->LoadModel(*files_));
  }
  holds_state_ = true;
  so_far_.state = EngineSnapshot();
  so_far_.GoOnAfter(engine_->step());
  return absl::OkStatus();
}

void Trainer::EndGroups(const absl::Status& failure) {
  const std::string reason = absl::StrCat("rank ", runtime_.rank(), ": ", failure.message());
  if (engine_ != nullptr) {
    engine_->Abort(reason);
  } else if (world_ != nullptr) {
    world_->Abort(reason);
  }
}

// The one step after the meeting that may fail on a rank alone: it takes the others with it.
absl::Status Trainer::StartReading() {
  absl::StatusOr<std::unique_ptr<BatchReader>> reader =
      engine_->Read(*so_far_.data.tokens, BatchSize());
  if (!reader.ok()) {
    EndGroups(reader.status());
    return AsOwnFailure(reader.status());
  }
  reader_ = *std::move(reader);
  return absl::OkStatus();
}

absl::Status Trainer::CheckSaveDirectory() {
  std::optional<SharedMark> mark;  // until all have looked for it
  absl::StatusOr<std::string> prepared = std::string();
  if (runtime_.rank() == 0) {
    absl::StatusOr<SharedMark> made = SharedMark::Make(options_.saving.directory);
    if (!made.ok()) prepared = made.status();
    if (made.ok()) prepared = mark.emplace(*std::move(made)).path();
  }
  MUSTER_ASSIGN_OR_RETURN(prepared, FromRankZero(*world_, std::move(prepared)));
  return AllOrNone(*world_, SeesMark(*prepared, options_.saving.directory));
}

absl::Status Trainer::CheckOptionsAgree() {
  return CheckAgreement(
      *world_, absl::StrCat(TextOfCommonValues(options_),
                            "number of tokens in --data=", so_far_.data.tokens->num_tokens(),
                            "\nSHA-256 of --data=", so_far_.data.sha256));
}

absl::StatusOr<bool> Trainer::Resume() {
  const absl::StatusOr<Engine::Loaded> loaded = engine_->Load(options_.resume);
  if (absl::IsNotFound(loaded.status()) && options_.resume == options_.saving.directory) {
    resumed_ = absl::StrCat(options_.resume, " holds no checkpoint yet: training begins");
    return false;
  }
  MUSTER_RETURN_IF_ERROR(loaded.status());
  PrintPassedOver(*loaded);
  MUSTER_RETURN_IF_ERROR(CheckResumedModel(options_.resume, loaded->metadata));
  MUSTER_RETURN_IF_ERROR(CheckResumedBase(loaded->metadata));
  so_far_.saved_step = options_.resume == options_.saving.directory ? engine_->step() : -1;
  Settings saved = loaded->plan;
  saved.insert(loaded->metadata.begin(), loaded->metadata.end());
  Settings now = Metadata();
  for (const auto& [field, value] : Describe(engine_->plan())) now[field] = value;
  const std::string changes = DescribeChanges(saved, now);
  resumed_ = absl::StrCat(options_.resume, ", after step ", engine_->step(),
                          changes.empty() ? "" : "; settings that differ: ", changes);
  return true;
}

// The metadata of a checkpoint.
std::map<std::string, std::string> Trainer::Metadata() const {
  std::map<std::string, std::string> metadata = {
      {"program", "muster-train"},
      {"layers", absl::StrCat(config().layers)},
      {"heads", absl::StrCat(config().heads)},
      {"width", absl::StrCat(config().hidden_size)},
      {"context", absl::StrCat(config().context)},
      {"vocabulary", absl::StrCat(config().vocabulary)},
      {"batch_size", absl::StrCat(options_.plan.batch_size)},
      {"micro_batches", absl::StrCat(world_->size() / engine_->plan().stages /
                                     engine_->plan().tensor_ranks * engine_->plan().accumulation)},
      {"dtype", std::string(ToString(options_.plan.dtype))},
      {"data", so_far_.data.tokens->Describe()}};
  const std::string parts = plan::DescribeParts(config());
  if (!parts.empty()) metadata[kParts] = parts;
  // Transformers writes it in ASCII; metadata may be nothing that is not UTF-8.
  absl::StatusOr<std::string> text = options_.model.config;
  const bool is_ascii = std::all_of(text->begin(), text->end(), absl::ascii_isascii);
  if (text->empty() || !is_ascii) text = plan::FormatModelConfig(config());
  if (text.ok()) metadata[plan::kModelConfigKey] = *std::move(text);
  if (!so_far_.data.sha256.empty()) metadata["data_sha256"] = so_far_.data.sha256;
  if (!base_.empty()) metadata[kBase] = base_;
  if (options_.plan.adapters.rank > 0) {
    metadata["lora_dtype"] = std::string(ToString(options_.plan.adapters_dtype()));
  }
  return metadata;
}

// Parameters of the same shapes may be cut into heads in several ways.
absl::Status Trainer::CheckResumedModel(const std::string& directory,
                                        const std::map<std::string, std::string>& metadata) const {
  const auto found = metadata.find("heads");
  if (found == metadata.end()) return absl::OkStatus();  // not of this program
  const auto refuse = [&](absl::string_view what, absl::string_view there, absl::string_view here) {
    return absl::InvalidArgumentError(absl::StrCat(directory,
                                                   " is a checkpoint of another model: ", what,
                                                   " is ", there, " there and ", here, " here"));
  };
  const std::string heads = absl::StrCat(config().heads), parts = plan::DescribeParts(config());
  if (found->second != heads) return refuse("heads", found->second, heads);
  const auto others = metadata.find(kParts);
  const std::string there = others == metadata.end() ? "" : others->second;
  const auto quoted = [](const std::string& text) { return absl::StrCat("'", text, "'"); };
  return there == parts ? absl::OkStatus() : refuse(kParts, quoted(there), quoted(parts));
}

absl::Status Trainer::CheckResumedBase(const std::map<std::string, std::string>& metadata) const {
  const auto found = metadata.find(kBase);
  if (found == metadata.end() || found->second == base_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(options_.resume, " holds adapters of another model: theirs is ", found->second,
                   ", and here it is ", base_, "; give theirs by --base"));
}

// "rank 4 beside *.c_attn.weight: 6,144 parameters learn; the model beneath is base/, SHA-256 …"
std::string Trainer::DescribeAdapters() const {
  const DecoderAdapters& adapters = options_.plan.adapters;
  if (adapters.rank == 0) return "";
  int64_t learned = 0;
  for (const auto& parameter : store_->parameters()) {
    if (!parameter->frozen()) learned += parameter->num_elements();
  }
  return absl::StrCat("rank ", adapters.rank, " beside ", adapters.beside, ": ",
                      ShortCount(learned), " parameters in ",
                      ToString(options_.plan.adapters_dtype()), " learn; the model beneath is ",
                      files_.has_value()      ? options_.model.directory
                      : options_.base.empty() ? base_
                                              : options_.base);
}

// "Llama-3.2-1B, a llama of 2.5 GB"; empty where a checkpoint has them, or other lines tell.
std::string Trainer::DescribeWeights() const {
  const bool are_taken = files_.has_value() && engine_->step() == 0;
  if (!are_taken || options_.plan.adapters.rank > 0) return "";
  return absl::StrCat(options_.model.directory, ", a ", files_->type(), " of ",
                      ShortBytes(files_->num_bytes()));
}

void Trainer::PrintStart() const {
  if (so_far_.rounds > 1) {
    return console_.Print(
        DescribeRound({.round = runtime_.restart_count(),
                       .size = runtime_.size(),
                       .step = engine_->step(),
                       .whose_state = restored_.has_value() ? WhoseState(*restored_) : "",
                       .no_state = no_state_,
                       .resume = options_.resume}));
  }
  console_.Print(
      DescribeStart({.model = config(),
                     .plan = engine_->plan(),
                     .dtype = options_.plan.dtype,
                     .size = runtime_.size(),
                     .batch_size = options_.plan.batch_size,
                     .data = so_far_.data.tokens->Describe(),
                     .kernels = so_far_.device == nullptr ? InstructionSet() : "cuda",
                     .products = so_far_.device == nullptr ? DType::kF32 : options_.plan.dtype,
                     .device_notes = so_far_.device == nullptr ? "" : so_far_.device->notes(),
                     .backend = options_.backend,
                     .exchange_notes = world_->notes(),
                     .weights = DescribeWeights(),
                     .adapters = DescribeAdapters(),
                     .resumed = resumed_}));
  if (engine_->step() >= options_.plan.steps) {
    console_.Print(absl::StrCat("\nnothing to train: ", engine_->step(),
                                " of --steps=", options_.plan.steps, " steps are done already\n"));
  } else {
    console_.Print("\n");
  }
}

// --- training -----------------------------------------------------------------------------------

absl::StatusOr<int> Trainer::Run(StopSignal& signal) {
  const absl::StatusOr<std::optional<EarlyEnd>> trained = TrainAllSteps(signal);
  signal.Release();
  MUSTER_RETURN_IF_ERROR(trained.status());
  if (const std::optional<EarlyEnd>& early = *trained; early.has_value()) {
    PrintStop(*early);
    if (early->signal != 0) return early->signal;
  } else {
    MUSTER_RETURN_IF_ERROR(PrintSample());
    if (options_.print.hash) {
      MUSTER_ASSIGN_OR_RETURN(const std::string hash, engine_->ParameterHash());
      if (runtime_.rank() == 0) Console(true).Print(absl::StrCat("hash=", hash, "\n"));
    }
  }
  MUSTER_RETURN_IF_ERROR(runtime_.Finish(engine_->step()));
  return 0;
}

// The agent hears before the first step that this rank obeys.
absl::StatusOr<std::optional<Trainer::EarlyEnd>> Trainer::TrainAllSteps(const StopSignal& signal) {
  StopVote vote(*world_);
  const MonoTime start = MonoNow();
  if (!so_far_.begin.has_value()) so_far_.begin = start;
  ProgressLine progress(
      {.first_step = engine_->step(),
       .total_steps = options_.plan.steps,
       .log_every = options_.print.log_every,
       .tokens_peak = so_far_.operations_peak * runtime_.size() / OperationsPerToken(config())},
      start);
  TracedSteps traced(*engine_, options_, runtime_);
  std::optional<EarlyEnd> early = AskForStop();
  const auto save_if_due = [&]() -> absl::Status {
    const bool is_last = early.has_value() || engine_->step() >= options_.plan.steps;
    return IsSaveDue(is_last) ? Save(is_last) : absl::OkStatus();
  };
  // The round that made these steps may have ended before it saved them.
  if (restored_.has_value() && engine_->step() > 0) MUSTER_RETURN_IF_ERROR(save_if_due());
  while (!early.has_value() && engine_->step() < options_.plan.steps) {
    const int64_t sent_before = engine_->bytes_sent();
    vote.Begin(signal.received());
    MUSTER_ASSIGN_OR_RETURN(const StepResult result, TrainOneStep());
    if (const auto line = progress.Add(result, MonoNow())) console_.Print(*line + "\n");
    traced.AfterStep();
    MUSTER_ASSIGN_OR_RETURN(const int stop_signal, vote.End());
    so_far_.bytes_sent_by_steps += engine_->bytes_sent() - sent_before;
    early = stop_signal != 0 ? EarlyEnd{.signal = stop_signal, .reason = SignalName(stop_signal)}
                             : AskForStop();
    MUSTER_RETURN_IF_ERROR(save_if_due());
  }
  if (!early.has_value()) PrintEnd(MonoNow());
  return early;
}

absl::StatusOr<StepResult> Trainer::TrainOneStep() {
  const absl::StatusOr<StepResult> made = engine_->Step(*reader_);
  if (!made.ok()) return SaveBeforeEnding(made.status());
  const StepResult& result = *made;
  so_far_.totals.Add(result);
  if (!result.skipped) so_far_.history.Add(result.step, result.loss);
  so_far_.last_step = result.step;
  return result;
}

// What is complete is not stopped.
std::optional<Trainer::EarlyEnd> Trainer::AskForStop() {
  if (engine_->step() >= options_.plan.steps) return std::nullopt;
  if (!runtime_.ShouldStop(engine_->step())) return std::nullopt;
  return EarlyEnd{.reason = runtime_.stop_reason()};
}

bool Trainer::IsSaveDue(bool is_last) const {
  if (options_.saving.directory.empty()) return false;
  return is_last || (options_.saving.every > 0 && engine_->step() % options_.saving.every == 0);
}

// Every rank gets the same answers, so all try as often.
absl::Status Trainer::Save(bool is_last) {
  for (int attempt = 0;; ++attempt) {
    const absl::Status saved = engine_->Save(options_.saving.directory, Metadata());
    if (saved.ok()) break;
    const std::string refusal = NotSaved(saved);
    if (!IsRefusedByFence(saved)) {
      if (is_last || !IsOfTheDisk(saved)) return saved;
      Console(runtime_.rank() == 0).Print(refusal + "; training goes on\n");
      return absl::OkStatus();
    }
    if (is_last && IsRefusedForGood(saved)) return absl::CancelledError(refusal);
    if (attempt == 0) console_.Print(refusal + "\n");
    if (!is_last) return absl::OkStatus();
    // No own failure: another round may have begun that only others know of.
    if (attempt == kLastSaveAttempts) return absl::Status(saved.code(), saved.message());
    absl::SleepFor(kBetweenLastSaves);
  }
  so_far_.saved_step = engine_->step();
  console_.Print(absl::StrCat("saved after step ", so_far_.saved_step, " in ",
                              options_.saving.directory, "\n"));
  return absl::OkStatus();
}

// Saves parameters that are as they were before the step that failed, on all ranks alike.
absl::Status Trainer::SaveBeforeEnding(const absl::Status& failure) {
  const int64_t step = engine_->step();
  if (options_.saving.directory.empty() || !absl::IsFailedPrecondition(failure)) return failure;
  std::string what =
      absl::StrCat("what was trained until step ", step, " is in ", options_.saving.directory);
  if (step == 0) {
    what = "nothing is saved, since nothing was trained";
  } else if (so_far_.saved_step != step) {
    const absl::Status saved = engine_->Save(options_.saving.directory, Metadata());
    if (saved.ok()) {
      so_far_.saved_step = step;
    } else {
      what = NotSaved(saved);
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(failure.message(), "; ", what));
}

std::string Trainer::NotSaved(const absl::Status& why) const {
  return absl::StrCat("not saved after step ", engine_->step(), ": ", why.message(),
                      "; earlier checkpoints stay");
}

// --- what came of it ----------------------------------------------------------------------------

void Trainer::PrintStop(const EarlyEnd& end) const {
  std::string rest =
      absl::StrCat("it goes on from there with --resume=", options_.saving.directory);
  if (options_.saving.directory.empty()) {
    rest = "nothing is saved, since there was no --save";
  } else if (so_far_.saved_step != engine_->step()) {
    rest = "nothing is saved, since nothing was trained";
  }
  console_.Print(absl::StrCat(
      end.signal != 0 ? absl::StrCat(end.reason, " ends the training")
                      : absl::StrCat("the job stops (", end.reason, "): training ends"),
      " after step ", engine_->step(), " of ", options_.plan.steps, "; ", rest, "\n"));
}

void Trainer::PrintEnd(MonoTime end) const {
  if (!console_.speaks() || so_far_.totals.num_steps() == 0) return;
  if (so_far_.totals.num_steps() >= 10) {
    const std::string curve =
        DrawLossCurve(so_far_.history.points(), {.unicode = TerminalIsUtf8()});
    console_.Print(absl::StrCat("\n", curve, "\n"));
  }
  console_.Print(DescribeEnd({.totals = so_far_.totals,
                              .elapsed = end - *so_far_.begin,
                              .memory = engine_->memory(),
                              .resident_bytes = OwnResidentBytes(),
                              .wire_bytes_per_step = BytesSentPerStep(),
                              .size = runtime_.size(),
                              .rounds = so_far_.rounds,
                              .repeated_steps = so_far_.repeated_steps}));
}

int64_t Trainer::BytesSentPerStep() const {
  return so_far_.totals.num_steps() == 0 ? 0
                                         : so_far_.bytes_sent_by_steps / so_far_.totals.num_steps();
}

absl::Status Trainer::PrintSample() {
  if (options_.print.quiet || options_.sample_tokens == 0) return absl::OkStatus();
  if (!console_.speaks() && !needs_others()) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                          PromptOf(options_, *so_far_.data.tokens));
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<int32_t> tokens,
      Generate(*model_, engine_->pool(), prompt,
               {.num_tokens = options_.sample_tokens, .seed = options_.plan.plan.seed}));
  MUSTER_RETURN_IF_ERROR(engine_->EndUse());
  std::string text = PrintableIds(tokens);
  if (config().vocabulary <= kByteVocabulary) {
    std::vector<int32_t> whole = options_.prompt.has_value() ? prompt : std::vector<int32_t>();
    whole.insert(whole.end(), tokens.begin(), tokens.end());
    text = PrintableText(whole);
  }
  console_.Print(absl::StrCat("\nthe model writes\n",
                              Indented(text, TerminalIsUtf8() ? "  │ " : "  | "), "\n"));
  return absl::OkStatus();
}

// --- the end of a round -------------------------------------------------------------------------

// Until the engine has the training's state, what was brought to this round is it.
TrainingSoFar Trainer::LetGo(const absl::Status& failure) {
  EndGroups(failure);
  if (holds_state_) {
    absl::StatusOr<EngineSnapshot> state = engine_->TakeSnapshot();
    so_far_.no_state = std::string(state.status().message());
    if (state.ok()) so_far_.state = *std::move(state);
  }
  reader_.reset();
  engine_.reset();
  model_.reset();
  store_.reset();
  so_far_.former_world = std::move(world_);
  return std::move(so_far_);
}

}  // namespace muster::train
