// What acts within workers that use torch.distributed, without a change to their program:
// torch_hook.py, which the build puts into the agent, as sitecustomize.py of the workers' Python.
// It has their groups meet at the launcher's store (torch_store/README.md), and PyTorch's own
// worker server started.
//
// PyTorch's server answers for a rank from a thread of its own that needs no Python, so also while
// the rank hangs: see torch_records.h for what it says.
//
// Source: torch 2.15, torch/distributed/elastic/control_plane.py (the server; differs: the socket
// is named by MUSTER_TORCH_SERVER, so that a program's own worker_main() gets another).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/ids.h"

namespace muster::agent {

// How the hook names its thread to the kernel.
inline constexpr char kTorchHookThread[] = "muster_hook";

// Writes the hook, and the warm process's part of it (warm_python.py), into `runtime_directory` and
// returns the folder for the workers' PYTHONPATH.
//
// Errors: kUnavailable with errno in words: it cannot be written.
absl::StatusOr<std::string> WriteTorchHook(const std::string& runtime_directory);

// The socket at which the worker of `local_rank` serves in `round`; a place of its own each time.
// Empty if the path would be too long for a Unix socket.
std::string TorchServerPath(const std::string& runtime_directory, Round round, int local_rank);
// The socket beside it at which a thread of its Python tells what only Python knows.
std::string TorchPythonPath(const std::string& server_path);
// The file beside it in which a process that has ended by an exception has left its server's answer
// to fr_trace_json, as it came (torch_socket.h).
std::string TorchLastWordsPath(const std::string& server_path);

}  // namespace muster::agent
