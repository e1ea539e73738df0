#include "launcher/node/node_setup.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/machine/cpu_binding.h"
#include "agent/machine/cpu_quota.h"
#include "agent/machine/cpu_topology.h"
#include "agent/machine/device_binding.h"
#include "agent/machine/gpu_inventory.h"
#include "agent/machine/leftovers.h"
#include "agent/network/local_interfaces.h"
#include "agent/process/runtime_directory.h"
#include "launcher/line/omp_threads.h"
#include "launcher/line/variable_notes.h"
#include "launcher/line/worker_command.h"
#include "launcher/node/local_cache.h"
#include "launcher/node/node_facts.h"
#include "launcher/schedulers/step_daemon.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"
#include "proto/io/host_name.h"
#include "proto/io/log.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr absl::Duration kResolvePatience = absl::Seconds(20);
constexpr char kElsewhere[] = "192.0.2.1";  // of no network: what leads there is the default route
constexpr char kThreadsVariable[] = "OMP_NUM_THREADS";
constexpr size_t kMaxHostFileBytes = size_t{8} << 20;
constexpr size_t kMaxReadFileBytes = size_t{4} << 20;

// Set and empty is something else than not set: it hides all devices. HIP's list goes before
// CUDA's, as it does on ROCm.
std::optional<std::string> VisibleDevices(const EnvironmentMap& environment) {
  const std::string hip = VariableOrEmpty(environment, "HIP_VISIBLE_DEVICES");
  if (!hip.empty()) return hip;
  const std::string* cuda = FindVariable(environment, "CUDA_VISIBLE_DEVICES");
  return cuda == nullptr ? std::nullopt : std::optional<std::string>(*cuda);
}

std::string CurrentDirectory() {
  char path[PATH_MAX];
  return getcwd(path, sizeof(path)) == nullptr ? "." : path;
}

FileKind KindOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileKind::kAbsent;
  if (S_ISDIR(info.st_mode)) return FileKind::kDirectory;
  return access(path.c_str(), X_OK) == 0 ? FileKind::kExecutable : FileKind::kFile;
}

std::string HeadOf(const std::string& path) { return TextOf(path, 512); }

// Those of the machine, whatever this process may use of it.
//
// Source: psutil 7, cpu_count(logical=False), by which accelerate counts.
int CountCores() {
  constexpr char kCpus[] = "/sys/devices/system/cpu/";
  std::set<std::string> cores;  // each as the list of its hardware threads
  for (const std::string& name : NamesIn(kCpus)) {
    const bool is_cpu =
        absl::StartsWith(name, "cpu") && name.size() > 3 && absl::ascii_isdigit(name[3]);
    if (is_cpu) cores.insert(HeadOf(absl::StrCat(kCpus, name, "/topology/core_cpus_list")));
  }
  cores.erase("");
  return cores.empty() ? agent::CountCpus() : static_cast<int>(cores.size());
}

ProgramLookup LookupHere(const Invocation& invocation) {
  return {.kind_of = KindOf,
          .head_of = HeadOf,
          .list_directory = NamesIn,
          .current_directory = CurrentDirectory(),
          .invoked_as = invocation.invoked_as,
          .binary_directory = invocation.binary_directory,
          .environment = invocation.environment};
}

// The NUMA node of the GPU that each worker uses: the one at its local rank among those it sees.
std::vector<int> NumaNodesOfWorkers(const agent::DeviceRequest& request,
                                    const agent::DeviceBinding& binding,
                                    const std::vector<agent::Gpu>& all_gpus) {
  std::vector<int> nodes;
  for (int i = 0; i < binding.num_workers; ++i) {
    const bool is_narrowed =
        !binding.visible_devices.empty() && !binding.visible_devices[i].empty();
    const std::vector<agent::Gpu> seen = agent::SelectVisibleGpus(
        all_gpus, is_narrowed ? binding.visible_devices[i] : request.visible_devices);
    const size_t own = request.virtual_local_rank ? 0 : i;
    nodes.push_back(own < seen.size() ? seen[own].numa_node : -1);
  }
  return nodes;
}

// Those of the scheduler's tasks may be fewer than this process is confined to.
NodeCpus CountCpus(const Placement& placement) {
  const int here = agent::CountCpus();
  if (placement.num_cpus == 0) return {.num_cpus = here};
  return {.num_cpus = std::min(here, placement.num_cpus), .are_counted = true};
}

absl::Status BindDevices(const JobSpec& spec, const Invocation& invocation, const NodeCpus& own,
                         agent::AgentOptions* options) {
  agent::DeviceRequest request{.nproc_per_node = spec.nproc_per_node,
                               .virtual_local_rank = spec.virtual_local_rank,
                               .visible_devices = VisibleDevices(invocation.environment),
                               .num_cpus = own.num_cpus};
  std::vector<agent::Gpu> all_gpus;
  if (agent::NeedsGpuCount(request) || spec.numa_binding != NumaBinding::kNone) {
    all_gpus = agent::ListGpus();
    request.num_gpus =
        static_cast<int>(agent::SelectVisibleGpus(all_gpus, request.visible_devices).size());
  }
  MUSTER_ASSIGN_OR_RETURN(agent::DeviceBinding binding, agent::PlanDevices(request));
  options->node.local_world_size = binding.num_workers;
  options->visible_devices = binding.visible_devices;
  if (spec.numa_binding == NumaBinding::kNone) return absl::OkStatus();

  agent::CpuRequest cpus{.binding = spec.numa_binding, .num_workers = binding.num_workers};
  if (request.num_gpus > 0) cpus.gpu_numa_nodes = NumaNodesOfWorkers(request, binding, all_gpus);
  MUSTER_ASSIGN_OR_RETURN(const agent::Topology topology, agent::ReadTopology());
  MUSTER_ASSIGN_OR_RETURN(options->cpus, agent::AssignCpus(topology, cpus));
  return absl::OkStatus();
}

// --local_addr, or this node's address on the interface of --network.
absl::StatusOr<std::string> LocalAddressWish(const JobSpec& spec) {
  if (!spec.network.local_addr.empty() || spec.network.kind != NetworkUse::Kind::kNamed) {
    return spec.network.local_addr;
  }
  const std::vector<agent::Interface> interfaces = agent::ListInterfaces();
  const agent::Interface* const named = agent::FindByName(interfaces, spec.network.interface);
  if (named != nullptr) return named->subnets.front().address;
  std::vector<std::string> names;
  for (const agent::Interface& interface : interfaces) names.push_back(interface.name);
  return absl::InvalidArgumentError(
      absl::StrCat("--network=", spec.network.interface,
                   ": no interface of this name is up with an address; this node has ",
                   absl::StrJoin(names, ", ")));
}

// A host name that is this machine's loopback in its own /etc/hosts, and another address for all
// others: they would never get through. One that a musterd serves there is meant so.
void LeaveLoopback(const JobSpec& spec, ResolvedEndpoint* here, std::vector<std::string>* notes) {
  if (spec.network.kind == NetworkUse::Kind::kOff) return;
  const std::vector<agent::Interface> interfaces = agent::ListInterfaces();
  const agent::Interface* outward = agent::FindByName(interfaces, spec.network.interface);
  if (outward == nullptr) {
    outward = agent::FindByAddress(interfaces, agent::SourceOfRouteTo(kElsewhere));
  }
  const agent::OutwardAddress found =
      agent::LeaveLoopback(here->host, here->address, interfaces, outward);
  if (found.address.empty() || IsServedHere(*here)) return;
  here->address = found.address;
  notes->push_back(found.note);
}

absl::StatusOr<ResolvedEndpoint> Resolve(const Endpoint& endpoint, const Placement& placement) {
  const std::string what_to_do =
      placement.place_from.empty()
          ? "Check --rdzv_endpoint / --master_addr, or give an IP address"
          : absl::StrCat(placement.place_from,
                         " names it: --scheduler=none ignores variables that are left over from "
                         "another job; else give --rdzv_endpoint");
  const absl::StatusOr<ResolvedEndpoint> resolved =
      ResolveEndpoint(endpoint, kResolvePatience, [&](const absl::Status& status) {
        log::Write(log::Level::kInfo, "resolving",
                   absl::StrCat(status.message(), "; trying for ",
                                absl::FormatDuration(kResolvePatience), ". ", what_to_do));
      });
  if (resolved.ok()) return resolved;
  return absl::InvalidArgumentError(absl::StrCat(resolved.status().message(), " (tried for ",
                                                 absl::FormatDuration(kResolvePatience), "). ",
                                                 what_to_do));
}

absl::Status FindAddress(const JobSpec& spec, const Placement& placement, NodeSetup* setup) {
  NodeDescription& node = setup->agent.node;
  node.name = placement.node_name.empty() ? HostName() : placement.node_name;
  node.role = spec.role;
  node.node_rank = spec.node_rank;
  ResolvedEndpoint here{.host = "localhost", .address = "127.0.0.1", .is_local = true};
  if (!spec.is_single_node() || spec.endpoint.port != 0) {
    MUSTER_ASSIGN_OR_RETURN(here, Resolve(spec.endpoint, placement));
    if (!spec.is_single_node()) LeaveLoopback(spec, &here, &setup->notes);
    setup->endpoint = here;
    setup->may_host = spec.is_host.value_or(here.is_local);
  }
  if (!setup->endpoint && spec.network.local_addr.empty()) {
    node.address = here.address;  // nobody else needs it, not even a route to it
    return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(const std::string local_addr, LocalAddressWish(spec));
  MUSTER_ASSIGN_OR_RETURN(node.address, ChooseLocalAddress(local_addr, here));
  node.other_addresses = agent::OtherAddresses(agent::ListInterfaces(), node.address,
                                               agent::SourceOfRouteTo(kElsewhere));
  // Several agents on one machine share its name; their loopback addresses tell them apart.
  if (!spec.network.local_addr.empty() && absl::StartsWith(node.address, "127."))
    node.name = node.address;
  return absl::OkStatus();
}

absl::Status TakeProgram(const JobSpec& spec, const WorkerProgram& program, NodeSetup* setup) {
  setup->agent.worker_command = program.argv;
  if (!program.python.empty()) {
    setup->python = absl::StrCat(program.python, " (", program.python_why, ")");
    if (program.python_on_path.empty()) return absl::OkStatus();
    setup->notes.push_back(absl::StrCat("each worker runs ", setup->python,
                                        "; on PATH it would be ", program.python_on_path,
                                        ". PYTHON_EXEC names the one to take"));
    return absl::OkStatus();
  }
  const std::string& runs = program.argv.front();
  if (!spec.program.warm.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--warm=", absl::StrJoin(spec.program.warm, ","), ": ", runs,
                     " is not a Python script; only Python workers can be forked warm"));
  }
  // A bare name may be another program than was meant.
  const std::string& name = spec.program.name;
  if (name.find('/') == std::string::npos && runs != "./" + name) {
    setup->notes.push_back(absl::StrCat("each worker runs ", runs));
  }
  return absl::OkStatus();
}

// What workers get of the environment of `muster run` and beside it, after BindDevices.
absl::Status FillEnvironment(const JobSpec& spec, const EnvironmentMap& environment,
                             const NodeCpus& cpus, NodeSetup* setup) {
  agent::AgentOptions& options = setup->agent;
  // In a worker of another job, TF_CONFIG is that job's and not the user's.
  const bool is_nested = FindVariable(environment, "MUSTER_INSTANCE") != nullptr;
  for (const auto& [name, value] : environment) {
    if (IsWithheldFromWorkers(name) || (is_nested && name == "TF_CONFIG")) continue;
    options.environment[name] = value;
  }
  ThreadDecision threads =
      DecideOmpThreads(spec.omp_threads, options.node.local_world_size, cpus,
                       !VariableOrEmpty(environment, kThreadsVariable).empty());
  if (threads.threads > 0) options.environment[kThreadsVariable] = absl::StrCat(threads.threads);
  if (!threads.note.empty()) setup->notes.push_back(std::move(threads.note));
  if (!spec.program.local_cache.empty()) {
    const EnvironmentMap caches = LocalCacheVariables(
        std::filesystem::absolute(spec.program.local_cache).lexically_normal(), environment);
    MUSTER_RETURN_IF_ERROR(MakeLocalCache(caches));
    options.environment.insert(caches.begin(), caches.end());
  }
  for (std::string& note : NotesOnVariables(environment)) setup->notes.push_back(std::move(note));
  return absl::OkStatus();
}

// What torchrun's own variables ask the agent to watch, after MakeDirectories.
void ReadWatch(const EnvironmentMap& environment, NodeSetup* setup) {
  agent::AgentOptions& options = setup->agent;
  if (VariableOrEmpty(environment, "TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
    const std::string path = VariableOrEmpty(environment, "TORCHELASTIC_TIMER_FILE");
    options.watch.timer_pipe = path.empty() ? options.runtime_directory + "/timers" : path;
  }
  const absl::StatusOr<double> seconds = command_line::ParseNumber(
      VariableOrEmpty(environment, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"));
  if (seconds.ok() && *seconds > 0) options.watch.uninterruptible_timeout = absl::Seconds(*seconds);
  const std::string port = VariableOrEmpty(environment, "TORCHELASTIC_HEALTH_CHECK_PORT");
  if (port.empty()) return;
  const absl::StatusOr<int> number = command_line::ParseInteger(port);
  if (number.ok() && *number > 0 && *number <= kMaxPort) {
    options.watch.health_port = *number;
  } else {
    setup->notes.push_back(absl::StrCat("TORCHELASTIC_HEALTH_CHECK_PORT=", port,
                                        " is not a port, so nothing answers health checks"));
  }
}

// Why a hang restarts the job although its node was to be replaced; empty: it may be replaced.
std::string NoteOnReplacing(const JobSpec& spec) {
  if (EffectiveWatch(spec) != WatchMode::kReplace) return "";
  if (!spec.is_single_node() && spec.backend != RendezvousBackend::kStatic) return "";
  return absl::StrCat("--watch=replace: ",
                      spec.is_single_node() ? "a job on one node has no other to go on with"
                                            : "a static job cannot go on without one of its nodes",
                      "; a hang restarts it, as with --watch=restart");
}

absl::Status MakeDirectories(const JobSpec& spec, const EnvironmentMap& environment,
                             NodeSetup* setup) {
  agent::AgentOptions* const options = &setup->agent;
  const std::vector<std::string> temporary =
      agent::TemporaryPlaces(VariableOrEmpty(environment, "TMPDIR"));
  MUSTER_ASSIGN_OR_RETURN(
      agent::MadeDirectory made,
      agent::MakeRunDirectory(
          {.log_dir = spec.logs.log_dir, .run_id = spec.run_id, .temporary_places = temporary}));
  options->run_directory = std::move(made.path);
  if (!made.note.empty()) setup->notes.push_back(std::move(made.note));
  options->run_directory_is_temporary = spec.logs.log_dir.empty();
  const agent::RuntimeDirectoryOptions places = {
      .xdg_runtime_dir = VariableOrEmpty(environment, "XDG_RUNTIME_DIR"),
      .temporary_places = temporary};
  for (const std::string& ended : agent::EndLeftovers(agent::RuntimeDirectoryPrefixes(places))) {
    log::Write(log::Level::kWarning, "leftovers",
               absl::StrCat("cleaned up after a job of yours whose agent and guardian were ",
                            "killed on this node: ended ", ended));
  }
  MUSTER_ASSIGN_OR_RETURN(options->runtime_directory, agent::MakeRuntimeDirectory(places));
  MUSTER_ASSIGN_OR_RETURN(UniqueFd lock, agent::LockRuntimeDirectory(options->runtime_directory));
  options->runtime_lock = std::make_shared<UniqueFd>(std::move(lock));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadBoundedFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxReadFileBytes + 1);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (text->size() <= kMaxReadFileBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("it is longer than ", kMaxReadFileBytes >> 20, " MiB"));
}

absl::StatusOr<NodeSetup> PrepareNode(const JobSpec& spec, const Placement& placement,
                                      const Invocation& invocation) {
  NodeSetup setup;
  agent::AgentOptions& options = setup.agent;
  options.spec = spec;
  options.signals_may_reach_workers = placement.is_slurm;
  const ProgramLookup lookup = LookupHere(invocation);
  MUSTER_ASSIGN_OR_RETURN(const WorkerProgram program, ResolveWorkerCommand(spec.program, lookup));
  MUSTER_RETURN_IF_ERROR(TakeProgram(spec, program, &setup));
  if (NodeProgramSpec& check = options.spec.node_programs.check; !check.program.empty()) {
    MUSTER_ASSIGN_OR_RETURN(check.command, ResolveNodeCheck(check.program, lookup));
  }
  const NodeCpus cpus = CountCpus(placement);
  MUSTER_RETURN_IF_ERROR(BindDevices(spec, invocation, cpus, &options));
  MUSTER_RETURN_IF_ERROR(FindAddress(spec, placement, &setup));
  options.server = setup.endpoint ? absl::StrCat("the rendezvous at ",
                                                 ToString(Endpoint{.host = setup.endpoint->host,
                                                                   .port = setup.endpoint->port}))
                                  : "this node's own rendezvous";
  MUSTER_RETURN_IF_ERROR(FillEnvironment(spec, invocation.environment, cpus, &setup));
  if (!spec.is_single_node() && spec.network.kind != NetworkUse::Kind::kOff) {
    options.facts = GatherNodeFacts({.python = program.python,
                                     .script = spec.program.name,
                                     .environment = options.environment});
  }
  std::string replacing = NoteOnReplacing(spec);
  if (!replacing.empty()) setup.notes.push_back(std::move(replacing));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(spec, invocation.environment, &setup));
  ReadWatch(invocation.environment, &setup);
  return setup;
}

Surroundings SurroundingsOf(const Invocation& invocation) {
  return {.environment = invocation.environment,
          .host_name = HostName(),
          .read_file = [](const std::string& path) { return TextOf(path, kMaxHostFileBytes); },
          .is_step_alive = IsStepAlive};
}

MachineView ViewOfThisMachine(const Invocation& invocation) {
  const std::optional<std::string> visible = VisibleDevices(invocation.environment);
  return {.read = ReadBoundedFile,
          .directory = CurrentDirectory(),
          .count_gpus =
              [visible] {
                return static_cast<int>(visible ? agent::SplitVisibleDevices(*visible).size()
                                                : agent::ListGpus().size());
              },
          .visible_gpus = agent::SplitVisibleDevices(visible.value_or("")),
          .count_cores = CountCores};
}

void TakeAllCpus() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);  // where it is not allowed, they stay as they were
}

void UndoNodeSetup(const agent::AgentOptions& options) {
  agent::RemoveOwnedPath(options.runtime_directory);
  const std::string& run = options.run_directory;
  agent::RemoveOwnedPath(options.run_directory_is_temporary ? run.substr(0, run.rfind('/')) : run);
}

}  // namespace muster::launcher
