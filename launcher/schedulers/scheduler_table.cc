#include "launcher/schedulers/scheduler_table.h"

#include <array>

namespace muster::launcher {
namespace {

// Set for the agents of `muster run --hostfile` (hosts/host_plan.cc).
constexpr std::array kHostFileSigns = {"MUSTER_HOSTFILE_NODES", "MUSTER_HOSTFILE_RANK"};
constexpr std::array kHostFileFacts = {
    FactRow{Fact::kNumNodes, "MUSTER_HOSTFILE_NODES"},
    FactRow{Fact::kNodeRank, "MUSTER_HOSTFILE_RANK"},
    FactRow{Fact::kNodeName, "MUSTER_HOSTFILE_NAME"},
};

constexpr std::array kOpenMpiSigns = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"};
constexpr std::array kOpenMpiFacts = {
    FactRow{Fact::kJobId, "PMIX_NAMESPACE"},
    FactRow{Fact::kJobId, "OMPI_MCA_ess_base_jobid"},
    FactRow{Fact::kNumNodes, "OMPI_MCA_orte_num_nodes"},
    FactRow{Fact::kNumTasks, "OMPI_COMM_WORLD_SIZE"},
    FactRow{Fact::kTask, "OMPI_COMM_WORLD_RANK"},
    FactRow{Fact::kLocalTask, "OMPI_COMM_WORLD_LOCAL_RANK"},
    FactRow{Fact::kLocalTasks, "OMPI_COMM_WORLD_LOCAL_SIZE"},
    FactRow{Fact::kStarterUri, "OMPI_MCA_orte_hnp_uri"},
};

// What `flux run` starts; a batch script has none of these. Where the nodes are it does not say.
constexpr std::array kFluxSigns = {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"};
constexpr std::array kFluxFacts = {
    FactRow{Fact::kJobId, "FLUX_JOB_ID"},
    FactRow{Fact::kNumNodes, "FLUX_JOB_NNODES"},
    FactRow{Fact::kNumTasks, "FLUX_JOB_SIZE"},
    FactRow{Fact::kTask, "FLUX_TASK_RANK"},
    FactRow{Fact::kLocalTask, "FLUX_TASK_LOCAL_ID"},
};

// Slurm's own variables are the step's where there are two: in a step on fewer nodes than the job
// has, SLURM_JOB_NODELIST and SLURM_NNODES are the job's. A batch shell has SLURM_PROCID too, but
// no step.
constexpr std::array kSlurmSigns = {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID"};
constexpr std::array kSlurmFacts = {
    FactRow{Fact::kJobId, "SLURM_JOB_ID"},
    FactRow{Fact::kArrayJobId, "SLURM_ARRAY_JOB_ID"},
    FactRow{Fact::kArrayTaskId, "SLURM_ARRAY_TASK_ID"},
    FactRow{Fact::kStepId, "SLURM_STEP_ID"},
    FactRow{Fact::kRestarts, "SLURM_RESTART_COUNT"},
    FactRow{Fact::kNumNodes, "SLURM_STEP_NUM_NODES"},
    FactRow{Fact::kNodeList, "SLURM_STEP_NODELIST"},
    FactRow{Fact::kNodeRank, "SLURM_NODEID"},
    FactRow{Fact::kNodeName, "SLURMD_NODENAME"},
    FactRow{Fact::kNumTasks, "SLURM_STEP_NUM_TASKS"},
    FactRow{Fact::kTask, "SLURM_PROCID"},
    FactRow{Fact::kLocalTask, "SLURM_LOCALID"},
    FactRow{Fact::kTasksPerNode, "SLURM_STEP_TASKS_PER_NODE"},
    FactRow{Fact::kGpusOnNode, "SLURM_GPUS_ON_NODE"},
    FactRow{Fact::kCpusPerTask, "SLURM_CPUS_PER_TASK"},
    FactRow{Fact::kGpuBinding, "SLURMD_TRES_BIND"},
    FactRow{Fact::kGpuBinding, "SLURM_GPUS_PER_TASK"},
    FactRow{Fact::kEndTime, "SLURM_JOB_END_TIME"},
};

constexpr std::array kSkyPilotSigns = {"SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK"};
constexpr std::array kSkyPilotFacts = {
    FactRow{Fact::kJobId, "SKYPILOT_TASK_ID"},
    FactRow{Fact::kNumNodes, "SKYPILOT_NUM_NODES"},
    FactRow{Fact::kHosts, "SKYPILOT_NODE_IPS"},
    FactRow{Fact::kNodeRank, "SKYPILOT_NODE_RANK"},
    FactRow{Fact::kGpusOnNode, "SKYPILOT_NUM_GPUS_PER_NODE"},
};

constexpr std::array kKubernetesSigns = {"JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"};
// A JobSet sets no variable; these are the usual names for its labels jobset.sigs.k8s.io/job-index
// and job-global-index, which a template hands down.
constexpr std::array kKubernetesFacts = {
    FactRow{Fact::kNodeRank, "JOB_COMPLETION_INDEX"},
    FactRow{Fact::kPodName, "HOSTNAME"},
    FactRow{Fact::kJobIndex, "JOB_INDEX"},
    FactRow{Fact::kJobIndex, "JOB_GLOBAL_INDEX"},
};

// The mpiexec of HPE's Cray systems. How many tasks there are its PMI says.
constexpr std::array kPalsSigns = {"PALS_APID", "PALS_RANKID"};
constexpr std::array kPalsFacts = {
    FactRow{Fact::kJobId, "PALS_APID"},
    FactRow{Fact::kNodeRank, "PALS_NODEID"},
    FactRow{Fact::kNumTasks, "PMI_SIZE"},
    FactRow{Fact::kTask, "PALS_RANKID"},
    FactRow{Fact::kLocalTask, "PALS_LOCAL_RANKID"},
    FactRow{Fact::kLocalTask, "PMI_LOCAL_RANK"},
    FactRow{Fact::kLocalTasks, "PALS_LOCAL_SIZE"},
    FactRow{Fact::kLocalTasks, "PMI_LOCAL_SIZE"},
};

// MPICH and Intel MPI (Hydra), and others that speak its PMI. Nothing there says where rank 0 is.
constexpr std::array kPmiSigns = {"PMI_RANK", "PMI_SIZE"};
constexpr std::array kPmiFacts = {
    FactRow{Fact::kNumTasks, "PMI_SIZE"},          FactRow{Fact::kTask, "PMI_RANK"},
    FactRow{Fact::kLocalTask, "MPI_LOCALRANKID"},  FactRow{Fact::kLocalTask, "PMI_LOCAL_RANK"},
    FactRow{Fact::kLocalTasks, "MPI_LOCALNRANKS"}, FactRow{Fact::kLocalTasks, "PMI_LOCAL_SIZE"},
};

constexpr std::array kLsfFileSigns = {"LSB_JOBID", "LSB_DJOB_HOSTFILE"};
constexpr std::array kLsfSigns = {"LSB_JOBID", "LSB_MCPU_HOSTS"};
constexpr std::array kLsfFacts = {
    FactRow{Fact::kJobId, "LSB_JOBID"},
    FactRow{Fact::kArrayTaskId, "LSB_JOBINDEX"},
    FactRow{Fact::kHostCounts, "LSB_MCPU_HOSTS"},
    FactRow{Fact::kHostFile, "LSB_DJOB_HOSTFILE"},
};

constexpr std::array kPbsSigns = {"PBS_JOBID", "PBS_NODEFILE"};
constexpr std::array kPbsFacts = {
    FactRow{Fact::kJobId, "PBS_JOBID"},
    FactRow{Fact::kHostFile, "PBS_NODEFILE"},
};

constexpr std::array kTable = {
    SchedulerRow{"the host file", "hosts", "", "launcher/hosts/host_plan.h", kHostFileSigns,
                 kHostFileFacts},
    SchedulerRow{"Open MPI", "mpi", "",
                 "Open MPI 4.1, mpirun(1), \"Exported Environment Variables\"", kOpenMpiSigns,
                 kOpenMpiFacts},
    SchedulerRow{"Flux", "flux", "", "Flux's manual, flux-environment(7), JOB ENVIRONMENT",
                 kFluxSigns, kFluxFacts},
    SchedulerRow{"Slurm", "slurm", "", "Slurm 22.05, srun(1), OUTPUT ENVIRONMENT VARIABLES",
                 kSlurmSigns, kSlurmFacts},
    SchedulerRow{"PALS", "pals", "", "HPE PALS, mpiexec(1), ENVIRONMENT VARIABLES", kPalsSigns,
                 kPalsFacts},
    SchedulerRow{"MPI", "mpi", "", "MPICH, Hydra's environment; Intel MPI's reference", kPmiSigns,
                 kPmiFacts},
    SchedulerRow{"SkyPilot", "sky", "", "SkyPilot's documentation, \"Environment Variables\"",
                 kSkyPilotSigns, kSkyPilotFacts},
    SchedulerRow{"Kubernetes", "k8s", "",
                 "Kubernetes' documentation, \"Job\", completion mode; JobSet's, labels",
                 kKubernetesSigns, kKubernetesFacts},
    SchedulerRow{"LSF", "lsf", "blaunch",
                 "IBM Spectrum LSF 10.1, \"Environment variable reference\"", kLsfSigns, kLsfFacts},
    SchedulerRow{"LSF", "lsf", "blaunch",
                 "IBM Spectrum LSF 10.1, \"Environment variable reference\"", kLsfFileSigns,
                 kLsfFacts},
    SchedulerRow{"PBS", "pbs", "pbsdsh", "PBS Professional 2022.1, User's Guide, appendix A",
                 kPbsSigns, kPbsFacts},
};

}  // namespace

absl::Span<const SchedulerRow> SchedulerTable() { return kTable; }

}  // namespace muster::launcher
