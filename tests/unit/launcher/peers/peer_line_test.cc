#include "launcher/peers/peer_line.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using Args = std::vector<std::string>;

Args operator+(Args first, const Args& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

MachineView Machine(int num_gpus, const std::string& path = "", const std::string& text = "") {
  return {.read = [=](const std::string& asked) -> absl::StatusOr<std::string> {
            if (asked == path) return text;
            return absl::NotFoundError("there is no such file");
          },
          .directory = "/work",
          .count_gpus = [=] { return num_gpus; },
          .count_cores = [] { return 8; }};
}

PeerLine Accelerate(const Args& args, const MachineView& machine = Machine(0),
                    const EnvironmentMap& environment = {{"HOME", "/root"}}) {
  const auto line = ReadAccelerateLine(args, environment, machine);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.value_or(PeerLine{});
}

std::string WhyNotAccelerate(const Args& args) {
  return std::string(ReadAccelerateLine(args, {}, Machine(0)).status().message());
}

PeerLine DeepSpeed(const Args& args, bool has_usual_host_file = false) {
  const auto line = ReadDeepSpeedLine(args, has_usual_host_file);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.value_or(PeerLine{});
}

std::string WhyNotDeepSpeed(const Args& args) {
  return std::string(ReadDeepSpeedLine(args, false).status().message());
}

// torchrun replaces ${local_rank}, the peers themselves nothing.
TEST(PeerLines, LeaveTheArgumentsOfTheScriptAsTheyAre) {
  const Args script = {"t.py", "${local_rank}", "$$", "a$b"};
  EXPECT_THAT(DeepSpeed(Args{"--num_gpus=1"} + script).args,
              ElementsAre(::testing::_, "--", "t.py", "$${local_rank}", "$$$$", "a$$b"));
  EXPECT_THAT(Accelerate(script).args, ElementsAre("--nproc_per_node=1", "--rank_variables=off",
                                                   "--", "t.py", "$${local_rank}", "$$$$", "a$$b"));
  EXPECT_THAT(Accelerate(script, Machine(2)).args,
              ElementsAre("--nproc_per_node=2", "--", "t.py", "${local_rank}", "$$", "a$b"));
}

// Source: accelerate 1.15, commands/launch.py (_validate_launch_command): without a file its GPUs
// decide.
TEST(ReadAccelerateLine, StartsAWorkerForEachGpuWhereNothingIsSaid) {
  EXPECT_THAT(Accelerate({"--num_processes=2", "t.py"}).notes,
              ElementsAre(HasSubstr("though num_processes is 2")));
  EXPECT_THAT(Accelerate({"t.py", "--x"}, Machine(4)).args,
              ElementsAre("--nproc_per_node=4", "--", "t.py", "--x"));
  EXPECT_THAT(Accelerate({"t.py"}).args,
              ElementsAre("--nproc_per_node=1", "--rank_variables=off", "--", "t.py"));
}

// Without a file it counts GPUs, of which there are none.
TEST(ReadAccelerateLine, GivesAProcessOnCpusItsThreads) {
  const auto threads = [](const PeerLine& line) { return line.environment.at("OMP_NUM_THREADS"); };
  EXPECT_EQ(threads(Accelerate({"--cpu", "t.py"})), "1");
  EXPECT_EQ(threads(Accelerate({"--cpu", "t.py"}, Machine(2))), "4");
  EXPECT_EQ(threads(Accelerate({"--cpu", "--num_processes=1", "t.py"})), "8");
  EXPECT_EQ(threads(Accelerate({"--cpu", "--num_cpu_threads_per_process=3", "t.py"})), "3");
  const MachineView file = Machine(0, "c", "distributed_type: FSDP\nnum_processes: 2\n");
  const PeerLine over_a_file = Accelerate({"--config_file=c", "--cpu", "t.py"}, file);
  EXPECT_EQ(threads(over_a_file), "1");
  EXPECT_EQ(over_a_file.environment.at("ACCELERATE_USE_CPU"), "True");
}

TEST(ReadAccelerateLine, TakesTheFileAtItsUsualPlace) {
  const std::string text = "distributed_type: MULTI_GPU\nnum_processes: 3\n";
  const std::string path = "/root/.cache/huggingface/accelerate/default_config.yaml";
  EXPECT_THAT(Accelerate({"t.py"}, Machine(0, path, text)).args, Contains("--nproc_per_node=3"));
  EXPECT_THAT(Accelerate({"--cpu", "t.py"}, Machine(0, path, text)).args,
              Contains("--nproc_per_node=1"));
  EXPECT_THAT(Accelerate({"t.py"}, Machine(0, "/hf/accelerate/default_config.yaml", text),
                         {{"HF_HOME", "/hf"}})
                  .args,
              Contains("--nproc_per_node=3"));
}

TEST(ReadAccelerateLine, LetsOptionsWinOverTheFile) {
  const PeerLine line =
      Accelerate({"--config_file=c", "--num_processes", "2", "--fsdp_offload_params=true", "t.py"},
                 Machine(0, "c",
                         "distributed_type: FSDP\nnum_processes: 3\nfsdp_config:\n"
                         "  offload_params: false\n"));
  EXPECT_THAT(line.args, Contains("--nproc_per_node=2"));
  EXPECT_THAT(line.environment, Contains(Pair("FSDP_OFFLOAD_PARAMS", "true")));
}

TEST(ReadAccelerateLine, NamesTheFileThatItRefuses) {
  const auto why_not = [](Args args, const std::string& text) {
    const std::string usual = "/h/.cache/huggingface/accelerate/default_config.yaml";
    args.push_back("t.py");
    const bool is_named = args.front() == "--config_file=c";
    const MachineView machine = Machine(0, is_named ? "c" : usual, text);
    return std::string(ReadAccelerateLine(args, {{"HOME", "/h"}}, machine).status().message());
  };
  const std::string text = "distributed_type: FSDP\nnum_processes: 2\n";
  EXPECT_EQ(why_not({"--config_file=c"}, text + "fp8_config:\n  backend: TE\n"),
            "--config_file=c: line 3: fp8_config is not in this version");
  EXPECT_EQ(
      why_not({"--debug"}, text + "mixed_precision: fp9\n"),
      "Accelerate's default file=/h/.cache/huggingface/accelerate/default_config.yaml: line 3: "
      "mixed_precision: fp9: expected no, fp16 or bf16");
  EXPECT_EQ(why_not({"--mixed_precision=fp9"}, text + "mixed_precision: no\n"),
            "mixed_precision: fp9: expected no, fp16 or bf16");
  const PeerLine line = Accelerate({"--config_file=c", "--main_process_port=7", "t.py"},
                                   Machine(0, "c", text + "main_process_port: 99999\n"));
  EXPECT_THAT(line.sources,
              ElementsAre(Pair("nproc_per_node", "--config_file=c: line 2: num_processes")));
  EXPECT_THAT(
      Accelerate({"--config_file=c", "t.py"}, Machine(0, "c", text + "debug: no\ndebug: yes"))
          .notes,
      ElementsAre(HasSubstr("--config_file=c: line 4: the key 'debug' is there twice")));
}

TEST(ReadAccelerateLine, PlacesSeveralMachines) {
  EXPECT_THAT(
      Accelerate({"--multi_gpu", "--num_machines=2", "--num_processes=8", "--machine_rank=1",
                  "--main_process_ip=n0", "--main_process_port=5", "--max_restarts", "3", "-m",
                  "pkg.train"})
          .args,
      ElementsAre("--nproc_per_node=4", "--nnodes=2", "--node_rank=1", "--rdzv_backend=static",
                  "--rdzv_endpoint=n0:5", "--max_restarts=3", "--module", "--", "pkg.train"));
}

// Source: accelerate 1.15, utils/launch.py (prepare_deepspeed_cmd_env).
TEST(ReadAccelerateLine, ReachesTheHostsOfDeepSpeedsFile) {
  const Args two = {"--use_deepspeed", "--num_machines=2", "--num_processes=8",
                    "--deepspeed_hostfile=h"};
  EXPECT_THAT(
      Accelerate(two + Args{"--main_process_ip=n0", "--main_process_port=5", "t.py", "$$"}).args,
      ElementsAre("--hostfile=h", "--no_local_rank", "--num_gpus=4", "--master_addr=n0",
                  "--master_port=5", "--", "t.py", "$$$$"));
  EXPECT_THAT(Accelerate(two + Args{"--deepspeed_inclusion_filter=a:0@b:1", "t.py"}).args,
              ElementsAre("--hostfile=h", "--no_local_rank", "--include=a:0@b:1", "--", "t.py"));
  EXPECT_THAT(
      Accelerate(two + Args{"--deepspeed_exclusion_filter=a:0",
                            "--deepspeed_multinode_launcher=nossh", "--machine_rank=1", "t.py"})
          .args,
      ElementsAre("--hostfile=h", "--node_rank=1", "--exclude=a:0", "--", "t.py"));
  EXPECT_THAT(Accelerate(two + Args{"--deepspeed_multinode_launcher=standard",
                                    "--main_process_ip=n0", "t.py"})
                  .args,
              Contains("--nnodes=2"));
  EXPECT_THAT(
      Accelerate({"--use_deepspeed", "--num_processes=2", "--deepspeed_hostfile=h", "t.py"}).args,
      ElementsAre("--nproc_per_node=2", "--", "t.py"));
}

// Source: accelerate 1.15, utils/launch.py (prepare_simple_launcher_cmd_env).
TEST(ReadAccelerateLine, ReachesTheHostsOfMpirunsFile) {
  EXPECT_THAT(Accelerate({"--cpu", "--num_machines=2", "--num_processes=4", "--main_process_ip=n0",
                          "--main_process_port=5", "--mpirun_hostfile", "h", "t.py"})
                  .args,
              ElementsAre("--hostfile=h", "--no_local_rank", "--num_nodes=2", "--nproc_per_node=2",
                          "--master_addr=n0", "--master_port=5", "--", "t.py"));
}

TEST(ReadAccelerateLine, ReachesTheHostsOfMpirunsFileThatItsOwnFileNames) {
  const MachineView machine = Machine(0, "c",
                                      "distributed_type: MULTI_CPU\nnum_processes: 2\n"
                                      "mpirun_config:\n  mpirun_hostfile: h\n");
  EXPECT_THAT(Accelerate({"--config_file=c", "t.py", "$$"}, machine).args,
              ElementsAre("--hostfile=h", "--no_local_rank", "--num_nodes=1", "--nproc_per_node=2",
                          "--", "t.py", "$$$$"));
  EXPECT_THAT(Accelerate({"--config_file=c", "--mpirun_hostfile=g", "t.py"}, machine).args,
              Contains("--hostfile=g"));
}

TEST(ReadAccelerateLine, RefusesByNameWhatHasNoMeaningHere) {
  EXPECT_EQ(WhyNotAccelerate({"--tpu", "t.py"}), "--tpu: TPUs are not served");
  EXPECT_THAT(WhyNotAccelerate({"--megatron-lm-tp-degree", "2", "t.py"}),
              HasSubstr("--megatron_lm_tp_degree: Megatron-LM is started by its own script"));
  EXPECT_THAT(WhyNotAccelerate({"--use_deepspeed", "--num_machines=2", "--num_processes=2",
                                "--deepspeed_hostfile=h", "--deepspeed_multinode_launcher=openmpi",
                                "t.py"}),
              HasSubstr("deepspeed_multinode_launcher: openmpi: expected pdsh"));
  EXPECT_THAT(WhyNotAccelerate({"--cpu", "--use_fsdp", "t.py"}), HasSubstr("exclude each other"));
  EXPECT_THAT(WhyNotAccelerate({"--mixed_precision=fp8", "t.py"}), HasSubstr("fp8"));
  EXPECT_THAT(WhyNotAccelerate({"--config_file=none", "t.py"}), HasSubstr("--config_file=none"));
  EXPECT_THAT(WhyNotAccelerate({}), HasSubstr("no script was given"));
  EXPECT_THAT(WhyNotAccelerate({"--multi_gpu", "t.py"}), HasSubstr("give --num_processes=N"));
}

TEST(ReadDeepSpeedLine, TakesEveryGpuThatIsSeenWhereNothingIsSaid) {
  EXPECT_THAT(DeepSpeed({"t.py", "-x"}).args,
              ElementsAre("--include=localhost", "--", "t.py", "-x"));
  EXPECT_THAT(DeepSpeed({"t.py"}, true).args,
              ElementsAre("--hostfile=/job/hostfile", "--", "t.py"));
  EXPECT_THAT(DeepSpeed({"--num_accelerators=2", "t.py"}).args,
              ElementsAre("--num_gpus=2", "--", "t.py"));
}

TEST(ReadDeepSpeedLine, TakesWhatHasAMeaningHere) {
  EXPECT_THAT(
      DeepSpeed({"-H", "h", "-i", "a:0", "--master_port", "5", "--module", "--launcher=PDSH",
                 "--force_multi", "--no_ssh_check", "pkg"})
          .args,
      ElementsAre("--hostfile=h", "--include=a:0", "--master_port=5", "--module", "--", "pkg"));
  EXPECT_THAT(DeepSpeed({"--num_gpus=2", "--enable_each_rank_log", "logs", "-q", "t.py"}).args,
              ElementsAre("--num_gpus=2", "--log_dir=logs", "--redirects=3", "--log_level=error",
                          "--", "t.py"));
  EXPECT_THAT(
      DeepSpeed({"--num_gpus=2", "--bind_cores_to_rank", "t.py"}).args,
      ElementsAre("--num_gpus=2", "--numa_binding=exclusive", "--omp_threads=auto", "--", "t.py"));
  EXPECT_TRUE(DeepSpeed({"--save_pid", "t.py"}).saves_pid);
  EXPECT_THAT(DeepSpeed({"--venv_script=/v/bin/activate", "t.py"}).environment,
              ElementsAre(Pair("PYTHON_EXEC", "/v/bin/python"), Pair("VIRTUAL_ENV", "/v")));
}

TEST(ReadDeepSpeedLine, TakesTheLineThatEachHostIsGiven) {
  EXPECT_THAT(DeepSpeed({"-H", "h", "--no_ssh", "--node_rank=1", "--master_addr=a", "t.py"}).args,
              ElementsAre("--hostfile=h", "--master_addr=a", "--node_rank=1", "--", "t.py"));
  EXPECT_THAT(DeepSpeed({"--no_ssh", "--node_rank=0", "t.py"}).args,
              ElementsAre("--include=localhost", "--", "t.py"));
}

TEST(ReadDeepSpeedLine, TakesNodesThatComeAndGo) {
  EXPECT_THAT(DeepSpeed({"--elastic_training", "--max_elastic_nodes=4", "--master_addr=n1",
                         "--num_gpus=2", "t.py"})
                  .args,
              ElementsAre("--num_gpus=2", "--nnodes=1:4", "--max_restarts=100",
                          "--rdzv_backend=c10d", "--rdzv_endpoint=n1:29500", "--", "t.py"));
  EXPECT_THAT(DeepSpeed({"--elastic_training", "--min_elastic_nodes=2", "--max_elastic_nodes=3",
                         "--master_addr=n1", "--master_port=5", "--include=localhost:1", "t.py"})
                  .args,
              ElementsAre("--include=localhost:1", "--nnodes=2:3", "--max_restarts=100",
                          "--rdzv_backend=c10d", "--rdzv_endpoint=n1:5", "--", "t.py"));
  EXPECT_THAT(WhyNotDeepSpeed({"--elastic_training", "--hostfile=h", "t.py"}),
              HasSubstr("run this line on each node"));
  EXPECT_THAT(WhyNotDeepSpeed({"--elastic_training", "--master_addr=n1", "t.py"}),
              HasSubstr("--max_elastic_nodes=N"));
  EXPECT_THAT(WhyNotDeepSpeed({"--min_elastic_nodes=2", "t.py"}),
              HasSubstr("belongs to --elastic_training"));
}

TEST(ReadDeepSpeedLine, RefusesByNameWhatHasNoMeaningHere) {
  EXPECT_THAT(WhyNotDeepSpeed({"--launcher=slurm", "t.py"}), HasSubstr("srun --ntasks-per-node=1"));
  EXPECT_THAT(WhyNotDeepSpeed({"--launcher=OpenMPI", "t.py"}), HasSubstr("mpirun -npernode 1"));
  EXPECT_THAT(WhyNotDeepSpeed({"--launcher_args=-x", "t.py"}), HasSubstr("pdsh is not used"));
  EXPECT_THAT(WhyNotDeepSpeed({"--venv_script=a", "t.py"}), HasSubstr("DIR/bin/activate"));
  EXPECT_THAT(WhyNotDeepSpeed({"--no_ssh", "-H", "h", "t.py"}), HasSubstr("--node_rank=R"));
  EXPECT_THAT(WhyNotDeepSpeed({"-H", "h", "--node_rank=1", "t.py"}), HasSubstr("--no_ssh"));
  EXPECT_THAT(WhyNotDeepSpeed({"--no_ssh", "--node_rank=1", "t.py"}),
              HasSubstr("without a host file"));
  EXPECT_THAT(WhyNotDeepSpeed({"--bind_core_list=1", "t.py"}), HasSubstr("taskset"));
  EXPECT_THAT(WhyNotDeepSpeed({"--autotuning=run", "t.py"}), HasSubstr("autotuner"));
  EXPECT_THAT(WhyNotDeepSpeed({"--force_multi", "t.py"}), HasSubstr("--hostfile=FILE"));
  EXPECT_THAT(WhyNotDeepSpeed({}), HasSubstr("no script was given"));
}

// The line that a line of Python's becomes, and PYTHON_EXEC.
std::pair<Args, std::string> Module(Args args, EnvironmentMap environment = {}) {
  TakeModuleLine(args, environment);
  return {args, VariableOrEmpty(environment, "PYTHON_EXEC")};
}

TEST(TakeModuleLine, BecomesTheLaunchersOwnLineInThatPython) {
  EXPECT_THAT(Module({"python", "-m", "torch.distributed.run", "--nnodes=1", "t.py", "-m"}),
              Pair(ElementsAre("run", "--nnodes=1", "t.py", "-m"), "python"));
  EXPECT_THAT(Module({"/v/bin/python3.11", "-u", "-m", "accelerate.commands.launch", "t.py"}),
              Pair(ElementsAre("accelerate", "launch", "t.py"), "/v/bin/python3.11"));
  EXPECT_THAT(
      Module({"python3", "-m", "deepspeed.launcher.runner", "t.py"}, {{"PYTHON_EXEC", "/other"}}),
      Pair(ElementsAre("deepspeed", "t.py"), "/other"));
}

TEST(TakeModuleLine, GivesTheLocalRankAsTheOlderModuleDoes) {
  EXPECT_THAT(Module({"python", "-m", "torch.distributed.launch", "--nnodes", "1", "t.py", "-x"}),
              Pair(ElementsAre("run", "--nnodes", "1", "t.py", "--local-rank=${local_rank}", "-x"),
                   "python"));
  EXPECT_THAT(Module({"python", "-m", "torch.distributed.launch", "--use-env", "t.py"}).first,
              ElementsAre("run", "--use-env", "t.py"));
}

TEST(TakeModuleLine, LeavesOtherLinesAlone) {
  for (const Args& line :
       {Args{"python"}, Args{"python", "-m"}, Args{"python", "t.py"}, Args{"python", "-m", "pkg"},
        Args{"python", "-c", "-m", "torch"}, Args{"pythonic", "-m", "torch.distributed.run"},
        Args{"-m", "torch.distributed.run"}}) {
    EXPECT_THAT(Module(line), Pair(line, ""));
  }
}

TEST(MusterLineForInstructLab, NamesTheTrainerAndWhatIsItsOwn) {
  EXPECT_EQ(MusterLineForInstructLab({"--distributed", "--num-gpus", "4", "--nnodes=2",
                                      "--rdzv-endpoint", "n1:3", "--model-path", "my model"})
                .value_or(""),
            "muster run --nproc_per_node=4 --nnodes=2 --rdzv_endpoint=n1:3 -m "
            "instructlab.training.main_ds --data_path=DATA/data.jsonl "
            "'--model_name_or_path=my model'");
  EXPECT_THAT(MusterLineForInstructLab({}).value_or(""), HasSubstr("--nproc_per_node=gpu"));
  EXPECT_FALSE(MusterLineForInstructLab({"--gpus"}).ok());
}

}  // namespace
}  // namespace muster::launcher
