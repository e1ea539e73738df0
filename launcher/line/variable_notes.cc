#include "launcher/line/variable_notes.h"

#include "absl/strings/str_cat.h"

namespace muster::launcher {
namespace {

struct Mistaken {
  const char* name;
  const char* meant;  // nullptr: no variable does it
  const char* why;
};

constexpr char kNoOne[] = "neither NCCL nor PyTorch reads it";
constexpr char kOld[] = "the name that PyTorch has used since 2.2";

// Sources: NCCL, "Environment Variables", and the names in its library; the header of the NCCL
// group of PyTorch 2.15, which still reads the old names of its own variables with a warning.
constexpr Mistaken kMistaken[] = {
    {"GLOO_IFNAME", "GLOO_SOCKET_IFNAME", "nothing reads it"},
    {"GLOO_SOCKET_IF_NAME", "GLOO_SOCKET_IFNAME", "nothing reads it"},
    {"NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", kOld},
    {"NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", kOld},
    {"NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE", kNoOne},
    {"NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS", kNoOne},
    {"NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG", kOld},
    {"NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING", kOld},
    {"NCCL_IB_DISABLED", "NCCL_IB_DISABLE", kNoOne},
    {"NCCL_IB_GID", "NCCL_IB_GID_INDEX", kNoOne},
    {"NCCL_IB_HCAS", "NCCL_IB_HCA", kNoOne},
    {"NCCL_IFNAME", "NCCL_SOCKET_IFNAME", kNoOne},
    {"NCCL_NSOCKS_PER_THREAD", "NCCL_NSOCKS_PERTHREAD", kNoOne},
    {"NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE", kNoOne},
    {"NCCL_SHM_DISABLED", "NCCL_SHM_DISABLE", kNoOne},
    {"NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME", kNoOne},
    {"NCCL_SOCKET_IF_NAME", "NCCL_SOCKET_IFNAME", kNoOne},
    {"NCCL_SOCKET_INTERFACE", "NCCL_SOCKET_IFNAME", kNoOne},
    {"NCCL_TIMEOUT", nullptr,
     "neither NCCL nor PyTorch reads it; a group's time-out is init_process_group(timeout=...)"},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", kNoOne},
    {"TORCH_NCCL_TIMEOUT", nullptr,
     "neither NCCL nor PyTorch reads it; a group's time-out is init_process_group(timeout=...)"},
    {"TP_SOCKET_IF_NAME", "TP_SOCKET_IFNAME", "nothing reads it"},
};

}  // namespace

std::vector<std::string> NotesOnVariables(const EnvironmentMap& environment) {
  std::vector<std::string> notes;
  for (const Mistaken& entry : kMistaken) {
    if (FindVariable(environment, entry.name) == nullptr) continue;
    if (entry.meant == nullptr) {
      notes.push_back(absl::StrCat(entry.name, " has no effect: ", entry.why));
    } else if (entry.why == kOld) {
      notes.push_back(absl::StrCat(entry.name, ": set ", entry.meant, " instead, ", entry.why));
    } else {
      notes.push_back(
          absl::StrCat(entry.name, " has no effect: ", entry.why, "; ", entry.meant, " is meant?"));
    }
  }
  return notes;
}

}  // namespace muster::launcher
