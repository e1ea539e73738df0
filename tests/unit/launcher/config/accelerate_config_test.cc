#include "launcher/config/accelerate_config.h"
#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/line/flags.h"
#include "tests/support/files.h"

namespace muster::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

std::string ConfigOf(const std::string& name) {
  return muster::testing::ReadFile(
      absl::StrCat(testing::kSourceDirectory, "/tests/unit/launcher/configs/", name));
}

absl::StatusOr<LaunchConfig> Launch(const std::string& text, const AccelerateSurroundings& around) {
  absl::StatusOr<ConfigFile> file = ReadAccelerateFile(text, "");
  return file.ok() ? LaunchOfAccelerate(*std::move(file), around)
                   : absl::StatusOr<LaunchConfig>(file.status());
}

LaunchConfig Read(const std::string& text, const EnvironmentMap& inherited = {}) {
  auto launch = Launch(text, {.inherited = inherited, .directory = "/work", .num_cores = 12});
  EXPECT_TRUE(launch.ok()) << launch.status();
  return launch.value_or(LaunchConfig{});
}

std::string WhyNot(const std::string& text) {
  const absl::Status status = Launch(text, AccelerateSurroundings{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(LaunchOfAccelerate, ReadsAJobOnSeveralGpus) {
  const LaunchConfig launch = Read(ConfigOf("accelerate_multi_gpu.yaml"));
  EXPECT_THAT(launch.options,
              ElementsAre(TakenOption{"nproc_per_node", "4", "line 4: num_processes", true}));
  EXPECT_THAT(launch.environment, Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16")));
  EXPECT_THAT(launch.environment, Contains(Pair("ACCELERATE_DYNAMO_BACKEND", "NO")));
  EXPECT_THAT(launch.environment, Contains(Pair("OMP_NUM_THREADS", "1")));
  EXPECT_THAT(Read(ConfigOf("accelerate_multi_gpu.yaml"), {{"OMP_NUM_THREADS", "3"}}).environment,
              Not(Contains(Key("OMP_NUM_THREADS"))));
}

TEST(LaunchOfAccelerate, PlacesSeveralMachines) {
  const LaunchConfig launch = Read(
      "distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\nmachine_rank: 1\n"
      "main_process_ip: 10.0.0.1\nmain_process_port: 7000\ngpu_ids: '0,2'\n");
  EXPECT_THAT(
      launch.options,
      ElementsAre(TakenOption{"nproc_per_node", "8", "line 2: num_processes", true},
                  TakenOption{"nnodes", "2", "line 3: num_machines", true},
                  TakenOption{"node_rank", "1", "line 4: machine_rank", true},
                  TakenOption{"rdzv_backend", "static", "rdzv_backend"},
                  TakenOption{"rdzv_endpoint", "10.0.0.1:7000", "line 5: main_process_ip", true}));
  EXPECT_THAT(launch.environment, Contains(Pair("CUDA_VISIBLE_DEVICES", "0,2")));
}

// Source: accelerate 1.15, utils/launch.py (prepare_simple_launcher_cmd_env).
TEST(LaunchOfAccelerate, StartsOneProcessAsByHandWhereNothingIsDistributed) {
  const std::vector<TakenOption> alone = {
      {"nproc_per_node", "1", "line 1: distributed_type", true},
      {"rank_variables", "off", "line 1: distributed_type", true}};
  const LaunchConfig one = Read("distributed_type: 'NO'\nnum_processes: 1\nmain_process_port: 7");
  EXPECT_EQ(one.options, alone);
  EXPECT_THAT(one.environment, Not(Contains(Key("MASTER_ADDR"))));
  EXPECT_THAT(one.notes, IsEmpty());
  EXPECT_EQ(Read("distributed_type: MULTI_CPU\nnum_processes: 1").options, alone);
  const LaunchConfig two = Read("distributed_type: no\nnum_processes: 2");
  EXPECT_EQ(two.options, alone);
  EXPECT_THAT(two.environment, Contains(Pair("MASTER_ADDR", "127.0.0.1")));
  EXPECT_THAT(two.environment, Contains(Pair("MASTER_PORT", "29500")));
  EXPECT_THAT(two.notes, ElementsAre(HasSubstr("though num_processes is 2")));
  const LaunchConfig machines = Read(
      "distributed_type: no\nnum_processes: 2\nnum_machines: 2\nmachine_rank: 1\n"
      "main_process_ip: n0\nmain_process_port: 7\n");
  EXPECT_EQ(machines.options, alone);
  EXPECT_THAT(machines.environment, Contains(Pair("MASTER_ADDR", "n0")));
  EXPECT_THAT(machines.environment, Contains(Pair("MASTER_PORT", "7")));
  EXPECT_THAT(machines.notes, ElementsAre(HasSubstr("though num_machines is 2")));
}

// Source: accelerate 1.15, commands/launch.py (_validate_launch_command).
TEST(LaunchOfAccelerate, SharesTheCoresAmongProcessesOnCpus) {
  const auto threads = [](const std::string& text, const EnvironmentMap& inherited = {}) {
    return VariableOrEmpty(Read(text + "\nuse_cpu: true", inherited).environment,
                           "OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads("distributed_type: 'NO'"), "12");
  EXPECT_EQ(threads("distributed_type: 'NO'\nnum_processes: 5"), "2");
  EXPECT_EQ(threads("distributed_type: FSDP\nnum_processes: 24"), "1");
  EXPECT_EQ(threads("distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 2\n"
                    "main_process_ip: n0"),
            "3");
  EXPECT_EQ(threads("distributed_type: 'NO'", {{"OMP_NUM_THREADS", "7"}}), "");
}

// Source: accelerate 1.15 takes each of these.
TEST(LaunchOfAccelerate, TakesOlderSpellings) {
  const LaunchConfig fsdp = Read(
      "distributed_type: FSDP\nnum_processes: 2\nfp16: true\ndynamo_backend: INDUCTOR\n"
      "fsdp_config:\n  backward_prefetch_policy: BACKWARD_PRE\n  sharding_strategy: 1\n");
  EXPECT_THAT(fsdp.environment, Contains(Pair("ACCELERATE_MIXED_PRECISION", "fp16")));
  EXPECT_THAT(fsdp.environment, Contains(Pair("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")));
  EXPECT_THAT(fsdp.environment, Contains(Pair("FSDP_SHARDING_STRATEGY", "1")));
  EXPECT_THAT(fsdp.environment, Not(Contains(Key("FSDP_BACKWARD_PREFETCH"))));
  EXPECT_THAT(fsdp.notes,
              ElementsAre("line 6: backward_prefetch_policy in fsdp_config means nothing "
                          "to accelerate: its name is fsdp_backward_prefetch now"));
  const LaunchConfig deepspeed = Read(
      "distributed_type: DEEPSPEED\nnum_processes: 2\nfp16: true\nmixed_precision: bf16\n"
      "deepspeed_config:\n  steps_per_print: 9\n  zero_stage: 2\n");
  EXPECT_THAT(deepspeed.environment, Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16")));
  EXPECT_THAT(deepspeed.environment, Contains(Pair("ACCELERATE_CONFIG_DS_FIELDS",
                                                   "steps_per_print,zero_stage,mixed_precision")));
  EXPECT_THAT(deepspeed.notes, ElementsAre(HasSubstr("deepspeed_config_file")));
}

// What `accelerate config` writes for several processes on CPUs that mpirun starts.
TEST(LaunchOfAccelerate, TakesTheHostsOfMpirun) {
  const std::string hosts =
      "mpirun_config:\n  mpirun_ccl: '1'\n  mpirun_hostfile: /h\nnum_machines: 2\n"
      "num_processes: 4\nuse_cpu: true\n";
  const LaunchConfig launch = Read("distributed_type: MULTI_CPU\n" + hosts);
  EXPECT_THAT(launch.options,
              ElementsAre(TakenOption{"hostfile", "/h", "line 4: mpirun_hostfile", true},
                          TakenOption{"no_local_rank", "1", "line 4: mpirun_hostfile", true},
                          TakenOption{"num_nodes", "2", "line 5: num_machines", true},
                          TakenOption{"nproc_per_node", "2", "line 6: num_processes", true}));
  EXPECT_THAT(launch.environment, Contains(Pair("ACCELERATE_USE_CPU", "True")));
  EXPECT_THAT(launch.environment, Contains(Pair("OMP_NUM_THREADS", "6")));
  EXPECT_THAT(launch.environment, Not(Contains(Key("MASTER_ADDR"))));
  EXPECT_THAT(launch.notes,
              ElementsAre("line 3: mpirun_ccl in mpirun_config means nothing to accelerate: "
                          "oneCCL's number of threads is the variable CCL_WORKER_COUNT"));
  EXPECT_THAT(Read("distributed_type: MULTI_GPU\nmain_process_ip: n0\n" + hosts).notes,
              Contains("line 5: mpirun_hostfile means nothing to accelerate with distributed_type "
                       "MULTI_GPU: mpirun starts jobs of MULTI_CPU and NO"));
  EXPECT_THAT(Read("distributed_type: MULTI_CPU\nmpirun_config: {}\nnum_processes: 1").options,
              Contains(TakenOption{"rank_variables", "off", "line 1: distributed_type", true}));
}

TEST(LaunchOfAccelerate, TakesTheHostsOfDeepSpeed) {
  EXPECT_THAT(Read("distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 4\n"
                   "main_process_ip: n0\ndeepspeed_config:\n  deepspeed_hostfile: /h\n"
                   "  deepspeed_exclusion_filter: a:0\n")
                  .options,
              ElementsAre(TakenOption{"hostfile", "/h", "line 6: deepspeed_hostfile", true},
                          TakenOption{"no_local_rank", "1", "line 6: deepspeed_hostfile", true},
                          TakenOption{"exclude", "a:0", "line 7: deepspeed_exclusion_filter", true},
                          TakenOption{"master_addr", "n0", "line 4: main_process_ip", true}));
}

TEST(LaunchOfAccelerate, NamesWhatItCannotTake) {
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nnum_proceses: 2"),
              HasSubstr("line 2: unknown key 'num_proceses'"));
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nnum_proceses: 2"), HasSubstr("num_processes"));
  EXPECT_THAT(WhyNot("distributed_type: FSDP\nfsdp_config:\n  fsdp_shard: 1"),
              HasSubstr("line 3: unknown key 'fsdp_shard' in fsdp_config"));
  EXPECT_THAT(WhyNot("num_processes: 1"), HasSubstr("distributed_type is missing"));
  EXPECT_EQ(WhyNot("distributed_type: XLA"), "line 1: distributed_type: XLA: TPUs are not served");
  EXPECT_THAT(
      WhyNot("distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 2}"),
      HasSubstr("distributed_type: MEGATRON_LM: Megatron-LM is started by its own script"));
  EXPECT_EQ(WhyNot("base_job_name: b\ncompute_environment: AMAZON_SAGEMAKER\n"
                   "distributed_type: DATA_PARALLEL\nec2_instance_type: ml.p3\n"),
            "line 2: compute_environment: AMAZON_SAGEMAKER: SageMaker is not served");
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nnum_processes: 3\nnum_machines: 2\n"
                     "main_process_ip: n0"),
              HasSubstr("multiple of num_machines"));
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2"),
              HasSubstr("main_process_ip"));
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nnum_processes: x"),
              HasSubstr("line 2: num_processes: x: expected a number"));
  EXPECT_EQ(WhyNot("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: {a: 1}"),
            "line 3: fsdp_version: expected a plain value or a list of plain ones");
  EXPECT_EQ(WhyNot("distributed_type: FSDP\ngpu_ids: [[0]]"),
            "line 2: gpu_ids: expected a plain value or a list of plain ones");
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nmixed_precision: fp8"),
              HasSubstr("mixed_precision: fp8"));
  EXPECT_THAT(WhyNot("distributed_type: MULTI_GPU\nfp8_config:\n  backend: TE"),
              HasSubstr("line 2: fp8_config is not in this version"));
}

TEST(ParseFlags, TakesTheHostsOfAConfigurationFile) {
  const auto job_of = [](const std::string& text, std::vector<std::string> args) {
    const MachineView files = {
        .read = [text](const std::string& path) -> absl::StatusOr<std::string> {
          if (path != "a.yaml") return absl::InvalidArgumentError("No such file or directory");
          return text;
        }};
    args.insert(args.begin(), "--config_file=a.yaml");
    const auto flags = ParseFlags(args, {}, "fresh", SchedulerFindings{}, files);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return flags.ok() && std::holds_alternative<HostJob>(*flags) ? std::get<HostJob>(*flags)
                                                                 : HostJob{};
  };
  const HostJob job = job_of(
      "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
      "mpirun_config: {mpirun_hostfile: /h, mpirun_ccl: 1}\n",
      {"--max_restarts=1", "train.py"});
  EXPECT_EQ(job.host_file, "/h");
  EXPECT_EQ(job.choice.num_nodes, 1);
  EXPECT_THAT(job.options,
              ElementsAre("--max_restarts=1", "--nproc_per_node=2", "--omp_threads=none"));
  EXPECT_FALSE(job.passes_local_rank);
  EXPECT_THAT(job.config.environment, Contains(Pair("ACCELERATE_USE_CPU", "True")));
  EXPECT_THAT(job.config.notes, ElementsAre(HasSubstr("--config_file=a.yaml: line 4: mpirun_ccl")));
  const HostJob third = job_of(
      "distributed_type: DEEPSPEED\nnum_processes: 6\nnum_machines: 3\nmachine_rank: 2\n"
      "deepspeed_config: {deepspeed_hostfile: /h, deepspeed_multinode_launcher: nossh}\n",
      {"train.py"});
  EXPECT_EQ(third.node_rank, 2);
  EXPECT_EQ(third.choice.num_gpus, 2);
}

TEST(ParseFlags, TakesAConfigurationFileUnlessOptionsWin) {
  const MachineView files = {.read = [](const std::string& path) -> absl::StatusOr<std::string> {
    if (path != "a.yaml") return absl::InvalidArgumentError("No such file or directory");
    return ConfigOf("accelerate_multi_gpu.yaml");
  }};
  const auto parse = [&](std::vector<std::string> args) {
    return ParseFlags(args, {}, "fresh", SchedulerFindings{}, files);
  };
  const auto flags = parse({"--config_file=a.yaml", "train.py"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(std::get<RunFlags>(*flags).spec.nproc_per_node.count, 4);
  EXPECT_THAT(std::get<RunFlags>(*flags).environment, Contains(Key("ACCELERATE_MIXED_PRECISION")));
  const auto given = parse({"--config_file=a.yaml", "--nproc_per_node=2", "train.py"});
  EXPECT_EQ(std::get<RunFlags>(*given).spec.nproc_per_node.count, 2);
  EXPECT_THAT(parse({"--config_file=b.yaml", "train.py"}).status().message(),
              HasSubstr("--config_file=b.yaml: No such file"));
}

}  // namespace
}  // namespace muster::launcher
