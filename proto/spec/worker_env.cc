#include "proto/spec/worker_env.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

constexpr char kVirtualLocalRank[] = "MUSTER_VIRTUAL_LOCAL_RANK";
constexpr char kLocalRank[] = "MUSTER_LOCAL_RANK";
constexpr char kInstance[] = "MUSTER_INSTANCE";
constexpr char kRound[] = "MUSTER_ROUND";
constexpr char kAgentSocket[] = "MUSTER_AGENT_SOCKET";
constexpr char kBoard[] = "MUSTER_BOARD";
constexpr char kTorchServer[] = "MUSTER_TORCH_SERVER";
constexpr char kTorchGroup[] = "MUSTER_TORCH_GROUP";

// Entries of PyTorch's flight recorder. Its own 2000 (torch 2.15) take it 24 ms to write out, too
// long for what is asked for every few seconds; the hang watch needs the last of each group.
constexpr char kRecorderEntries[] = "512";

// Leaves room for the name and for what the kernel adds below its 128 KiB.
constexpr size_t kMaxTfConfigBytes = 100 * 1024;

bool IsSet(const EnvironmentMap& environment, absl::string_view name) {
  return !VariableOrEmpty(environment, name).empty();
}

absl::Status Missing(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(
      name,
      " is not in the environment, though other variables of a worker are; was the program "
      "started by muster run or torchrun?"));
}

absl::Status ReadText(const EnvironmentMap& environment, absl::string_view name, std::string& out) {
  const std::string* text = FindVariable(environment, name);
  if (text == nullptr) return Missing(name);
  out = *text;
  return absl::OkStatus();
}

void ReadOptionalText(const EnvironmentMap& environment, absl::string_view name, std::string& out) {
  if (const std::string* text = FindVariable(environment, name)) out = *text;
}

// Reads a number of `name` in [low, high].
absl::Status ReadNumber(const EnvironmentMap& environment, absl::string_view name, int64_t low,
                        int64_t high, int64_t& out) {
  const std::string* text = FindVariable(environment, name);
  if (text == nullptr) return Missing(name);
  if (!absl::SimpleAtoi(*text, &out)) {
    return absl::InvalidArgumentError(absl::StrCat(name, "=", *text, ": expected a whole number"));
  }
  if (out < low || out > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, ": expected ", low, " to ", high));
  }
  return absl::OkStatus();
}

absl::Status ReadNumber(const EnvironmentMap& environment, absl::string_view name, int low,
                        int high, int& out) {
  int64_t value = 0;
  MUSTER_RETURN_IF_ERROR(ReadNumber(environment, name, int64_t{low}, int64_t{high}, value));
  out = static_cast<int>(value);
  return absl::OkStatus();
}

constexpr int kMaxCount = std::numeric_limits<int>::max();

// An index below a count, each in a variable of its own.
absl::Status ReadPlace(const EnvironmentMap& environment, absl::string_view index_name,
                       absl::string_view count_name, int& index, int& count) {
  MUSTER_RETURN_IF_ERROR(ReadNumber(environment, count_name, 1, kMaxCount, count));
  if (absl::Status status = ReadNumber(environment, index_name, 0, count - 1, index);
      !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(), " (", count_name, "=", count, ")"));
  }
  return absl::OkStatus();
}

absl::Status DecodePlaces(const EnvironmentMap& environment, bool by_muster, WorkerEnv& env) {
  int rank = 0, local_rank = 0, node_rank = 0;
  MUSTER_RETURN_IF_ERROR(ReadPlace(environment, "RANK", "WORLD_SIZE", rank, env.world_size));
  MUSTER_RETURN_IF_ERROR(ReadPlace(environment, by_muster ? kLocalRank : "LOCAL_RANK",
                                   "LOCAL_WORLD_SIZE", local_rank, env.local_world_size));
  MUSTER_RETURN_IF_ERROR(
      ReadPlace(environment, "GROUP_RANK", "GROUP_WORLD_SIZE", node_rank, env.num_nodes));
  MUSTER_RETURN_IF_ERROR(
      ReadPlace(environment, "ROLE_RANK", "ROLE_WORLD_SIZE", env.role_rank, env.role_world_size));
  env.rank = Rank(rank);
  env.local_rank = LocalRank(local_rank);
  env.node_rank = NodeRank(node_rank);
  return absl::OkStatus();
}

absl::Status DecodeRuntime(const EnvironmentMap& environment, WorkerEnv& env) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t instance = 0, round = 0;
  MUSTER_RETURN_IF_ERROR(ReadNumber(environment, kInstance, int64_t{0}, kMax, instance));
  MUSTER_RETURN_IF_ERROR(ReadNumber(environment, kRound, int64_t{-1}, kMax, round));
  env.instance = Instance(instance);
  env.round = Round(round);
  env.virtual_local_rank = FindVariable(environment, kVirtualLocalRank) != nullptr;
  ReadOptionalText(environment, kAgentSocket, env.agent_socket);
  ReadOptionalText(environment, kBoard, env.board);
  ReadOptionalText(environment, kTorchServer, env.torch_server);
  return absl::OkStatus();
}

void EncodePlaces(const WorkerEnv& env, EnvironmentMap& out) {
  out["RANK"] = ToString(env.rank);
  out["LOCAL_RANK"] = env.virtual_local_rank ? "0" : ToString(env.local_rank);
  out["WORLD_SIZE"] = absl::StrCat(env.world_size);
  out["LOCAL_WORLD_SIZE"] = absl::StrCat(env.local_world_size);
  out["GROUP_RANK"] = ToString(env.node_rank);
  out["GROUP_WORLD_SIZE"] = absl::StrCat(env.num_nodes);
  out["ROLE_NAME"] = env.role_name;
  out["ROLE_RANK"] = absl::StrCat(env.role_rank);
  out["ROLE_WORLD_SIZE"] = absl::StrCat(env.role_world_size);
}

void EncodeRuntime(const WorkerEnv& env, EnvironmentMap& out) {
  out[kInstance] = ToString(env.instance);
  out[kRound] = ToString(env.round);
  out[kLocalRank] = ToString(env.local_rank);
  if (env.virtual_local_rank) out[kVirtualLocalRank] = "1";
  if (!env.agent_socket.empty()) out[kAgentSocket] = env.agent_socket;
  if (!env.board.empty()) out[kBoard] = env.board;
}

// The group goes into a variable of ours, since scripts overwrite MASTER_ADDR and MASTER_PORT, and
// processes that they start inherit that. The error file tells a worker of ours from one of another
// launcher below it.
std::string MakeTorchGroup(const WorkerEnv& env) {
  const nlohmann::ordered_json group = {
      {"host", env.master_addr},    {"port", env.master_port},
      {"rank", env.rank.value()},   {"world_size", env.world_size},
      {"num_nodes", env.num_nodes}, {"restart_count", env.restart_count},
      {"round", env.round.value()}, {"error_file", env.error_file},
      {"notes", env.torch_notes}};
  return group.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// FNV-1a, which is the same in every process.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// The trace is the job's instance, the parent span its round: alike on all ranks and nodes, with
// nothing to agree on. Source: W3C Trace Context, version 00 (no id may be zero; 01: sampled).
std::string MakeTraceParent(const WorkerEnv& env) {
  const std::string job = absl::StrCat(env.run_id, "/", env.instance.value());
  const std::string round = absl::StrCat(job, "/", env.round.value());
  return absl::StrCat("00-", absl::Hex(HashOf(job), absl::kZeroPad16),
                      absl::Hex(HashOf(absl::StrCat(job, "/trace")), absl::kZeroPad16), "-",
                      absl::Hex(HashOf(round), absl::kZeroPad16), "-01");
}

// Read by agent/watch/torch_hook.py.
void EncodeTorch(const WorkerEnv& env, const EnvironmentMap& inherited, EnvironmentMap& out) {
  if (env.python_folder.empty()) return;
  const std::string path = VariableOrEmpty(inherited, "PYTHONPATH");
  out["PYTHONPATH"] = path.empty() ? env.python_folder : absl::StrCat(env.python_folder, ":", path);
  out[kTorchGroup] = MakeTorchGroup(env);
  if (env.torch_server.empty()) return;
  out[kTorchServer] = env.torch_server;
  if (!IsSet(inherited, "TORCH_FR_BUFFER_SIZE") &&
      !IsSet(inherited, "TORCH_NCCL_TRACE_BUFFER_SIZE")) {
    out["TORCH_FR_BUFFER_SIZE"] = kRecorderEntries;
  }
}

}  // namespace

EnvironmentMap EncodeLoneWorkerEnv(const WorkerEnv& env, const EnvironmentMap& inherited) {
  EnvironmentMap out;
  if (!env.visible_devices.empty()) {
    out["CUDA_VISIBLE_DEVICES"] = env.visible_devices;
    // On ROCm it goes before CUDA's, so it may not keep the list of all.
    if (IsSet(inherited, "HIP_VISIBLE_DEVICES")) out["HIP_VISIBLE_DEVICES"] = env.visible_devices;
  }
  if (!IsSet(inherited, "TRACEPARENT")) out["TRACEPARENT"] = MakeTraceParent(env);
  EncodeRuntime(env, out);
  EncodeTorch(env, inherited, out);
  return out;
}

EnvironmentMap EncodeWorkerEnv(const WorkerEnv& env, const EnvironmentMap& inherited) {
  EnvironmentMap out = EncodeLoneWorkerEnv(env, inherited);
  EncodePlaces(env, out);
  out["MASTER_ADDR"] = env.master_addr;
  out["MASTER_PORT"] = absl::StrCat(env.master_port);
  out["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  out["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(env.restart_count);
  out["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(env.max_restarts);
  out["TORCHELASTIC_RUN_ID"] = env.run_id;
  out["TORCHELASTIC_ERROR_FILE"] = env.error_file;
  if (!env.timer_file.empty()) out["TORCHELASTIC_TIMER_FILE"] = env.timer_file;
  if (!env.signals_to_handle.empty()) out["TORCHELASTIC_SIGNALS_TO_HANDLE"] = env.signals_to_handle;
  if (!IsSet(inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    out["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  if (!env.tf_config.empty() && !IsSet(inherited, "TF_CONFIG")) out["TF_CONFIG"] = env.tf_config;
  return out;
}

absl::StatusOr<WorkerEnv> DecodeWorkerEnv(const EnvironmentMap& environment) {
  WorkerEnv env;
  const bool by_muster = FindVariable(environment, kLocalRank) != nullptr ||
                         FindVariable(environment, kAgentSocket) != nullptr ||
                         FindVariable(environment, kInstance) != nullptr;
  const bool has_ranks = FindVariable(environment, "RANK") != nullptr ||
                         (by_muster && FindVariable(environment, "WORLD_SIZE") != nullptr);
  if (by_muster) MUSTER_RETURN_IF_ERROR(DecodeRuntime(environment, env));
  ReadOptionalText(environment, "CUDA_VISIBLE_DEVICES", env.visible_devices);
  if (!has_ranks) return env;
  MUSTER_RETURN_IF_ERROR(DecodePlaces(environment, by_muster, env));
  MUSTER_RETURN_IF_ERROR(ReadText(environment, "MASTER_ADDR", env.master_addr));
  MUSTER_RETURN_IF_ERROR(ReadNumber(environment, "MASTER_PORT", 0, 65535, env.master_port));
  MUSTER_RETURN_IF_ERROR(
      ReadNumber(environment, "TORCHELASTIC_RESTART_COUNT", 0, kMaxCount, env.restart_count));
  MUSTER_RETURN_IF_ERROR(
      ReadNumber(environment, "TORCHELASTIC_MAX_RESTARTS", 0, kMaxCount, env.max_restarts));
  MUSTER_RETURN_IF_ERROR(ReadText(environment, "TORCHELASTIC_RUN_ID", env.run_id));
  ReadOptionalText(environment, "ROLE_NAME", env.role_name);
  ReadOptionalText(environment, "TORCHELASTIC_ERROR_FILE", env.error_file);
  ReadOptionalText(environment, "TORCHELASTIC_TIMER_FILE", env.timer_file);
  ReadOptionalText(environment, "TORCHELASTIC_SIGNALS_TO_HANDLE", env.signals_to_handle);
  ReadOptionalText(environment, "TF_CONFIG", env.tf_config);
  return env;
}

std::string MakeTfConfig(const std::vector<std::string>& worker_addresses, Rank rank) {
  if (worker_addresses.empty()) return "";
  nlohmann::ordered_json config;
  config["cluster"]["worker"] = worker_addresses;
  config["task"]["type"] = "worker";
  config["task"]["index"] = rank.value();
  std::string text = config.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return text.size() > kMaxTfConfigBytes ? "" : text;
}

bool IsWithheldFromWorkers(const std::string& name) {
  static constexpr std::array<absl::string_view, 10> kWithheld = {
      "MUSTER_TOKEN", "MUSTER_TOKEN_FILE", kBoard,       kInstance,    kRound,
      kLocalRank,     kVirtualLocalRank,   kAgentSocket, kTorchServer, kTorchGroup};
  return std::find(kWithheld.begin(), kWithheld.end(), name) != kWithheld.end();
}

}  // namespace muster
