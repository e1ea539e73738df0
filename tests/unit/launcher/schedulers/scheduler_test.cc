#include "launcher/schedulers/scheduler.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/line/flags.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Args = std::vector<std::string>;

// What srun -N4 --ntasks-per-node=1 of Slurm 22.05 gave the second node.
EnvironmentMap SlurmStep() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_NODELIST", "n[8-11]"},
          {"SLURM_STEP_NODELIST", "n[8-11]"},
          {"SLURM_STEP_NUM_NODES", "4"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x4)"},
          {"SLURM_NODEID", "1"},
          {"SLURM_PROCID", "1"},
          {"SLURM_LOCALID", "0"},
          {"SLURMD_NODENAME", "n9"}};
}

// Eight tasks on each of two nodes.
EnvironmentMap SlurmTasks(int node, int local_task) {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_NODELIST", "a,b"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "16"},
          {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
          {"SLURM_NODEID", absl::StrCat(node)},
          {"SLURM_PROCID", absl::StrCat(8 * node + local_task)},
          {"SLURM_LOCALID", absl::StrCat(local_task)},
          {"SLURMD_NODENAME", node == 0 ? "a" : "b"}};
}

EnvironmentMap With(EnvironmentMap environment, const EnvironmentMap& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

absl::StatusOr<SchedulerFindings> Find(const EnvironmentMap& environment,
                                       const std::string& host_name = "here",
                                       const std::string& file = "") {
  return FindScheduler({.environment = environment,
                        .host_name = host_name,
                        .read_file = [&](const std::string&) { return file; }});
}

SchedulerFindings MustFind(const EnvironmentMap& environment, const std::string& host_name = "here",
                           const std::string& file = "") {
  const absl::StatusOr<SchedulerFindings> found = Find(environment, host_name, file);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(SchedulerFindings{});
}

std::string ValueOf(const SchedulerFindings& found, const std::string& option) {
  const TakenOption* taken = found.Find(option);
  return taken == nullptr ? "" : taken->value;
}

RunFlags Parse(Args args, const EnvironmentMap& environment, const std::string& host_name = "here",
               const std::string& file = "") {
  args.push_back("train.py");
  auto flags = ParseFlags(args, environment, "fresh-id", Find(environment, host_name, file));
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? std::get<RunFlags>(*flags) : RunFlags{};
}

std::string Refusal(Args args, const EnvironmentMap& environment,
                    const std::string& host_name = "here", const std::string& file = "") {
  args.push_back("train.py");
  const absl::Status status =
      ParseFlags(args, environment, "fresh-id", Find(environment, host_name, file)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(FindScheduler, FindsNothingInAnOrdinaryEnvironment) {
  const SchedulerFindings found = MustFind({{"PATH", "/bin"}, {"SLURM_CONF", "/etc/slurm.conf"}});
  EXPECT_EQ(found.scheduler, "");
  EXPECT_THAT(found.options, IsEmpty());
  EXPECT_THAT(found.notes, IsEmpty());
}

TEST(FindScheduler, TakesAStepOfSlurmFromItsVariables) {
  const SchedulerFindings found = MustFind(SlurmStep(), "n9");
  EXPECT_EQ(found.job, "Slurm job 17, step 0");
  EXPECT_THAT(found.options,
              ElementsAre(TakenOption{"nnodes", "4", "SLURM_STEP_NUM_NODES"},
                          TakenOption{"node_rank", "1", "SLURM_PROCID"},
                          TakenOption{"rdzv_id", "slurm-17.0", "SLURM_JOB_ID, SLURM_STEP_ID"},
                          TakenOption{"rdzv_endpoint", "n8:61457", "SLURM_STEP_NODELIST"},
                          TakenOption{"shutdown_timeout", "25",
                                      "Slurm's KillWait, 30 s unless the site changed it"}));
  EXPECT_THAT(found.nodes, ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_EQ(found.node_name, "n9");
}

// Source: slurm.conf(5), KillWait.
TEST(FindScheduler, BoundsTheGraceByTheSitesKillWait) {
  const auto grace = [](const std::string& file) {
    return MustFind(SlurmStep(), "here", file).Find("shutdown_timeout")->value;
  };
  EXPECT_EQ(grace("ClusterName=c\nKillWait=12\n"), "7");
  EXPECT_EQ(grace("killwait = 60 # minutes would be too long\n"), "30");
  EXPECT_EQ(grace("KillWait=4"), "2");
  EXPECT_EQ(grace("#KillWait=4\nKillWaitX=9\nKillWait=x\n"), "25");
  EXPECT_EQ(MustFind(SlurmStep(), "here", "KillWait=12\n").Find("shutdown_timeout")->source,
            "KillWait=12 in /etc/slurm/slurm.conf");
  EXPECT_EQ(
      MustFind(With(SlurmStep(), {{"SLURM_CONF", "/site/slurm.conf"}}), "here", "KillWait=12\n")
          .Find("shutdown_timeout")
          ->source,
      "KillWait=12 in /site/slurm.conf");
}

TEST(ParseFlags, WarnsOfAGraceThatSlurmDoesNotWaitFor) {
  EXPECT_THAT(
      Parse({"--shutdown_timeout=60"}, SlurmStep()).warnings,
      Contains(HasSubstr("--shutdown_timeout=60 is not shorter than Slurm's KillWait, 30 s")));
  EXPECT_THAT(Parse({"--shutdown_timeout=20"}, SlurmStep()).warnings, IsEmpty());
}

absl::StatusOr<std::variant<RunFlags, PrintAndExit, HostJob>> ParseInAStaleShell(
    Args args, const EnvironmentMap& environment) {
  args.push_back("train.py");
  return ParseFlags(args, environment, "fresh-id",
                    FindScheduler({.environment = environment,
                                   .host_name = "here",
                                   .read_file = [](const std::string&) { return ""; },
                                   .is_step_alive =
                                       [](int64_t job, int64_t step) {
                                         return std::optional<bool>(job != 17 || step > 2);
                                       }}));
}

TEST(ParseFlags, WaitsForNoNodesOfAStepThatIsOver) {
  const auto refused = ParseInAStaleShell({}, SlurmStep());
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("the variables of Slurm job 17, step 0 are left over here"),
                    HasSubstr("--scheduler=none ignores them"), HasSubstr("its 4 nodes")));
  EXPECT_FALSE(ParseInAStaleShell({"--rdzv_endpoint=a:1"}, SlurmStep()).ok());
  EXPECT_FALSE(ParseInAStaleShell({}, SlurmTasks(1, 3)).ok());
  for (const Args& args : {Args{"--scheduler=none"}, Args{"--standalone"}, Args{"--nnodes=1"},
                           Args{"--nnodes=2", "--node_rank=0", "--master_addr=a"}}) {
    const auto flags = ParseInAStaleShell(args, SlurmStep());
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(std::get<RunFlags>(*flags).placement.start_line, "") << args.front();
  }
  EXPECT_TRUE(ParseInAStaleShell({}, With(SlurmStep(), {{"SLURM_JOB_ID", "18"}})).ok());
}

TEST(ParseFlags, RunsHereWithAWordWhereAStepOfOneNodeIsOver) {
  const auto flags = ParseInAStaleShell(
      {}, With(SlurmTasks(0, 0), {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "a"}}));
  ASSERT_TRUE(flags.ok()) << flags.status();
  const RunFlags& run = std::get<RunFlags>(*flags);
  EXPECT_THAT(run.warnings, ElementsAre(HasSubstr("Slurm job 17, step 2 are left over here")));
  EXPECT_EQ(run.placement.tasks.num_local, 1);
  EXPECT_EQ(run.spec.nproc_per_node, RunFlags{}.spec.nproc_per_node);
}

TEST(ParseFlags, SaysThatSlurmHasAnotherNameForThisNode) {
  EXPECT_THAT(Parse({}, SlurmStep(), "vm").placement.start_line,
              testing::StartsWith("Slurm job 17, step 0, node n9 (host name vm): "));
  EXPECT_THAT(Parse({}, SlurmStep(), "N9.site").placement.start_line,
              testing::StartsWith("Slurm job 17, step 0: "));
}

TEST(ParseFlags, KnowsWhatNamedTheMeetingPlace) {
  EXPECT_EQ(Parse({}, SlurmStep()).placement.place_from, "SLURM_STEP_NODELIST");
  EXPECT_EQ(Parse({"--rdzv_endpoint=a:1"}, SlurmStep()).placement.place_from, "");
}

TEST(ParseFlags, CountsTheCpusOfANodesTasks) {
  const EnvironmentMap cpus = {{"SLURM_CPUS_PER_TASK", "6"}};
  EXPECT_EQ(Parse({}, With(SlurmStep(), cpus)).placement.num_cpus, 6);
  EXPECT_EQ(Parse({}, With(SlurmTasks(1, 0), cpus)).placement.num_cpus, 48);
  EXPECT_EQ(Parse({"--nnodes=1"}, With(SlurmTasks(1, 0), cpus)).placement.num_cpus, 6)
      << "each task is a job of its own";
  EXPECT_EQ(Parse({}, SlurmStep()).placement.num_cpus, 0);
  EXPECT_EQ(Parse({"--scheduler=none"}, With(SlurmStep(), cpus)).placement.num_cpus, 0);
}

TEST(FindScheduler, TakesTheStepsListAndNotTheJobs) {
  const SchedulerFindings found = MustFind(With(
      SlurmStep(),
      {{"SLURM_STEP_NODELIST", "n[9-10]"}, {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_PROCID", "0"}}));
  EXPECT_EQ(ValueOf(found, "nnodes"), "2");
  EXPECT_EQ(ValueOf(found, "rdzv_endpoint"), "n9:61457");
}

TEST(FindScheduler, NumbersNodesAsSlurmNumbersTheirTasks) {
  // --distribution=arbitrary: the first node of the list need not hold task 0.
  EXPECT_EQ(ValueOf(MustFind(With(SlurmStep(), {{"SLURM_PROCID", "3"}})), "node_rank"), "3");
  EXPECT_EQ(ValueOf(MustFind(SlurmTasks(1, 3)), "node_rank"), "1");
}

TEST(FindScheduler, TellsJobsStepsElementsAndRequeuesApart) {
  const auto id = [](const EnvironmentMap& changes) {
    return ValueOf(MustFind(With(SlurmStep(), changes)), "rdzv_id");
  };
  EXPECT_EQ(id({{"SLURM_STEP_ID", "1"}}), "slurm-17.1");
  EXPECT_EQ(id({{"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "0"}}), "slurm-12_0.0");
  EXPECT_EQ(id({{"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "3"}}), "slurm-12_3.0");
  EXPECT_EQ(id({{"SLURM_RESTART_COUNT", "2"}}), "slurm-17.0.r2");
}

TEST(FindScheduler, GivesNeighboursDifferentPorts) {
  EXPECT_NE(PortOfSlurmStep(17, 0), PortOfSlurmStep(18, 0));
  EXPECT_NE(PortOfSlurmStep(17, 0), PortOfSlurmStep(17, 1));
  for (const int64_t job : {int64_t{0}, int64_t{4095}, int64_t{1} << 40}) {
    EXPECT_GE(PortOfSlurmStep(job, 7), 61440);
    EXPECT_LE(PortOfSlurmStep(job, 7), 65535);
  }
}

TEST(FindScheduler, TakesTheGpusThatTheTaskSees) {
  EXPECT_EQ(ValueOf(MustFind(With(SlurmStep(),
                                  {{"SLURM_GPUS_ON_NODE", "2"}, {"CUDA_VISIBLE_DEVICES", "0,1"}})),
                    "nproc_per_node"),
            "2");
  EXPECT_EQ(ValueOf(MustFind(With(SlurmStep(), {{"SLURM_GPUS_ON_NODE", "8"}})), "nproc_per_node"),
            "8");
  EXPECT_EQ(ValueOf(MustFind(With(SlurmStep(), {{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}})),
                    "nproc_per_node"),
            "");
  const SchedulerFindings narrowed =
      MustFind(With(SlurmStep(), {{"SLURM_GPUS_ON_NODE", "2"},
                                  {"CUDA_VISIBLE_DEVICES", "0"},
                                  {"SLURMD_TRES_BIND", "gpu:per_task:1"}}));
  EXPECT_EQ(ValueOf(narrowed, "nproc_per_node"), "1");
  EXPECT_THAT(narrowed.notes, ElementsAre(HasSubstr("SLURMD_TRES_BIND=gpu:per_task:1")));
}

TEST(FindScheduler, IsNotAskedInAWorkerOfAJobOfOurs) {
  EXPECT_EQ(MustFind(With(SlurmStep(), {{"MUSTER_INSTANCE", "1"}})).scheduler, "");
}

TEST(FindScheduler, LeavesABatchShellAloneButSaysHowAllNodesAreUsed) {
  EnvironmentMap shell = {
      {"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NUM_NODES", "4"}, {"SLURM_PROCID", "0"}};
  const SchedulerFindings found = MustFind(shell);
  EXPECT_EQ(found.scheduler, "");
  EXPECT_THAT(found.notes, ElementsAre(HasSubstr("srun --ntasks-per-node=1 muster")));
  EXPECT_THAT(MustFind(With(SlurmStep(), {{"SLURM_STEP_ID", "4294967290"}})).scheduler, "");
  EXPECT_THAT(Parse({}, shell).warnings, ElementsAre(HasSubstr("srun")));
  EXPECT_THAT(Parse({"--nnodes=2", "--rdzv_endpoint=h:1", "--node_rank=0"}, shell).warnings,
              IsEmpty());
}

TEST(FindScheduler, NamesTheVariableThatItCannotRead) {
  const absl::Status list = Find(With(SlurmStep(), {{"SLURM_STEP_NODELIST", "n[8-"}})).status();
  EXPECT_THAT(list.message(), HasSubstr("SLURM_STEP_NODELIST=n[8-: expected"));
  EXPECT_THAT(list.message(), HasSubstr("--scheduler=none"));
  EXPECT_THAT(Find(With(SlurmStep(), {{"SLURM_PROCID", "x"}})).status().message(),
              HasSubstr("SLURM_PROCID=x"));
  EXPECT_THAT(Find(With(SlurmStep(), {{"SLURM_PROCID", "4"}})).status().message(),
              HasSubstr("expected 0 to 3"));
}

TEST(ParseFlags, NeedsNoOptionsUnderSrun) {
  const RunFlags flags = Parse({}, SlurmStep());
  EXPECT_EQ(flags.spec.min_nodes, 4);
  EXPECT_EQ(flags.spec.max_nodes, 4);
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kStatic);
  EXPECT_EQ(ToString(flags.spec.endpoint), "n8:61457");
  EXPECT_EQ(flags.spec.run_id, "slurm-17.0");
  EXPECT_EQ(flags.spec.shutdown_timeout, absl::Seconds(25));
  EXPECT_EQ(flags.spec.logs.console, ConsoleMode::kPrefix);
  EXPECT_EQ(flags.placement.node_name, "n9");
  EXPECT_EQ(flags.placement.tasks.num_local, 1);
  EXPECT_TRUE(flags.placement.shares_console);
  EXPECT_THAT(flags.placement.expected_nodes, ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(flags.placement.start_line, HasSubstr("Slurm job 17, step 0"));
  EXPECT_THAT(flags.placement.start_line, HasSubstr("nnodes=4 (SLURM_STEP_NUM_NODES)"));
}

TEST(ParseFlags, LetsOptionsWinOverTheScheduler) {
  const RunFlags flags =
      Parse({"--rdzv_id=mine", "--master_port=7000", "--shutdown_timeout=3", "--console=raw",
             "--nproc_per_node=2"},
            With(SlurmStep(), {{"SLURM_GPUS_ON_NODE", "8"}, {"PET_NODE_RANK", "2"}}));
  EXPECT_EQ(flags.spec.run_id, "mine");
  EXPECT_EQ(ToString(flags.spec.endpoint), "n8:7000");
  EXPECT_EQ(flags.spec.shutdown_timeout, absl::Seconds(3));
  EXPECT_EQ(flags.spec.logs.console, ConsoleMode::kRaw);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 2);
  EXPECT_EQ(flags.spec.node_rank, 2);
  EXPECT_THAT(flags.placement.start_line, Not(HasSubstr("rdzv_id")));
}

TEST(ParseFlags, MakesAnElasticJobOfARangeOfNodes) {
  const RunFlags flags = Parse({"--nnodes=2:4"}, SlurmStep());
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(flags.spec.min_nodes, 2);
  EXPECT_EQ(flags.spec.node_rank, 1);
  // A spare: nobody knows yet whether this node has a place.
  const RunFlags spare = Parse({"--nnodes=3"}, SlurmStep());
  EXPECT_EQ(spare.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(spare.spec.node_rank, std::nullopt);
  EXPECT_THAT(Refusal({"--nnodes=8"}, SlurmStep(), "n9"),
              HasSubstr("--nnodes=8: Slurm job 17, step 0 has 4 nodes"));
}

TEST(ParseFlags, LeavesAJobScriptOfTorchrunAsItIs) {
  const RunFlags flags = Parse({"--nnodes=2", "--node_rank=1", "--rdzv_endpoint=head:29500"},
                               With(SlurmTasks(1, 3), {{"SLURM_GPUS_ON_NODE", "8"}}));
  EXPECT_EQ(flags.spec.run_id, "none");
  EXPECT_EQ(flags.spec.nproc_per_node.count, 1);
  EXPECT_EQ(flags.spec.logs.console, ConsoleMode::kAuto);
  EXPECT_EQ(flags.placement.tasks.num_local, 1);
  // The number of nodes alone is missing there: without it each would be a job of its own.
  const RunFlags filled = Parse({"--rdzv_backend=c10d", "--rdzv_endpoint=head:29500"}, SlurmStep());
  EXPECT_EQ(filled.spec.max_nodes, 4);
  EXPECT_EQ(filled.spec.run_id, "none");
}

TEST(ParseFlags, SaysThatEachProcessBecomesAJobWhereThatWasAskedFor) {
  for (const char* option : {"--standalone", "--nnodes=1"}) {
    const RunFlags flags = Parse({option}, SlurmStep());
    EXPECT_EQ(flags.spec.max_nodes, 1) << option;
    EXPECT_EQ(flags.spec.run_id, "fresh-id") << option;
    EXPECT_THAT(flags.warnings, Contains(HasSubstr("each of the 4 processes"))) << option;
  }
}

TEST(ParseFlags, MakesTheFirstTaskOfANodeItsAgent) {
  const RunFlags flags = Parse({}, SlurmTasks(1, 3));
  EXPECT_EQ(flags.placement.tasks.local, 3);
  EXPECT_EQ(flags.placement.tasks.num_local, 8);
  EXPECT_EQ(flags.placement.tasks_of, "slurm-17.2");
  EXPECT_EQ(flags.spec.nproc_per_node.count, 8);
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.max_nodes, 2);
}

TEST(ParseFlags, RefusesAnAgentThatWouldNotSeeTheOthersGpus) {
  const EnvironmentMap bound =
      With(SlurmTasks(0, 0), {{"SLURM_GPUS_ON_NODE", "8"}, {"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_THAT(Refusal({}, bound), HasSubstr("--gpus-per-node=N"));
  EXPECT_EQ(Parse({"--nproc_per_node=1"}, bound).spec.nproc_per_node.count, 1);
}

TEST(ParseFlags, ReadsNoSchedulerWhereToldSo) {
  const EnvironmentMap broken = With(SlurmStep(), {{"SLURM_STEP_NODELIST", "["}});
  EXPECT_EQ(Parse({"--scheduler=none"}, broken).spec.max_nodes, 1);
  EXPECT_EQ(Parse({}, With(broken, {{"MUSTER_SCHEDULER", "none"}})).spec.max_nodes, 1);
  EXPECT_THAT(Refusal({}, broken), HasSubstr("SLURM_STEP_NODELIST"));
  EXPECT_THAT(Refusal({"--scheduler=sge"}, {}), HasSubstr("--scheduler=sge"));
}

// mpirun -np 4 on two nodes, as Open MPI 4.1 shows it to task 2.
EnvironmentMap OpenMpi() {
  return {{"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_RANK", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"OMPI_MCA_orte_num_nodes", "2"},
          {"PMIX_NAMESPACE", "791543809"},
          {"OMPI_MCA_orte_hnp_uri",
           "791543808.0;tcp://10.0.0.1,127.0.0.1:45085;tcp6://[fd00::2]:33901"}};
}

TEST(ParseFlags, TakesTheTasksOfMpirun) {
  const RunFlags flags = Parse({}, OpenMpi());
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 2);
  EXPECT_EQ(flags.spec.endpoint.host, "10.0.0.1");
  EXPECT_EQ(flags.spec.run_id, "mpi-791543809");
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(flags.placement.tasks.num_local, 2);
}

TEST(ParseFlags, MeetsOnTheFirstNodeOfTheJobAroundMpirun) {
  const RunFlags flags =
      Parse({}, With(With(SlurmStep(), OpenMpi()), {{"SLURM_JOB_NODELIST", "n[8-9]"}}));
  EXPECT_EQ(flags.spec.endpoint.host, "n8");
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(Parse({}, With(OpenMpi(), {{"PBS_NODEFILE", "/f"}}), "x", "p1\np1\np2\np2\n")
                .spec.endpoint.host,
            "p1");
}

TEST(ParseFlags, AsksForTheMeetingPlaceThatHydraDoesNotTell) {
  const EnvironmentMap hydra = {
      {"PMI_SIZE", "4"}, {"PMI_RANK", "0"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "0"}};
  EXPECT_THAT(Refusal({}, hydra), HasSubstr("--rdzv_endpoint=HOST"));
  EXPECT_EQ(Parse({"--rdzv_endpoint=h:1", "--rdzv_backend=c10d"}, hydra).spec.max_nodes, 2);
  const RunFlags one = Parse({}, With(hydra, {{"MPI_LOCALNRANKS", "4"}}));
  EXPECT_EQ(one.spec.max_nodes, 1);
  EXPECT_EQ(one.spec.nproc_per_node.count, 4);
  EXPECT_THAT(Refusal({}, With(hydra, {{"MPI_LOCALNRANKS", "3"}})), HasSubstr("on how many nodes"));
}

// The option is the one that the refusal and the guide name, or one that the scheduler leaves open.
TEST(ParseFlags, TakesTheMeetingPlaceOfTasksWhoseNodesNobodyNumbers) {
  const EnvironmentMap hydra = {
      {"PMI_SIZE", "4"}, {"PMI_RANK", "2"}, {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}};
  for (const Args& place : {Args{"--rdzv_endpoint=h"}, Args{"--master_addr=h"},
                            Args{"--rdzv_endpoint=h", "--nnodes=2"}}) {
    const RunFlags flags = Parse(place, hydra);
    EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d) << place.back();
    EXPECT_EQ(flags.spec.endpoint, (Endpoint{"h", 29400})) << place.back();
    EXPECT_EQ(flags.spec.max_nodes, 2) << place.back();
    EXPECT_EQ(flags.spec.nproc_per_node.count, 2) << place.back();
    EXPECT_EQ(flags.placement.tasks.local, 1) << place.back();
    EXPECT_EQ(flags.placement.tasks.num_local, 2) << place.back();
  }
  const RunFlags uneven =
      Parse({"--rdzv_endpoint=h", "--nnodes=2"}, With(hydra, {{"MPI_LOCALNRANKS", "3"}}));
  EXPECT_EQ(uneven.spec.nproc_per_node.count, 3);
  const RunFlags numbered = Parse({"--rdzv_endpoint=h:1", "--rdzv_conf=rank=1"}, hydra);
  EXPECT_EQ(numbered.spec.backend, RendezvousBackend::kStatic);
  EXPECT_EQ(numbered.spec.node_rank, 1);
  // Each task a node, as a job script for torchrun may say.
  const RunFlags nodes = Parse({"--rdzv_endpoint=h:1", "--nnodes=4"}, hydra);
  EXPECT_EQ(nodes.placement.tasks.num_local, 1);
  EXPECT_EQ(nodes.spec.nproc_per_node.count, 1);
}

// Two of a node's tasks would take its first GPU.
TEST(ParseFlags, RefusesTasksThatAreNotToldTheirPlaceOnTheNode) {
  const EnvironmentMap pmi = {{"PMI_SIZE", "4"}, {"PMI_RANK", "1"}};
  EXPECT_THAT(Refusal({}, pmi),
              AllOf(HasSubstr("4 tasks (PMI_SIZE)"),
                    HasSubstr("MPI_LOCALRANKID, PMI_LOCAL_RANK, MPI_LOCALNRANKS, PMI_LOCAL_SIZE"),
                    HasSubstr("--nnodes=4"), HasSubstr("--rdzv_endpoint=HOST")));
  EXPECT_THAT(Refusal({"--rdzv_endpoint=h"}, pmi), HasSubstr("PMI_LOCAL_RANK"));
  EXPECT_THAT(Refusal({}, With(pmi, {{"PMI_LOCAL_RANK", "1"}})), HasSubstr("PMI_LOCAL_SIZE"));
  EXPECT_THAT(Refusal({}, With(pmi, {{"PMI_LOCAL_RANK", "4"}, {"PMI_LOCAL_SIZE", "4"}})),
              HasSubstr("PMI_LOCAL_RANK=4"));
  const RunFlags told = Parse({}, With(pmi, {{"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}}));
  EXPECT_EQ(told.placement.tasks.local, 1);
  EXPECT_EQ(told.spec.nproc_per_node.count, 4);
  EXPECT_EQ(Parse({"--rdzv_endpoint=h", "--nnodes=4"}, pmi).spec.max_nodes, 4);
  EXPECT_EQ(Parse({}, With(pmi, {{"PMI_SIZE", "1"}})).spec.max_nodes, 1);
}

// Source: the mpiexec of HPE's PALS, as run under PBS.
TEST(ParseFlags, TakesTheTasksOfPals) {
  const EnvironmentMap pals = {{"PALS_APID", "6c1f0a52-4b0e"},
                               {"PALS_RANKID", "5"},
                               {"PALS_NODEID", "1"},
                               {"PALS_LOCAL_RANKID", "1"},
                               {"PALS_LOCAL_SIZE", "4"},
                               {"PMI_RANK", "5"},
                               {"PMI_SIZE", "8"},
                               {"PBS_JOBID", "4711.pbs"},
                               {"PBS_NODEFILE", "/f"}};
  const RunFlags flags = Parse({}, pals, "x2", "x1\nx2\n");
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kStatic);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 4);
  EXPECT_EQ(flags.spec.endpoint.host, "x1");
  EXPECT_EQ(flags.spec.run_id, "pals-6c1f0a52-4b0e");
  EXPECT_EQ(flags.placement.tasks.local, 1);
  EXPECT_EQ(flags.placement.tasks.num_local, 4);
  const RunFlags placed = Parse({"--rdzv_endpoint=x1:1"}, pals, "x2", "x1\nx2\n");
  EXPECT_EQ(placed.spec.node_rank, 1);
  EXPECT_EQ(placed.spec.nproc_per_node.count, 4);
  EXPECT_EQ(placed.placement.tasks.local, 1);
}

// Flux says as many tasks on each node, or nothing; its PALS plugin sets PALS's variables too.
TEST(ParseFlags, TakesTheTasksOfFlux) {
  const EnvironmentMap flux = {{"FLUX_JOB_ID", "f2Qk"},     {"FLUX_JOB_SIZE", "8"},
                               {"FLUX_JOB_NNODES", "2"},    {"FLUX_TASK_RANK", "5"},
                               {"FLUX_TASK_LOCAL_ID", "1"}, {"PMI_RANK", "5"},
                               {"PMI_SIZE", "8"},           {"PALS_APID", "1"},
                               {"PALS_RANKID", "5"},        {"SLURM_JOB_NODELIST", "n[1-4]"},
                               {"SLURM_STEP_ID", "0"},      {"SLURM_STEP_NODELIST", "n[1-4]"},
                               {"SLURM_PROCID", "0"}};
  EXPECT_THAT(Refusal({}, flux), HasSubstr("Flux has started 2 nodes"));
  const RunFlags flags = Parse({"--rdzv_endpoint=n3"}, flux);
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 4);
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(flags.placement.tasks.local, 1);
  const RunFlags one = Parse({}, With(flux, {{"FLUX_JOB_NNODES", "1"}}));
  EXPECT_EQ(one.spec.max_nodes, 1);
  EXPECT_EQ(one.spec.nproc_per_node.count, 8);
  EXPECT_EQ(one.spec.run_id, "flux-f2Qk");
  EXPECT_THAT(Refusal({}, With(flux, {{"FLUX_JOB_SIZE", "9"}})),
              HasSubstr("which of its node's tasks"));
}

TEST(ParseFlags, TakesAnIndexedJobOfKubernetes) {
  const EnvironmentMap pod = {{"JOB_COMPLETION_INDEX", "3"},
                              {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                              {"HOSTNAME", "train-3"}};
  const std::string hosts =
      "127.0.0.1 localhost\n10.1.2.3\ttrain-3.workers.ns.svc.cluster.local\ttrain-3\n";
  EXPECT_THAT(Refusal({}, pod, "train-3", hosts), HasSubstr("PET_NNODES"));
  const RunFlags flags = Parse({}, With(pod, {{"PET_NNODES", "4"}}), "train-3", hosts);
  EXPECT_EQ(flags.spec.node_rank, 3);
  EXPECT_EQ(flags.spec.max_nodes, 4);
  EXPECT_EQ(flags.spec.endpoint.host, "train-0.workers.ns.svc.cluster.local");
  EXPECT_EQ(flags.spec.run_id, "k8s-train");
  EXPECT_THAT(Refusal({"--nnodes=4"}, pod, "train-3", "127.0.0.1 localhost\n"),
              HasSubstr("Kubernetes"));
  EXPECT_EQ(Parse({"--nnodes=1"}, pod, "train-3", hosts).spec.max_nodes, 1);
}

// A set of jobs is one job of ours: its first pod is the first of its first job.
TEST(ParseFlags, TakesAJobSetOfKubernetes) {
  const EnvironmentMap pod = {{"JOB_COMPLETION_INDEX", "1"},
                              {"JOB_INDEX", "2"},
                              {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                              {"HOSTNAME", "run-workers-2-1"},
                              {"PET_NNODES", "8"}};
  const std::string hosts = "10.1.2.3\trun-workers-2-1.run.ns.svc.cluster.local\trun-workers-2-1\n";
  const RunFlags flags = Parse({}, pod, "run-workers-2-1", hosts);
  EXPECT_EQ(flags.spec.max_nodes, 8);
  EXPECT_EQ(flags.spec.endpoint.host, "run-workers-0-0.run.ns.svc.cluster.local");
  EXPECT_EQ(flags.spec.run_id, "k8s-run-workers");
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(flags.spec.node_rank, std::nullopt);
  EnvironmentMap global = pod;
  global.erase("JOB_INDEX");
  global["JOB_GLOBAL_INDEX"] = "2";
  EXPECT_EQ(Parse({}, global, "run-workers-2-1", hosts).spec.run_id, "k8s-run-workers");
}

TEST(ParseFlags, KnowsWhenSlurmEndsTheJob) {
  EnvironmentMap task = SlurmStep();
  EXPECT_EQ(Parse({}, task).placement.end_time, 0);
  task["SLURM_JOB_END_TIME"] = "1763770000";
  EXPECT_EQ(Parse({}, task).placement.end_time, 1763770000);
}

TEST(ParseFlags, LeavesKubeflowsVariablesInCharge) {
  const RunFlags flags = Parse({}, {{"JOB_COMPLETION_INDEX", "1"},
                                    {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                                    {"HOSTNAME", "t-node-0-1"},
                                    {"PET_NNODES", "2"},
                                    {"PET_NPROC_PER_NODE", "8"},
                                    {"PET_NODE_RANK", "1"},
                                    {"PET_MASTER_ADDR", "t-node-0-0.t"},
                                    {"PET_MASTER_PORT", "29500"}});
  EXPECT_EQ(ToString(flags.spec.endpoint), "t-node-0-0.t:29500");
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 8);
  EXPECT_EQ(flags.placement.start_line, "");
}

TEST(ParseFlags, TakesATaskOfSkyPilot) {
  const RunFlags flags = Parse({}, {{"SKYPILOT_NODE_IPS", "10.0.0.5\n10.0.0.6"},
                                    {"SKYPILOT_NODE_RANK", "1"},
                                    {"SKYPILOT_NUM_NODES", "2"},
                                    {"SKYPILOT_NUM_GPUS_PER_NODE", "8"},
                                    {"SKYPILOT_TASK_ID", "sky-2026-11-21_c_train"}});
  EXPECT_EQ(flags.spec.endpoint.host, "10.0.0.5");
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.nproc_per_node.count, 8);
  EXPECT_EQ(flags.spec.run_id, "sky-sky-2026-11-21_c_train");
}

TEST(ParseFlags, FindsThisHostInTheListsOfLsfAndPbs) {
  const EnvironmentMap lsf = {{"LSB_JOBID", "99"}, {"LSB_MCPU_HOSTS", "h1.site 16 h2.site 16"}};
  const RunFlags flags = Parse({}, lsf, "h2");
  EXPECT_EQ(flags.spec.node_rank, 1);
  EXPECT_EQ(flags.spec.max_nodes, 2);
  EXPECT_EQ(flags.spec.endpoint.host, "h1.site");
  EXPECT_EQ(flags.spec.run_id, "lsf-99");
  EXPECT_EQ(flags.placement.node_name, "h2.site");
  const RunFlags pbs =
      Parse({}, {{"PBS_JOBID", "12.head"}, {"PBS_NODEFILE", "/f"}}, "p2", "p1\np1\np2\n");
  EXPECT_EQ(pbs.spec.node_rank, 1);
  EXPECT_EQ(pbs.spec.run_id, "pbs-12.head");
  EXPECT_THAT(Refusal({}, {{"PBS_JOBID", "12.head"}, {"PBS_NODEFILE", "/f"}}, "p2", ""),
              HasSubstr("PBS_NODEFILE=/f"));
}

TEST(ParseFlags, LetsTheServerOrderNodesThatNobodyNumbers) {
  const RunFlags flags =
      Parse({}, {{"LSB_JOBID", "99"}, {"LSB_MCPU_HOSTS", "h1 16 h2 16"}}, "container");
  EXPECT_EQ(flags.spec.backend, RendezvousBackend::kC10d);
  EXPECT_EQ(flags.spec.node_rank, std::nullopt);
}

}  // namespace
}  // namespace muster::launcher
