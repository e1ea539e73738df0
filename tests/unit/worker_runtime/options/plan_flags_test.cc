#include "worker_runtime/options/plan_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Args = std::vector<std::string>;
using Kind = LearningRateSchedule::Kind;

absl::StatusOr<PlanOptions> Parse(const Args& args, const DecoderConfig& model = DecoderConfig()) {
  PlanOptions options;
  options.model = model;
  const command_line::Grammar grammar{.program = "plan", .options = PlanFlags(options)};
  MUSTER_ASSIGN_OR_RETURN(const command_line::CommandLine line,
                          command_line::Split(grammar, args, {}));
  MUSTER_RETURN_IF_ERROR(command_line::ReadValues(grammar, line));
  MUSTER_RETURN_IF_ERROR(command_line::InWordsOf(grammar, line, FinishPlanOptions(options)));
  return options;
}

void ExpectRefused(const Args& args, const std::string& message) {
  EXPECT_THAT(Parse(args), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
      << args.front();
}

TEST(PlanOptions, AreTheDefaultsIfNothingIsSaid) {
  const absl::StatusOr<PlanOptions> options = Parse({});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan, Plan());
  EXPECT_EQ(options->model, DecoderConfig());
  EXPECT_EQ(options->batch_size, 4);
  EXPECT_EQ(options->steps, 200);
  EXPECT_EQ(options->dtype, DType::kF32);
}

TEST(PlanOptions, EachReachItsField) {
  const absl::StatusOr<PlanOptions> options = Parse({"--plan=no_shard",
                                                     "--stages=2",
                                                     "--mode=ordered",
                                                     "--num_layers=2",
                                                     "--num_heads=4",
                                                     "--hidden_size=64",
                                                     "--sequence_length=32",
                                                     "--batch-size=8",
                                                     "--gradient_accumulation_steps=3",
                                                     "--steps=90",
                                                     "--lr=0.01",
                                                     "--min_lr=0.001",
                                                     "--warmup_steps=7",
                                                     "--schedule=cosine",
                                                     "--weight_decay=0.2",
                                                     "--beta1=0.8",
                                                     "--beta2=0.99",
                                                     "--max_gradient_norm=0.5",
                                                     "--seed=42",
                                                     "--bucket_mb=0.5",
                                                     "--recompute=full",
                                                     "--recompute_layers=2",
                                                     "--dtype=f64",
                                                     "--device=cpu"});
  ASSERT_THAT(options, IsOk());
  Plan plan;
  plan.mode = SumMode::kOrdered;
  plan.accumulation = 3;
  plan.buckets.bytes_max = 1 << 19;
  plan.buckets.first_bytes = 1 << 19;
  plan.recompute = {.kind = Recompute::Kind::kFull, .layers = 2};
  plan.update = {.weight_decay = 0.2, .beta1 = 0.8, .beta2 = 0.99};
  plan.learning_rate = {
      .kind = Kind::kCosine, .peak = 0.01, .floor = 0.001, .warmup_steps = 7, .total_steps = 90};
  plan.max_gradient_norm = 0.5;
  plan.seed = 42;
  plan.stages = 2;
  EXPECT_EQ(Describe(options->plan), Describe(plan));
  EXPECT_EQ(options->model,
            (DecoderConfig{
                .layers = 2, .heads = 4, .hidden_size = 64, .context = 32, .vocabulary = 256}));
  EXPECT_EQ(options->batch_size, 8);
  EXPECT_EQ(options->steps, 90);
  EXPECT_EQ(options->dtype, DType::kF64);
}

TEST(PlanOptions, AreSpelledWithDashesOrUnderscoresAndEqualsOrSpace) {
  for (const Args& args : {Args{"--warmup_steps=5"}, Args{"--warmup-steps=5"},
                           Args{"--warmup_steps", "5"}, Args{"--warmup-steps", "5"}}) {
    const absl::StatusOr<PlanOptions> options = Parse(args);
    ASSERT_THAT(options, IsOk());
    EXPECT_EQ(options->plan.learning_rate.warmup_steps, 5);
  }
}

TEST(PlanOptions, TakeAScheduleForTheStagesOfAPipeline) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--stages=4", "--stage_schedule=interleaved", "--stages_per_rank=3"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.schedule, "interleaved");
  EXPECT_EQ(options->plan.stages_per_rank, 3);
  ExpectRefused({"--stage_schedule=gpipe"}, "1f1b where there is one stage");
  ExpectRefused({"--stages=4", "--stage_schedule=gpipes"}, "gpipe, 1f1b, interleaved");
}

TEST(PlanOptions, TakeCostsOfUnitsOrTheWishToMeasureThem) {
  EXPECT_THAT(Parse({"--stages=4", "--unit_costs", "embedding:0.5", "h.*:12"})->plan.unit_costs,
              ElementsAre(UnitCost{"embedding", 0.5}, UnitCost{"h.*", 12}));
  EXPECT_TRUE(Parse({"--stages=4", "--unit_costs=measured"})->measures_unit_costs);
  ExpectRefused({"--stages=4", "--unit_costs=h.*"}, "expected UNITS:COST with a number");
  ExpectRefused({"--stages=4", "--unit_costs=mesured"}, "did you mean measured?");
  ExpectRefused({"--stages=4", "--unit_costs=h.*:-1"}, "a finite number, 0 or more");
  ExpectRefused({"--unit_costs=h.*:1"}, "left out where there is one stage");
  ExpectRefused({"--unit_costs=measured"}, "add --stages=N");
  ExpectRefused({"--stages=4", "--unit_costs", "measured", "*:1"}, "say one of the two");
}

TEST(PlanOptions, TakeATypeOfAdapters) {
  EXPECT_EQ(Parse({"--lora=4", "--dtype=bf16"})->adapters.dtype, std::nullopt);
  EXPECT_EQ(Parse({"--lora=4", "--dtype=bf16", "--lora_dtype=float32"})->adapters.dtype,
            DType::kF32);
  EXPECT_EQ(Parse({"--lora=4", "--dtype=f64", "--lora_dtype=f64"})->adapters.dtype, DType::kF64);
  ExpectRefused({"--lora_dtype=f32"}, "there are no adapters; add --lora=RANK, or leave it out");
  ExpectRefused(
      {"--lora=4", "--lora_dtype=bf16"},
      "--lora_dtype=bf16 with --dtype=f32: adapters have the model's type, or f32 beside a "
      "model in bf16 or f16");
  ExpectRefused({"--lora=4", "--lora_dtype=f32", "--dtype=bf16", "--stochastic_rounding"},
                "with parameters in f32: only those in bf16 can be rounded so");
}

TEST(PlanOptions, TakeATypeForGradientsOnTheirWay) {
  EXPECT_EQ(Parse({"--reduce_dtype=bf16"})->plan.dtypes.reduced, DType::kBf16);
  EXPECT_EQ(Parse({"--communication-data-type=fp16"})->plan.dtypes.reduced, DType::kF16);
  ExpectRefused({"--reduce_dtype=bf17"}, "--reduce_dtype=bf17");
  ExpectRefused({"--reduce_dtype=bf16", "--mode=ordered"}, "--reduce_dtype must be left out");
}

TEST(PlanOptions, KeepTheirOldNames) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--layers=2", "--heads=4", "--width=64", "--context=32", "--accumulation=3",
             "--grad_clip=0.5"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(*options,
            *Parse({"--num_layers=2", "--num_heads=4", "--hidden_size=64", "--sequence_length=32",
                    "--gradient_accumulation_steps=3", "--max_gradient_norm=0.5"}));
}

TEST(PlanOptions, TakeTheLastOfSeveralValues) {
  const absl::StatusOr<PlanOptions> options = Parse({"--layers=2", "--layers", "3"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->model.layers, 3);
}

TEST(PlanOptions, KeepWhatWasSaidBesideThePlanWhateverTheOrder) {
  const absl::StatusOr<PlanOptions> options = Parse({"--accumulation=3", "--plan=ddp"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.accumulation, 3);
}

TEST(PlanOptions, StartFromTheCallersModel) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--layers=3"}, {.heads = 2, .hidden_size = 10, .vocabulary = 99});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->model,
            (DecoderConfig{.layers = 3, .heads = 2, .hidden_size = 10, .vocabulary = 99}));
}

TEST(PlanOptions, LeaveAConstantPlanTheSameForMoreSteps) {
  const absl::StatusOr<PlanOptions> few = Parse({"--steps=10"});
  const absl::StatusOr<PlanOptions> many = Parse({"--steps=1000"});
  ASSERT_THAT(few, IsOk());
  ASSERT_THAT(many, IsOk());
  EXPECT_EQ(few->plan, many->plan);
}

TEST(PlanOptions, TakeGroupsInTheirOrderAndFrozenOnesFirst) {
  const auto options = Parse({"--group=h.0.*:lr_scale=0.1,weight_decay=0", "--freeze", "wpe.*",
                              "wte.*", "--group", "*.bias:frozen", "*:beta1=0.5,beta2=0.75"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.groups,
            (std::vector<ParameterGroup>{
                {.parameters = "wpe.*", .frozen = true},
                {.parameters = "wte.*", .frozen = true},
                {.parameters = "h.0.*", .learning_rate_scale = 0.1, .weight_decay = 0},
                {.parameters = "*.bias", .frozen = true},
                {.parameters = "*", .beta1 = 0.5, .beta2 = 0.75}}));
}

TEST(PlanOptions, RefuseAGroupThatSaysNothing) {
  ExpectRefused({"--group=wpe.*"},
                "expected PATTERN:SETTING,... with the settings frozen, lr_scale");
  ExpectRefused({"--group=wpe.*:lr=1"}, "not 'lr'");
  ExpectRefused({"--group=wpe.*:betal=1"}, "not 'betal'; did you mean beta1?");
  ExpectRefused({"--group=wpe.*:beta1"}, "expected a number");
  ExpectRefused({"--group=wpe.*:beta1=2"}, "groups.0.beta1 must be at least 0 and below 1, not 2");
}

TEST(PlanOptions, ChooseOptimizerAndSchedule) {
  const auto options =
      Parse({"--optimizer=sgd", "--momentum=0.9", "--nesterov", "--schedule=warmup_decay",
             "--warmup_type=linear", "--min_lr=1e-5", "--steps=50"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.update,
            (UpdateRule{.kind = UpdateRule::Kind::kSgd, .momentum = 0.9, .nesterov = true}));
  EXPECT_EQ(options->plan.learning_rate,
            (LearningRateSchedule{.kind = Kind::kWarmupDecay,
                                  .floor = 1e-5,
                                  .total_steps = 50,
                                  .rise = LearningRateSchedule::Rise::kLinear}));
  ExpectRefused({"--momentum=0.9"}, "--momentum must be 0 with adamw");
  ExpectRefused({"--nesterov", "--optimizer=sgd"}, "--nesterov must be false without a momentum");
  ExpectRefused({"--optimizer=lion"}, "--optimizer=lion: expected adamw, adam or sgd");
}

TEST(PlanOptions, RoundStochasticallyInBf16Alone) {
  const auto options = Parse({"--stochastic_rounding", "--dtype=bf16"});
  ASSERT_THAT(options, IsOk());
  EXPECT_TRUE(options->plan.update.stochastic_rounding);
  EXPECT_FALSE(Parse({"--dtype=bf16"})->plan.update.stochastic_rounding);
  for (const std::string dtype : {"f32", "f16"}) {
    ExpectRefused({"--stochastic_rounding", "--dtype=" + dtype},
                  "--stochastic_rounding must be left out with parameters in " + dtype +
                      ": only those in bf16 can be rounded so");
  }
}

TEST(PlanOptions, TakeALossScaleByItsAlgorithmOrAsANumber) {
  EXPECT_EQ(Parse({"--loss_scale=128"})->plan.loss_scaling, LossScaling::Static(128));
  EXPECT_EQ(Parse({"--loss_scale=torch"})->plan.loss_scaling, LossScaling::Torch());
  const auto options =
      Parse({"--loss_scale_window=7", "--loss_scale=deepspeed", "--hysteresis=3",
             "--consecutive_hysteresis", "--min_loss_scale=2", "--initial_loss_scale=1024"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.loss_scaling, (LossScaling{.kind = LossScaling::Kind::kDeepSpeed,
                                                     .initial = 1024,
                                                     .window = 7,
                                                     .hysteresis = 3,
                                                     .consecutive_hysteresis = true,
                                                     .minimum = 2}));
  ExpectRefused(
      {"--loss_scale=torhc"},
      "--loss_scale=torhc: expected none, deepspeed, torch or a number; did you mean torch?");
  ExpectRefused({"--loss_scale=0"}, "--initial_loss_scale must be above 0");
}

TEST(PlanOptions, TakeTheUsualNamesOfTypes) {
  for (const char* name : {"f32", "fp32", "float32"}) {
    const absl::StatusOr<PlanOptions> options = Parse({absl::StrCat("--dtype=", name)});
    ASSERT_THAT(options, IsOk());
    EXPECT_EQ(options->dtype, DType::kF32);
  }
  EXPECT_EQ(Parse({"--dtype=bfloat16"})->dtype, DType::kBf16);
  EXPECT_EQ(Parse({"--dtype=fp16"})->dtype, DType::kF16);
}

TEST(PlanOptions, RefuseValuesThatAreNoneWithFlagValueAndWhatWasExpected) {
  ExpectRefused({"--layers=six"}, "--layers=six: expected a whole number");
  ExpectRefused({"--layers=99999999999999999999"}, "expected a whole number");
  ExpectRefused({"--layers= 6"}, "expected a whole number");
  ExpectRefused({"--lr=fast"}, "--lr=fast: expected a number");
  ExpectRefused({"--lr=nan"}, "--lr=nan: expected a number");
  ExpectRefused({"--beta1=inf"}, "--beta1=inf: expected a number");
  ExpectRefused({"--mode=slow"}, "--mode=slow: expected fast or ordered");
  ExpectRefused({"--schedule=step"},
                "--schedule=step: expected constant, linear, cosine, warmup or warmup_decay");
  ExpectRefused({"--dtype=int8"}, "--dtype=int8: expected f32, bf16, f16 or f64");
  ExpectRefused({"--device=tpu"}, "--device=tpu: expected cpu or cuda");
  ExpectRefused({"--cuda_attention=flash"}, "--cuda_attention=flash: expected own, cudnn or auto");
  ExpectRefused({"--seed=-1"}, "--seed=-1: expected a whole number between 0 and");
  ExpectRefused({"--plan=dpp"},
                "--plan=dpp: 'dpp' is not a known plan; expected ddp, zero-1, zero-2, zero-3");
}

TEST(PlanOptions, TakeAttentionByCudnnWhereItCanCompute) {
  const auto read = [](std::initializer_list<const char*> args) {
    return Parse({args.begin(), args.end()})->cuda_attention;
  };
  EXPECT_EQ(read({"--device=cuda", "--dtype=bf16"}), CudaAttention::kAuto);
  EXPECT_EQ(read({"--cuda_attention=own"}), CudaAttention::kOwn);
  EXPECT_EQ(read({"--device=cuda", "--dtype=f16", "--cuda_attention=cudnn"}),
            CudaAttention::kCudnn);
  EXPECT_EQ(read({"--cuda-attention=auto"}), CudaAttention::kAuto);
  ExpectRefused({"--dtype=bf16", "--cuda_attention=cudnn"},
                "--cuda_attention=cudnn is of GPUs; add --device=cuda");
  ExpectRefused({"--device=cuda", "--cuda_attention=cudnn"},
                "cuDNN computes attention in bf16 and f16, not in f32; try --dtype=bf16");
}

TEST(PlanOptions, RefuseValuesOutOfRangeByTheFlag) {
  ExpectRefused({"--layers=0"}, "--layers must be between 1 and");
  ExpectRefused({"--heads=7"}, "--heads must divide the hidden size: 384 is not a multiple of 7");
  ExpectRefused({"--batch-size=0"}, "--batch_size=0: expected a whole number between 1 and");
  ExpectRefused({"--accumulation=0"}, "--accumulation=0: expected a whole number between 1 and");
  ExpectRefused({"--steps=-1"}, "--steps=-1: expected a whole number between 0 and");
  ExpectRefused({"--lr", "-1"}, "--lr must be between 0 and 1e+06, not -1");
  ExpectRefused({"--warmup_steps=-1"}, "--warmup_steps must be between");
  ExpectRefused({"--beta2=1"}, "--beta2 must be at least 0 and below 1, not 1");
  ExpectRefused({"--weight_decay=-1"}, "--weight_decay must be a finite number, 0 or more, not -1");
  ExpectRefused({"--grad_clip=-2"}, "--grad_clip must be a finite number, 0 or more, not -2");
  for (const char* size : {"0", "-1", "1e300", "1e-9"}) {
    ExpectRefused({"--bucket_mb", size},
                  absl::StrCat("--bucket_mb=", size, ": expected a size in MiB above 0"));
  }
}

TEST(PlanOptions, RefuseAScheduleThatHasNoStepsToFall) {
  ExpectRefused({"--schedule=linear", "--steps=5", "--warmup_steps=5"},
                "--steps must be more than the 5 steps of warm-up");
  ExpectRefused({"--schedule=linear", "--schedule_steps=5", "--steps=9", "--warmup_steps=5"},
                "--schedule_steps must be more than the 5 steps of warm-up");
}

TEST(PlanOptions, RefuseALowestRateThatIsNeverReached) {
  ExpectRefused({"--min_lr=1e-5"}, "--min_lr=1e-05: a constant learning rate does not fall");
  ExpectRefused({"--min_lr=1", "--schedule=linear"}, "--min_lr must be between 0 and the peak");
}

TEST(PlanOptions, OfShardingReachTheirFields) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--plan=fsdp:full_shard", "--shard_ranks=4", "--reshard_after_forward=2",
             "--backward_prefetch=BACKWARD_POST", "--prefetch_units=3",
             "--stage3_prefetch_bucket_size=1000", "--stage3_max_live_parameters=2000",
             "--stage3_max_reuse_distance=3000", "--stage3_param_persistence_threshold=40",
             "--stage3_model_persistence_threshold=50", "--gradient_reduction=once",
             "--memory_limit=1.5"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.preset, "full-shard");
  EXPECT_EQ(options->plan.shard_ranks, 4);
  EXPECT_EQ(options->plan.gathering, (GatherPlan{.reshard_after_forward = true,
                                                 .secondary_ranks = 2,
                                                 .backward_prefetch = BackwardPrefetch::kPost,
                                                 .prefetch_units = 3,
                                                 .prefetch_elements = 1000,
                                                 .max_live_elements = 2000,
                                                 .max_reuse_distance = 3000,
                                                 .persistence_threshold = 40,
                                                 .persistence_total = 50}));
  EXPECT_EQ(options->plan.gradient_reduction, GradientReduction::kOnce);
  EXPECT_EQ(options->plan.memory_bytes_max, 3 << 29);
  ExpectRefused({"--plan=fsdp", "--reshard_after_forward=perhaps"},
                "expected true, false or a number");
  ExpectRefused({"--plan=fsdp", "--backward_prefetch=later"}, "pre");
  ExpectRefused({"--plan=ddp", "--reshard_after_forward=true"},
                "reshard_after_forward must be false");
}

TEST(PlanOptions, KnowTheNamesThatOtherTrainersHave) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--gradient_checkpointing", "--adam_epsilon=1e-6", "--adam_beta2=0.5",
             "--per_device_train_batch_size=3", "--max_steps=9", "--overlap_comm=no"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.recompute.kind, Recompute::Kind::kFull);
  EXPECT_EQ(options->plan.update.epsilon, 1e-6);
  EXPECT_EQ(options->plan.update.beta2, 0.5);
  EXPECT_EQ(options->batch_size, 3);
  EXPECT_EQ(options->steps, 9);
  EXPECT_FALSE(options->plan.overlap);
}

TEST(PlanOptions, SayThePlanThatAMisspelledOneIsNearestTo) {
  ExpectRefused({"--plan=zero3x"}, "did you mean zero-3?");
  ExpectRefused({"--plan=fullshard2"}, "did you mean full_shard?");
}

TEST(PlanOptions, EndAFallWhereTheScheduleSaysAndNotTheTraining) {
  const absl::StatusOr<PlanOptions> options =
      Parse({"--schedule=warmup_decay", "--schedule_steps=500", "--steps=3"});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->plan.learning_rate.total_steps, 500);
}

}  // namespace
}  // namespace muster::plan
