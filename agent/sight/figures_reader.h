// Reads the figures of this node, its workers and its GPUs (rendezvous/status/figures.h): from
// /proc and through NVML.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/machine/nvml.h"
#include "proto/base/mono_time.h"
#include "rendezvous/status/figures.h"

namespace muster::agent {

// How long it is waited for: less than the server gives (TimeFor).
inline constexpr absl::Duration kFiguresPatience = absl::Milliseconds(1500);

struct FiguresOptions {
  std::string proc = "/proc";
  std::string nvml = kNvmlLibrary;
};

// Rates are those since the read before, and of the first one none.
//
// Threads: safe; blocks for as long as a driver or the files do, so not on the loop.
class FiguresReader {
 public:
  explicit FiguresReader(FiguresOptions options = {});
  ~FiguresReader();

  // `ranks` with what is known of them otherwise; `kernel_lines` of the round name Xids. What the
  // kernel and the driver tell is filled in.
  status::FiguresOfNode Read(std::vector<status::RankFigures> ranks,
                             const std::vector<std::string>& kernel_lines, MonoTime now);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace muster::agent
