#include "launcher/line/placement.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/line/flag_values.h"
#include "launcher/line/rendezvous_conf.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

using command_line::CommandLine;
using command_line::Given;

class Application {
 public:
  Application(const SchedulerFindings& found, CommandLine& line) : found_(found), line_(line) {}

  absl::StatusOr<Placement> Run() {
    placement_.is_slurm = found_.is_slurm;
    placement_.node_name = found_.node_name;
    placement_.end_time = found_.end_time;
    placement_.shares_console = found_.num_nodes > 1;
    const TakenOption* rank = found_.Find("node_rank");
    placement_.is_first = rank == nullptr || rank->value == "0";
    if (found_.scheduler.empty()) {
      const bool has_said_all = IsJobOfItsOwn() || (HasPlace() && IsGiven("nnodes"));
      if (!has_said_all) MUSTER_RETURN_IF_ERROR(found_.unplaced);
      if (!IsGiven("nnodes") && !HasPlace() && !line_.IsOn("standalone")) Warn(found_.notes);
      return std::move(placement_);
    }
    if (!Take("shutdown_timeout")) WarnOfLongGrace();
    if (IsJobOfItsOwn()) {
      WarnOfSeveralJobs();
    } else if (HasPlace()) {
      MUSTER_RETURN_IF_ERROR(FillIn());
    } else {
      MUSTER_RETURN_IF_ERROR(TakeAll());
    }
    placement_.num_cpus = found_.cpus_per_task * placement_.tasks.num_local;
    if (!taken_.empty()) {
      placement_.start_line = absl::StrCat(found_.job, ": ", absl::StrJoin(taken_, ", "));
    }
    return std::move(placement_);
  }

 private:
  void Warn(const std::vector<std::string>& notes) {
    line_.warnings.insert(line_.warnings.end(), notes.begin(), notes.end());
  }

  bool IsGiven(const std::string& option) const { return line_.Find(option) != nullptr; }

  bool HasPlace() const {
    for (const char* option : {"rdzv_endpoint", "master_addr"}) {
      const Given* given = line_.Find(option);
      if (given != nullptr && !given->text().empty()) return true;
    }
    return false;
  }

  // None if it is no count: ReadValues says so.
  std::optional<NodeCount> GivenNodes() const {
    const Given* given = line_.Find("nnodes");
    if (given == nullptr) return std::nullopt;
    const absl::StatusOr<NodeCount> nodes = ParseNodeCount(given->text());
    return nodes.ok() ? std::optional<NodeCount>(*nodes) : std::nullopt;
  }

  bool IsJobOfItsOwn() const {
    if (line_.IsOn("standalone")) return true;
    const std::optional<NodeCount> nodes = GivenNodes();
    return nodes && nodes->max == 1 && !HasPlace();
  }

  void WarnOfLongGrace() {
    const Given* given = line_.Find("shutdown_timeout");
    double seconds = 0;
    if (found_.kill_wait == 0 || given == nullptr || !absl::SimpleAtod(given->text(), &seconds) ||
        seconds < found_.kill_wait) {
      return;
    }
    line_.warnings.push_back(
        absl::StrCat(given->source, "=", given->text(), " is not shorter than Slurm's KillWait, ",
                     found_.kill_wait, " s, after which Slurm ends everything by SIGKILL"));
  }

  void WarnOfSeveralJobs() {
    const int processes = found_.num_nodes * found_.tasks.num_local;
    if (processes < 2) return;
    const Given* nnodes = line_.Find("nnodes");
    line_.warnings.push_back(absl::StrCat(line_.IsOn("standalone")
                                              ? "--standalone"
                                              : absl::StrCat(nnodes->source, "=", nnodes->text()),
                                          ": each of the ", processes, " processes that ",
                                          found_.scheduler, " has started is a separate job"));
  }

  void Set(const std::string& option, std::string value, std::string source) {
    taken_.push_back(absl::StrCat(option, "=", value, " (", source, ")"));
    line_.values[option] = Given{.texts = {std::move(value)}, .source = std::move(source)};
  }

  // Whether the scheduler's value is the one that counts.
  bool Take(const std::string& option) {
    const TakenOption* taken = found_.Find(option);
    if (taken == nullptr || IsGiven(option)) return false;
    Set(option, taken->value, taken->source);
    return true;
  }

  // Adds what a meeting place that was given leaves open.
  absl::Status FillIn() {
    if (IsGiven("nnodes") && (HasNodeRank() || IsOneNode())) return absl::OkStatus();
    if (!IsGiven("nnodes")) {
      MUSTER_RETURN_IF_ERROR(found_.tasks.unnumbered);
      if (!found_.unplaced.ok() && found_.Find("nnodes") == nullptr) return found_.unplaced;
      Take("nnodes");
      Take("node_rank");
    }
    if (!IsOneNode()) ChooseBackend();
    if (IsEachTaskANode()) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(ChooseAgent());
    if (found_.tasks.num_local > 1) Take("nproc_per_node");
    return absl::OkStatus();
  }

  // A job script for torchrun may start them so.
  bool IsEachTaskANode() const {
    const std::optional<NodeCount> nodes = GivenNodes();
    return nodes && found_.tasks.num_all > 0 && nodes->max >= found_.tasks.num_all;
  }

  bool HasNodeRank() const {
    const Given* conf = line_.Find("rdzv_conf");
    if (IsGiven("node_rank") || conf == nullptr) return IsGiven("node_rank");
    const absl::StatusOr<RendezvousConf> values = ParseRendezvousConf(conf->text());
    return values.ok() && values->rank.has_value();
  }

  // The static back end would take each node that has no rank for the first.
  void ChooseBackend() {
    if (IsGiven("rdzv_backend") || HasNodeRank()) return;
    Set("rdzv_backend", "c10d", "the rank of this node is unknown");
  }

  absl::Status TakeAll() {
    MUSTER_RETURN_IF_ERROR(found_.tasks.unnumbered);
    MUSTER_RETURN_IF_ERROR(CheckPlaced());
    MUSTER_RETURN_IF_ERROR(CheckEnoughNodes());
    const std::optional<NodeCount> nodes = GivenNodes();
    const bool all_of_them = !nodes ||
                             (nodes->min == nodes->max && nodes->max == found_.num_nodes) ||
                             found_.num_nodes == 0;
    Take("nnodes");
    TakeNodeRank(nodes);
    if (!IsOneNode()) {
      if (!all_of_them && !IsGiven("rdzv_backend")) {
        Set("rdzv_backend", "c10d", "--nnodes lets nodes come and go");
      }
      ChooseBackend();
      TakeEndpoint();
    }
    Take("rdzv_id");
    MUSTER_RETURN_IF_ERROR(ChooseAgent());
    Take("nproc_per_node");
    Warn(found_.notes);
    if (KnowsNamesByRank()) placement_.expected_nodes = found_.nodes;
    if (!IsOneNode() && !IsGiven("console") && !IsGiven("tee") && !IsGiven("role") &&
        !IsGiven("log_line_prefix_template")) {
      Set("console", "prefix", absl::StrCat(found_.scheduler, " shows the lines of all nodes"));
    }
    return absl::OkStatus();
  }

  // An arbitrary distribution numbers the tasks otherwise than the list.
  bool KnowsNamesByRank() const {
    const TakenOption* rank = found_.Find("node_rank");
    int number = -1;
    return rank != nullptr && absl::SimpleAtoi(rank->value, &number) && number >= 0 &&
           number < static_cast<int>(found_.nodes.size()) &&
           found_.nodes[static_cast<size_t>(number)] == found_.node_name;
  }

  bool IsOneNode() const {
    const std::optional<NodeCount> nodes = GivenNodes();
    return nodes && nodes->max == 1;
  }

  absl::Status CheckPlaced() const {
    if (found_.unplaced.ok()) return absl::OkStatus();
    const bool knows_nodes = IsGiven("nnodes") || found_.Find("nnodes") != nullptr;
    const bool knows_place = found_.Find("rdzv_endpoint") != nullptr;
    return knows_nodes && knows_place ? absl::OkStatus() : found_.unplaced;
  }

  absl::Status CheckEnoughNodes() const {
    const std::optional<NodeCount> nodes = GivenNodes();
    if (!nodes || found_.num_nodes == 0 || nodes->min <= found_.num_nodes) return absl::OkStatus();
    const Given& given = *line_.Find("nnodes");
    return command_line::At(
        given.source, given.text(),
        absl::InvalidArgumentError(absl::StrCat(
            found_.job, " has ", found_.num_nodes, found_.num_nodes == 1 ? " node" : " nodes", " (",
            found_.Find("nnodes")->source, "): leave it out, or ask the scheduler for more")));
  }

  // A place in the list is a wish where nodes may be spares: it must lie below MAX.
  void TakeNodeRank(const std::optional<NodeCount>& nodes) {
    if (nodes && found_.num_nodes > nodes->max) return;
    Take("node_rank");
  }

  void TakeEndpoint() {
    const TakenOption* taken = found_.Find("rdzv_endpoint");
    if (taken == nullptr) return;
    const Given* port = line_.Find("master_port");
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(taken->value, 0);
    placement_.place_from = taken->source;
    if (port == nullptr || !endpoint.ok()) {
      Set("rdzv_endpoint", taken->value, taken->source);
      return;
    }
    const std::string host = ToString(Endpoint{.host = endpoint->host, .port = 0});
    Set("rdzv_endpoint", absl::StrCat(host.substr(0, host.rfind(':')), ":", port->text()),
        absl::StrCat(taken->source, ", ", port->source));
  }

  // The first of several tasks on a node runs the agent, and sees what it was given itself.
  absl::Status ChooseAgent() {
    placement_.tasks = found_.tasks;
    const TakenOption* job = found_.Find("rdzv_id");
    if (job != nullptr) placement_.tasks_of = job->value;
    if (found_.tasks.num_local == 1 || found_.num_gpus_hidden == 0 || IsGiven("nproc_per_node")) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        found_.job, " runs ", found_.tasks.num_local,
        " tasks on this node, each with its own GPUs (--gpus-per-task); the agent is one of "
        "them and would not see the others' ",
        found_.num_gpus_hidden,
        ": start one task per node (--ntasks-per-node=1 --gpus-per-node=N), or leave the GPUs "
        "unbound (--gpu-bind=none, --tres-bind=gres/gpu:none)"));
  }

  const SchedulerFindings& found_;
  CommandLine& line_;
  Placement placement_;
  std::vector<std::string> taken_;
};

}  // namespace

absl::StatusOr<Placement> ApplyScheduler(const SchedulerFindings& found, CommandLine& line) {
  return Application(found, line).Run();
}

absl::Duration LeftUntil(int64_t end_time, absl::Time now) {
  return absl::FromUnixSeconds(end_time) - now;
}

std::string TimeLeftInWords(int64_t end_time, absl::Time now) {
  const absl::Duration left = LeftUntil(end_time, now);
  return absl::FormatDuration(
      absl::Trunc(left, left < absl::Minutes(1) ? absl::Seconds(1) : absl::Minutes(1)));
}

}  // namespace muster::launcher
