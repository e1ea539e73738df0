// What the kernel said of this node's workers: why it has killed one, where one has faulted, and
// what the driver says of a GPU (Xid).
//
// Read from /dev/kmsg, which containers and unprivileged users often may not; then nothing is
// known.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// A fault that NVIDIA's driver has reported of a GPU.
struct Xid {
  std::string device;  // PCI address: "0000:3b:00"
  int number = 0;
  int pid = 0;       // of the process that used it; 0: not told
  std::string text;  // the rest
  friend bool operator==(const Xid&, const Xid&) = default;
};

// "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", in the
// forms of older and newer drivers.
//
// Threads: pure.
// Source: NVIDIA, "XID Errors" and "XID Catalog" (docs.nvidia.com/deploy/xid-errors).
std::optional<Xid> ParseXid(absl::string_view line);

// What to do about it: "the program's fault: restart it", "the GPU needs a reset", ...
std::string AdviceFor(const Xid& xid);

// Says in words which of `lines` name process `pid` as killed for memory or as faulting, and
// every Xid of it or of nobody that is named. Empty: none.
//
// Threads: pure.
std::string WhatTheKernelSays(const std::vector<std::string>& lines, int pid);

// The Xids of process `pid` alone, in the same words. Empty: none.
//
// Threads: pure.
std::string XidsOf(const std::vector<std::string>& lines, int pid);

// Every Xid that `lines` tell of, in the same words, each once.
//
// Threads: pure.
std::vector<std::string> AllXids(const std::vector<std::string>& lines);

// Threads: compatible.
class KernelLog {
 public:
  static KernelLog Open(const std::string& path = "/dev/kmsg");
  // Reading begins with what the kernel still has since it was booted.
  static KernelLog OpenWithPast(const std::string& path = "/dev/kmsg");

  bool is_readable() const { return static_cast<bool>(fd_); }

  // The newest few hundred lines since it was opened or told to forget.
  const std::vector<std::string>& Lines();
  void Forget();

 private:
  explicit KernelLog(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;  // empty: it cannot be read
  std::vector<std::string> lines_;
};

}  // namespace muster::agent
