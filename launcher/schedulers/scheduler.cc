#include "launcher/schedulers/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/schedulers/node_list.h"
#include "launcher/schedulers/scheduler_table.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

constexpr int kFirstPort = 61440;  // above the ports that Linux gives to connections
constexpr int kNumPorts = 4096;
constexpr int kStepStride = 331;  // steps of one job lie apart, and apart from the next jobs
// Slurm sends SIGKILL so long after SIGTERM (slurm.conf, KillWait), and what is killed then
// cleans up nothing. The file of a cluster without files of its own lies below /run.
constexpr int kSlurmKillWaitSeconds = 30;
constexpr int kGraceBelowKillWait = 5;
constexpr int kGraceSeconds = 30;  // of --shutdown_timeout, where nothing bounds it
constexpr int64_t kCpusMax = 1 << 16;
constexpr int64_t kMaxTasks = 1 << 30;
constexpr const char* kSlurmFiles[] = {"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf",
                                       "/etc/slurm-llnl/slurm.conf"};
// Steps that srun did not start: the batch shell, an interactive one, the external ones.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

struct Known {
  std::string text;
  std::string variable;
};
using Facts = std::map<Fact, Known>;

bool HasSigns(const SchedulerRow& row, const EnvironmentMap& environment) {
  return std::all_of(row.signs.begin(), row.signs.end(), [&](const char* variable) {
    return !VariableOrEmpty(environment, variable).empty();
  });
}

Facts Collect(const SchedulerRow& row, const EnvironmentMap& environment) {
  Facts facts;
  for (const FactRow& fact : row.facts) {
    std::string text = VariableOrEmpty(environment, fact.variable);
    if (!text.empty()) facts.emplace(fact.fact, Known{std::move(text), fact.variable});
  }
  return facts;
}

std::string FirstLabel(const std::string& host) {
  if (host.find_first_not_of("0123456789.:") == std::string::npos) return host;  // an address
  return absl::AsciiStrToLower(host.substr(0, host.find('.')));
}

// Numbers of GPUs in a list of visible devices; what hides all of them is none.
std::optional<int> CountVisible(const EnvironmentMap& environment) {
  const std::string* list = FindVariable(environment, "CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return std::nullopt;
  if (list->empty() || *list == "NoDevFiles" || *list == "-1") return 0;
  return static_cast<int>(1 + std::count(list->begin(), list->end(), ','));
}

// Printable, and without what a run id may not have.
std::string AsRunId(absl::string_view text) {
  std::string id;
  for (const char c : text.substr(0, 128)) {
    id.push_back(absl::ascii_isgraph(c) && c != '/' ? c : '-');
  }
  return id;
}

// "791543808.0;tcp://10.0.0.1,127.0.0.1:45085;tcp6://…" -> "10.0.0.1"; empty if there is none.
std::string HostOfUri(const std::string& uri) {
  const size_t begin = uri.find("tcp://");
  if (begin == std::string::npos) return "";
  const std::string rest = uri.substr(begin + 6);
  const std::string host = rest.substr(0, rest.find_first_of(",:;"));
  return IsHost(host) ? host : "";
}

// KillWait by the text of slurm.conf; nothing where it does not say it.
std::optional<int> KillWaitOf(const std::string& text) {
  std::optional<int> seconds;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    int number = 0;
    if (absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts.first), "killwait") &&
        absl::SimpleAtoi(parts.second, &number) && number >= 1) {
      seconds = number;
    }
  }
  return seconds;
}

// Time is left for what comes behind the workers' end.
int GraceWithin(int kill_wait) {
  return std::max(kill_wait - kGraceBelowKillWait, (kill_wait + 1) / 2);
}

// Puts one scheduler's facts together.
class Derivation {
 public:
  Derivation(const SchedulerRow& row, const Surroundings& surroundings)
      : row_(row), surroundings_(surroundings), facts_(Collect(row, surroundings.environment)) {}

  absl::StatusOr<SchedulerFindings> Run() {
    found_.scheduler = row_.name;
    found_.is_slurm = absl::string_view(row_.id) == "slurm";
    MUSTER_RETURN_IF_ERROR(ReadHosts());
    MUSTER_RETURN_IF_ERROR(ReadTasks());
    MUSTER_RETURN_IF_ERROR(CountNodes());
    MUSTER_RETURN_IF_ERROR(RankNode());
    MUSTER_RETURN_IF_ERROR(NameJob());
    if (IsStale()) return LeftOver();
    CompareNames();
    PlaceRendezvous();
    MUSTER_RETURN_IF_ERROR(CountWorkers());
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kEndTime, 0, found_.end_time));
    int64_t cpus = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kCpusPerTask, 0, cpus));
    found_.cpus_per_task = static_cast<int>(std::clamp<int64_t>(cpus, 0, kCpusMax));
    if (found_.is_slurm) BoundGrace();
    return std::move(found_);
  }

 private:
  const Known* Find(Fact fact) const {
    const auto found = facts_.find(fact);
    return found == facts_.end() ? nullptr : &found->second;
  }

  void Take(std::string option, std::string value, std::string source) {
    found_.options.push_back({std::move(option), std::move(value), std::move(source)});
  }

  static absl::Status In(const Known& known, const absl::Status& why) {
    return absl::Status(why.code(),
                        absl::StrCat(known.variable, "=", known.text.substr(0, 200), ": ",
                                     why.message(), "; --scheduler=none ignores it"));
  }

  // Absent: `otherwise`.
  absl::Status ReadNumber(Fact fact, int64_t otherwise, int64_t& out) const {
    const Known* known = Find(fact);
    out = otherwise;
    if (known == nullptr) return absl::OkStatus();
    if (absl::SimpleAtoi(known->text, &out) && out >= 0) return absl::OkStatus();
    return In(*known, absl::InvalidArgumentError("expected a number"));
  }

  absl::Status ReadHosts() {
    absl::StatusOr<std::vector<HostSlots>> hosts = std::vector<HostSlots>();
    if (const Known* list = Find(Fact::kNodeList)) {
      absl::StatusOr<std::vector<std::string>> nodes = ExpandNodeList(list->text);
      if (!nodes.ok()) return In(*list, nodes.status());
      found_.nodes = *std::move(nodes);
      hosts_source_ = list->variable;
      return absl::OkStatus();
    }
    const Known* known = nullptr;
    if ((known = Find(Fact::kHosts)) != nullptr) {
      hosts = ReadHostPerSlot(known->text);
    } else if ((known = Find(Fact::kHostCounts)) != nullptr) {
      hosts = ReadHostsWithCounts(known->text);
    } else if ((known = Find(Fact::kHostFile)) != nullptr) {
      hosts = ReadHostPerSlot(surroundings_.read_file(known->text));
    } else {
      return ReadHostsOfTheJobAround();
    }
    if (!hosts.ok()) return In(*known, hosts.status());
    for (HostSlots& host : *hosts) found_.nodes.push_back(std::move(host.host));
    hosts_source_ = known->variable;
    return absl::OkStatus();
  }

  // mpirun in a job of Slurm, LSF or PBS: that job's list says who takes part. It may name more
  // than mpirun was told to use, so it gives the meeting place only. Flux runs jobs side by side.
  absl::Status ReadHostsOfTheJobAround() {
    if (absl::string_view(row_.id) == "flux") return absl::OkStatus();
    const EnvironmentMap& environment = surroundings_.environment;
    const std::string slurm = VariableOrEmpty(environment, "SLURM_JOB_NODELIST");
    if (!slurm.empty()) {
      MUSTER_ASSIGN_OR_RETURN(hosts_around_, ExpandNodeList(slurm));
      hosts_source_ = "SLURM_JOB_NODELIST";
      return absl::OkStatus();
    }
    for (const char* variable : {"LSB_DJOB_HOSTFILE", "PBS_NODEFILE"}) {
      const std::string path = VariableOrEmpty(environment, variable);
      if (path.empty()) continue;
      const absl::StatusOr<std::vector<HostSlots>> hosts =
          ReadHostPerSlot(surroundings_.read_file(path));
      if (!hosts.ok()) return In({path, variable}, hosts.status());
      for (const HostSlots& host : *hosts) hosts_around_.push_back(host.host);
      hosts_source_ = variable;
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status ReadTasks() {
    int64_t local_task = 0, local_tasks = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kLocalTask, 0, local_task));
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kNumTasks, 1, num_tasks_));
    MUSTER_RETURN_IF_ERROR(CountLocalTasks(local_tasks));
    const Known* place = Find(Fact::kLocalTask);
    if (num_tasks_ > 1 && (local_tasks == 0 || (local_tasks > 1 && place == nullptr))) {
      found_.tasks.unnumbered = Unnumbered(local_tasks);
    } else if (place != nullptr && local_task >= std::max<int64_t>(local_tasks, 1)) {
      return In(*place, absl::InvalidArgumentError(
                            absl::StrCat("expected less than the number of this node's tasks, ",
                                         std::max<int64_t>(local_tasks, 1))));
    }
    found_.tasks.num_local = static_cast<int>(std::clamp<int64_t>(local_tasks, 1, kMaxListedNodes));
    found_.tasks.local =
        static_cast<int>(std::clamp<int64_t>(local_task, 0, found_.tasks.num_local - 1));
    if (Find(Fact::kNumTasks) != nullptr) {
      found_.tasks.num_all = static_cast<int>(std::min<int64_t>(num_tasks_, kMaxTasks));
    }
    return absl::OkStatus();
  }

  // 0: not known. As many on each node, where only their sum is known.
  absl::Status CountLocalTasks(int64_t& local_tasks) {
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kLocalTasks, 0, local_tasks));
    if (const Known* per_node = Find(Fact::kTasksPerNode)) {
      absl::StatusOr<std::vector<int>> counts = ExpandCounts(per_node->text);
      if (!counts.ok()) return In(*per_node, counts.status());
      tasks_per_node_ = *std::move(counts);
      int64_t node = 0;
      MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kNodeRank, 0, node));
      if (node < static_cast<int64_t>(tasks_per_node_.size())) local_tasks = tasks_per_node_[node];
    }
    int64_t nodes = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kNumNodes, 0, nodes));
    if (local_tasks == 0 && nodes > 0 && num_tasks_ % nodes == 0) local_tasks = num_tasks_ / nodes;
    return absl::OkStatus();
  }

  absl::Status Unnumbered(int64_t local_tasks) const {
    std::vector<std::string> absent;
    for (const FactRow& row : row_.facts) {
      const bool is_missing =
          Find(row.fact) == nullptr &&
          (row.fact == Fact::kLocalTask || (row.fact == Fact::kLocalTasks && local_tasks == 0));
      if (is_missing) absent.push_back(row.variable);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        row_.name, " has started ", num_tasks_, " tasks (", Find(Fact::kNumTasks)->variable,
        "), and does not say which of its node's tasks this is",
        absent.empty() ? "" : absl::StrCat(" (", absl::StrJoin(absent, ", "), ": not set)"),
        ": start one per node with --nnodes=", num_tasks_,
        " and --rdzv_endpoint=HOST, one of the nodes, and give --nproc_per_node; --scheduler=none "
        "ignores these variables"));
  }

  absl::Status CountNodes() {
    int64_t num_nodes = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kNumNodes, 0, num_nodes));
    std::string source = num_nodes > 0 ? Find(Fact::kNumNodes)->variable : "";
    if (!found_.nodes.empty() && num_nodes != static_cast<int64_t>(found_.nodes.size())) {
      num_nodes = static_cast<int64_t>(found_.nodes.size());
      source = hosts_source_;
    }
    const Known* tasks = Find(Fact::kNumTasks);
    if (num_nodes == 0 && tasks != nullptr) {
      const int local = found_.tasks.num_local;
      if (num_tasks_ % local != 0) {
        found_.unplaced = absl::InvalidArgumentError(
            absl::StrCat(row_.name, " has started ", num_tasks_, " tasks, ", local,
                         " of them here, and does not say on how many nodes: give --nnodes and "
                         "--rdzv_endpoint"));
        return absl::OkStatus();
      }
      num_nodes = num_tasks_ / local;
      source = tasks->variable;
    }
    if (num_nodes == 0) {
      found_.unplaced = absl::InvalidArgumentError(absl::StrCat(
          row_.name,
          " does not tell this process how many nodes the job has: give --nnodes (or set "
          "PET_NNODES in the template that all of them are made from); --nnodes=1 if each "
          "is a separate job"));
      return absl::OkStatus();
    }
    found_.num_nodes = static_cast<int>(std::min<int64_t>(num_nodes, kMaxListedNodes));
    Take("nnodes", absl::StrCat(found_.num_nodes), source);
    return absl::OkStatus();
  }

  // With one task per node, the order is the tasks': a distribution may be arbitrary. A pod of a
  // set of jobs knows its place within its job only.
  absl::Status RankNode() {
    if (IsPodOfASet()) return absl::OkStatus();
    const bool one_task_each =
        !tasks_per_node_.empty() && std::all_of(tasks_per_node_.begin(), tasks_per_node_.end(),
                                                [](int tasks) { return tasks == 1; });
    const Known* rank = Find(one_task_each ? Fact::kTask : Fact::kNodeRank);
    if (const Known* name = Find(Fact::kNodeName)) found_.node_name = name->text;
    if (found_.node_name.empty() && rank == nullptr) {
      const auto self =
          std::find_if(found_.nodes.begin(), found_.nodes.end(), [this](const std::string& node) {
            return FirstLabel(node) == FirstLabel(surroundings_.host_name);
          });
      if (self == found_.nodes.end()) return absl::OkStatus();
      found_.node_name = *self;
      Take("node_rank", absl::StrCat(self - found_.nodes.begin()),
           absl::StrCat("this host's place in ", hosts_source_));
      return absl::OkStatus();
    }
    if (rank == nullptr) return absl::OkStatus();
    int64_t number = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(one_task_each ? Fact::kTask : Fact::kNodeRank, 0, number));
    if (found_.num_nodes > 0 && number >= found_.num_nodes) {
      return In(*rank,
                absl::InvalidArgumentError(absl::StrCat(
                    "expected 0 to ", found_.num_nodes - 1, " on ", found_.num_nodes,
                    " nodes (a job of several components needs its own --nnodes, --node_rank "
                    "and --rdzv_endpoint)")));
    }
    Take("node_rank", absl::StrCat(number), rank->variable);
    return absl::OkStatus();
  }

  absl::Status NameJob() {
    int64_t restarts = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kRestarts, 0, restarts));
    const Known* job = Find(Fact::kJobId);
    std::string id = job == nullptr ? PodFamily() : job->text;
    std::string source = job == nullptr ? "HOSTNAME" : job->variable;
    if (id.empty()) {
      found_.job = absl::StrCat("a job of ", row_.name);
      return absl::OkStatus();
    }
    const Known* array = Find(Fact::kArrayJobId);
    const Known* element = Find(Fact::kArrayTaskId);
    if (element != nullptr && element->text != "0" && array == nullptr) {
      absl::StrAppend(&id, "_", element->text);
    } else if (element != nullptr && array != nullptr) {
      id = absl::StrCat(array->text, "_", element->text);
      source = absl::StrCat(array->variable, ", ", element->variable);
    }
    found_.job = absl::StrCat(row_.name, " job ", id);
    if (const Known* step = Find(Fact::kStepId)) {
      absl::StrAppend(&found_.job, ", step ", step->text);
      absl::StrAppend(&id, ".", step->text);
      absl::StrAppend(&source, ", ", step->variable);
    }
    if (restarts > 0) {
      absl::StrAppend(&found_.job, ", requeued ",
                      restarts == 1 ? "once" : absl::StrCat(restarts, " times"));
      absl::StrAppend(&id, ".r", restarts);
      absl::StrAppend(&source, ", ", Find(Fact::kRestarts)->variable);
    }
    Take("rdzv_id", AsRunId(absl::StrCat(row_.id, "-", id)), source);
    return absl::OkStatus();
  }

  bool IsStale() const {
    int64_t job = 0, step = 0;
    return found_.is_slurm && surroundings_.is_step_alive && Find(Fact::kJobId) != nullptr &&
           Find(Fact::kStepId) != nullptr && ReadNumber(Fact::kJobId, 0, job).ok() &&
           ReadNumber(Fact::kStepId, 0, step).ok() &&
           !surroundings_.is_step_alive(job, step).value_or(true);
  }

  // What is started here is no part of the step. Nodes of others are not waited for.
  SchedulerFindings LeftOver() const {
    SchedulerFindings found;
    const std::string note = absl::StrCat(
        "the variables of ", found_.job,
        " are left over here: it has no slurmstepd on this machine; --scheduler=none ignores them");
    if (found_.num_nodes > 1) {
      found.unplaced = absl::InvalidArgumentError(absl::StrCat(
          note, ", as does --standalone; else its ", found_.num_nodes, " nodes are waited for"));
    } else {
      found.notes.push_back(note);
    }
    return found;
  }

  void CompareNames() {
    const std::string& host = surroundings_.host_name;
    const Known* name = Find(Fact::kNodeName);
    if (name == nullptr || host.empty() || FirstLabel(name->text) == FirstLabel(host)) return;
    absl::StrAppend(&found_.job, ", node ", name->text, " (host name ", host, ")");
  }

  int Port() const {
    int64_t job = 0, step = 0;
    if (found_.is_slurm && ReadNumber(Fact::kJobId, 0, job).ok() &&
        ReadNumber(Fact::kStepId, 0, step).ok()) {
      return PortOfSlurmStep(job, step);
    }
    const TakenOption* run_id = found_.Find("rdzv_id");
    return PortOfJob(run_id == nullptr ? "" : run_id->value);
  }

  void PlaceRendezvous() {
    if (found_.num_nodes == 1 || !found_.unplaced.ok()) {
      if (Find(Fact::kPodName) == nullptr) return;  // its count comes from --nnodes
    }
    std::string host, source = hosts_source_;
    if (!found_.nodes.empty()) {
      host = found_.nodes.front();
    } else if (!hosts_around_.empty()) {
      host = hosts_around_.front();
    } else if (const Known* uri = Find(Fact::kStarterUri)) {
      host = HostOfUri(uri->text);
      source = uri->variable;
    } else if (Find(Fact::kPodName) != nullptr) {
      host = FirstPod();
      source = "HOSTNAME, /etc/hosts";
    }
    if (!host.empty()) {
      Take("rdzv_endpoint", ToString(Endpoint{.host = host, .port = Port()}), source);
      return;
    }
    if (!found_.unplaced.ok()) return;
    found_.unplaced = absl::InvalidArgumentError(absl::StrCat(
        row_.name, " has started ", found_.num_nodes,
        " nodes, and does not say where the first is: give --rdzv_endpoint=HOST, one of "
        "the nodes"));
  }

  // "-3", or "-1-3" in a set of jobs: what the names of its pods differ in; empty: not known.
  std::string EndingOfPod(bool in_a_set) const {
    const Known* rank = Find(Fact::kNodeRank);
    const Known* job = Find(Fact::kJobIndex);
    if (rank == nullptr || (in_a_set && job == nullptr)) return "";
    return absl::StrCat(in_a_set ? "-" + job->text : "", "-", rank->text);
  }

  bool IsPodOfASet() const {
    const Known* pod = Find(Fact::kPodName);
    const std::string ending = EndingOfPod(true);
    return pod != nullptr && !ending.empty() && absl::EndsWith(pod->text, ending);
  }

  // "train-3" -> "train": the pods of an indexed job are numbered behind its name.
  std::string PodFamily() const {
    const Known* pod = Find(Fact::kPodName);
    const std::string ending = EndingOfPod(IsPodOfASet());
    if (pod == nullptr || ending.empty() || !absl::EndsWith(pod->text, ending)) return "";
    return pod->text.substr(0, pod->text.size() - ending.size());
  }

  // The name of pod 0, with the domain that /etc/hosts has for this one. Without a domain there is
  // no headless service, and pods have no names.
  std::string FirstPod() const {
    const std::string family = PodFamily();
    if (family.empty()) return "";
    const std::string own = absl::StrCat(Find(Fact::kPodName)->text, ".");
    const std::string hosts = surroundings_.read_file("/etc/hosts");
    for (absl::string_view word :
         absl::StrSplit(hosts, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty())) {
      if (!absl::StartsWith(word, own)) continue;
      std::string host =
          absl::StrCat(family, IsPodOfASet() ? "-0-0." : "-0.", word.substr(own.size()));
      if (IsHost(host)) return host;
    }
    return "";
  }

  void BoundGrace() {
    std::vector<std::string> files(std::begin(kSlurmFiles), std::end(kSlurmFiles));
    const std::string own = VariableOrEmpty(surroundings_.environment, "SLURM_CONF");
    if (!own.empty()) files.insert(files.begin(), own);
    std::string source =
        absl::StrCat("Slurm's KillWait, ", kSlurmKillWaitSeconds, " s unless the site changed it");
    found_.kill_wait = kSlurmKillWaitSeconds;
    for (const std::string& file : files) {
      const std::optional<int> set = KillWaitOf(surroundings_.read_file(file));
      if (!set) continue;
      found_.kill_wait = *set;
      source = absl::StrCat("KillWait=", *set, " in ", file);
      break;
    }
    const int grace = std::min(GraceWithin(found_.kill_wait), kGraceSeconds);
    Take("shutdown_timeout", absl::StrCat(grace), source);
  }

  absl::Status CountWorkers() {
    int64_t gpus = 0;
    MUSTER_RETURN_IF_ERROR(ReadNumber(Fact::kGpusOnNode, 0, gpus));
    const std::optional<int> visible = CountVisible(surroundings_.environment);
    if (visible && *visible<gpus&& * visible> 0) {
      found_.num_gpus_hidden = static_cast<int>(gpus) - *visible;
    }
    if (found_.tasks.num_local > 1) {
      const Known* tasks = Find(Fact::kTasksPerNode);
      if (tasks == nullptr) tasks = Find(Fact::kLocalTasks);
      if (tasks == nullptr) tasks = Find(Fact::kNumTasks);  // and as many on each node
      Take("nproc_per_node", absl::StrCat(found_.tasks.num_local), tasks->variable);
      return absl::OkStatus();
    }
    if (visible && *visible > 0) {
      Take("nproc_per_node", absl::StrCat(*visible), "CUDA_VISIBLE_DEVICES");
    } else if (!visible && gpus > 0) {
      Take("nproc_per_node", absl::StrCat(gpus), Find(Fact::kGpusOnNode)->variable);
    }
    if (found_.num_gpus_hidden > 0) {
      const Known* binding = Find(Fact::kGpuBinding);
      found_.notes.push_back(absl::StrCat(
          "this node's step has ", gpus, " GPUs, but this task sees ", *visible, " (",
          binding == nullptr ? "CUDA_VISIBLE_DEVICES"
                             : absl::StrCat(binding->variable, "=", binding->text),
          "): with one task per node ask for them with --gpus-per-node, not --gpus-per-task"));
    }
    return absl::OkStatus();
  }

  const SchedulerRow& row_;
  const Surroundings& surroundings_;
  const Facts facts_;
  SchedulerFindings found_;
  std::string hosts_source_;
  std::vector<std::string> hosts_around_;
  std::vector<int> tasks_per_node_;
  int64_t num_tasks_ = 1;
};

bool IsSpecialStep(const EnvironmentMap& environment) {
  int64_t step = 0;
  return absl::SimpleAtoi(VariableOrEmpty(environment, "SLURM_STEP_ID"), &step) &&
         step >= kFirstSpecialStep;
}

// A batch shell of several nodes: started there without srun, we use one of them.
SchedulerFindings OutsideOfAStep(const EnvironmentMap& environment) {
  SchedulerFindings found;
  int nodes = 0;
  const std::string count = VariableOrEmpty(environment, "SLURM_JOB_NUM_NODES");
  if (VariableOrEmpty(environment, "SLURM_JOB_ID").empty() || !absl::SimpleAtoi(count, &nodes) ||
      nodes < 2) {
    return found;
  }
  found.notes.push_back(absl::StrCat(
      "Slurm gave this job ", nodes,
      " nodes (SLURM_JOB_NUM_NODES), but muster was started on this one alone; to use all of them: "
      "srun --ntasks-per-node=1 muster ..."));
  return found;
}

}  // namespace

const TakenOption* SchedulerFindings::Find(const std::string& option) const {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const TakenOption& taken) { return taken.option == option; });
  return found == options.end() ? nullptr : &*found;
}

int PortOfSlurmStep(int64_t job, int64_t step) {
  const uint64_t place = static_cast<uint64_t>(job) + static_cast<uint64_t>(step) * kStepStride;
  return kFirstPort + static_cast<int>(place % kNumPorts);
}

// FNV-1a: the same on every node, whatever it was built with.
int PortOfJob(const std::string& run_id) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : run_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return kFirstPort + static_cast<int>(hash % kNumPorts);
}

absl::StatusOr<SchedulerFindings> FindScheduler(const Surroundings& surroundings) {
  const EnvironmentMap& environment = surroundings.environment;
  if (FindVariable(environment, "MUSTER_INSTANCE") != nullptr) return SchedulerFindings{};
  for (const SchedulerRow& row : SchedulerTable()) {
    if (!HasSigns(row, environment)) continue;
    if (absl::string_view(row.id) == "slurm" && IsSpecialStep(environment)) continue;
    return Derivation(row, surroundings).Run();
  }
  return OutsideOfAStep(environment);
}

}  // namespace muster::launcher
