#include "rendezvous/core/admission.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

std::string NnodesInWords(const RendezvousSettings& settings) {
  if (settings.min_nodes == settings.max_nodes) return absl::StrCat(settings.min_nodes);
  return absl::StrCat(settings.min_nodes, ":", settings.max_nodes);
}

absl::string_view KindInWords(const RendezvousSettings& settings) {
  return settings.is_static ? "static" : "dynamic";
}

absl::string_view ScaleUpInWords(ScaleUp scale_up) {
  switch (scale_up) {
    case ScaleUp::kNow:
      return "now";
    case ScaleUp::kCheckpoint:
      return "checkpoint";
    case ScaleUp::kNever:
      return "never";
  }
  return "?";
}

absl::Status CheckValues(const AgentReport& report) {
  const RendezvousSettings& settings = report.settings;
  if (settings.min_nodes < 1 || settings.max_nodes < settings.min_nodes ||
      settings.max_nodes > kMaxNodes || settings.max_restarts < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes is ", NnodesInWords(settings), " and --max_restarts is ",
                     settings.max_restarts, " on ", report.node.name,
                     "; expected 1 <= MIN <= MAX <= ", kMaxNodes, " and no negative number"));
  }
  const int workers = report.node.local_world_size;
  if (workers < 1 || workers > kMaxLocalWorldSize) {
    return absl::InvalidArgumentError(absl::StrCat("--nproc_per_node is ", workers, " on ",
                                                   report.node.name, "; expected 1 to ",
                                                   kMaxLocalWorldSize));
  }
  const size_t num_ports = report.node.worker_ports.size();
  if (num_ports != 0 && num_ports != static_cast<size_t>(workers)) {
    return absl::InvalidArgumentError(absl::StrCat(report.node.name, " reports ", num_ports,
                                                   " worker ports for ", workers, " workers"));
  }
  return absl::OkStatus();
}

absl::Status Differs(absl::string_view setting, const std::string& first_value,
                     const std::string& first_node, const std::string& value,
                     const std::string& node) {
  return absl::InvalidArgumentError(
      absl::StrCat(setting, " is ", first_value, " on ", first_node, " but ", value, " on ", node,
                   "; every node of a job must be started with the same value"));
}

absl::Status CheckSameSettings(const JobState& state, const AgentReport& report) {
  const RendezvousSettings& ours = *state.settings;
  const RendezvousSettings& theirs = report.settings;
  if (ours == theirs) return absl::OkStatus();
  const auto differs = [&](absl::string_view setting, const auto& first, const auto& other) {
    return Differs(setting, absl::StrCat(first), state.settings_from, absl::StrCat(other),
                   report.node.name);
  };
  if (KindInWords(ours) != KindInWords(theirs)) {
    return differs("--rdzv_backend", KindInWords(ours), KindInWords(theirs));
  }
  if (NnodesInWords(ours) != NnodesInWords(theirs)) {
    return differs("--nnodes", NnodesInWords(ours), NnodesInWords(theirs));
  }
  if (ours.max_restarts != theirs.max_restarts) {
    return differs("--max_restarts", ours.max_restarts, theirs.max_restarts);
  }
  if (ours.scale_up != theirs.scale_up) {
    return differs("--scale_up", ScaleUpInWords(ours.scale_up), ScaleUpInWords(theirs.scale_up));
  }
  if (ours.left_exit_code != theirs.left_exit_code) {
    return differs("--left_exit_code", ours.left_exit_code, theirs.left_exit_code);
  }
  const struct {
    absl::string_view name;
    absl::Duration first;
    absl::Duration other;
  } durations[] = {
      {"--rdzv_conf=join_timeout", ours.join_timeout, theirs.join_timeout},
      {"--rdzv_conf=last_call_timeout", ours.last_call_timeout, theirs.last_call_timeout},
      {"--rdzv_conf=close_timeout", ours.close_timeout, theirs.close_timeout},
      {"--rdzv_conf=orphan_timeout", ours.orphan_timeout, theirs.orphan_timeout},
      {"--shutdown_timeout", ours.shutdown_timeout, theirs.shutdown_timeout},
  };
  for (const auto& setting : durations) {
    if (setting.first != setting.other) {
      return differs(setting.name, absl::FormatDuration(setting.first),
                     absl::FormatDuration(setting.other));
    }
  }
  return absl::OkStatus();
}

// Both have been there for so long that what the holder said last, it said beside the other one. A
// lease that has ended, or that was renewed because nobody was heard, says nothing of its holder.
bool IsSecond(const RankClaim& claim, Incarnation from, const NodeState& holder, MonoTime now) {
  const auto asks = claim.second_from.find(from);
  const bool has_waited = asks != claim.second_from.end() && asks->second <= now;
  return has_waited && holder.lease_expires > now && holder.free_renewals == 0;
}

absl::Status CheckNodeRank(const JobState& state, Incarnation from, const AgentReport& report,
                           MonoTime now) {
  const std::string& name = report.node.name;
  const int max_nodes = report.settings.max_nodes;
  if (!report.node.node_rank) {
    return absl::InvalidArgumentError(absl::StrCat("--node_rank is missing on ", name,
                                                   "; a static job needs one of 0 to ",
                                                   max_nodes - 1, " on each node"));
  }
  const int rank = *report.node.node_rank;
  if (rank < 0 || rank >= max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("--node_rank is ", rank, " on ", name,
                                                   "; expected 0 to ", max_nodes - 1,
                                                   ", because --nnodes is ", max_nodes));
  }
  const auto claim = state.ranks.claims.find(rank);
  if (claim == state.ranks.claims.end() || claim->second.holder == from) return absl::OkStatus();
  const NodeState& claimant = state.nodes.at(claim->second.holder);
  const std::string& other = claimant.report.node.name;
  const bool is_same = other == name && claimant.report.node.address == report.node.address;
  // A new start of the very node that died while it waited: RendezvousCore lets it take the place.
  if (claimant.wants_place && !claimant.connected && is_same) return absl::OkStatus();
  const bool is_perhaps_gone = is_same && !IsSecond(claim->second, from, claimant, now);
  if (!claimant.connected || is_perhaps_gone) {
    const absl::Duration left = claimant.lease_expires - now;
    return absl::UnavailableError(absl::StrCat(
        "waiting for node rank ", rank, ": ", other, " holds it but ",
        claimant.connected ? "may be an earlier start of this node" : "lost its connection",
        "; its lease ",
        left > absl::ZeroDuration() ? "ends in " + InWords(left)
                                    : "ends unless it is heard of again"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--node_rank is ", rank, " on ", name, ", but ", other,
                   " already has that rank; each node needs its own"));
}

}  // namespace

absl::Status CheckAdmission(const JobState& state, Incarnation from, const AgentReport& report,
                            MonoTime now) {
  if (report.round > state.round) {
    return absl::AbortedError(absl::StrCat("round ", ToString(report.round),
                                           " is not known here; the newest is ",
                                           ToString(state.round), ". Join again"));
  }
  if (state.nodes.contains(from)) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(CheckValues(report));
  if (state.settings) MUSTER_RETURN_IF_ERROR(CheckSameSettings(state, report));
  if (!report.settings.is_static) return absl::OkStatus();
  return CheckNodeRank(state, from, report, now);
}

}  // namespace muster::rendezvous
