// Values in which every field differs from its default. The structured bindings count the fields:
// one that is added to a struct fails to compile here until it is filled, and so is carried over
// the wire.
#pragma once

#include "proto/base/membership.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

inline RendezvousSettings FilledSettings() {
  RendezvousSettings value{2,
                           3,
                           4,
                           true,
                           absl::Seconds(5),
                           absl::Seconds(6),
                           absl::Seconds(7),
                           absl::Seconds(8),
                           absl::Seconds(9),
                           ScaleUp::kNever,
                           76};
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
  return value;
}

inline NodeDescription FilledNode() {
  NodeDescription value{"node2", "10.0.0.2", 2, "trainer", 1, 3001, {3002, 3003}, {"10.1.0.2"}};
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h] = value;
  return value;
}

inline WorkerFailure FilledFailure() {
  WorkerFailure value{Rank(1),
                      LocalRank(2),
                      NodeRank(3),
                      "node2",
                      4,
                      5,
                      6,
                      true,
                      true,
                      "message",
                      "rank 2",
                      "/tmp/file",
                      "output",
                      int64_t{123},
                      absl::Microseconds(7)};
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
  return value;
}

inline FencedReport FilledReport() {
  AgentReport value{9,
                    AgentPhase::kLeaving,
                    Round(8),
                    Instance(7),
                    3,
                    JobPast{4, 1},
                    FilledNode(),
                    FilledSettings(),
                    {FilledFailure()},
                    {11, 12},
                    Departure{15, true, "asked to", 4},
                    int64_t{41},
                    StopWish{15, true, "its time is up"},
                    {FailedPair{1, 2, PairFault::kMtu}},
                    CheckState{"GPU 3 is gone"}};
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
  return {Incarnation(0x1234), ServerTerm(2), value};
}

inline Assignment FilledAssignment() {
  Assignment value{Round(1),    Instance(2),
                   NodeRank(3), 4,
                   Rank(5),     6,
                   7,           8,
                   9,           10,
                   11,          "10.0.0.1",
                   2900,        {{"node1", "10.0.0.1", 2, {41, 42}, {"10.1.0.1"}}},
                   "last call"};
  [[maybe_unused]] const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
  return value;
}

}  // namespace muster::rendezvous
