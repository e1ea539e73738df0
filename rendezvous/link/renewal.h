// What is said again in one word. In a job at rest every report and every answer repeats the last
// one; on the wire both become a number (proto/rendezvous.proto, Renewal and Repeat), each end
// filling in what it has kept of the stream.
//
// Threads: pure.
#pragma once

#include "proto/base/membership.h"

namespace muster::rendezvous {

// Whether `report` differs from `before` in its number only. One with failures is always said in
// full: their ages grow.
inline bool IsRenewalOf(const AgentReport& report, AgentReport before) {
  if (!report.failures.empty()) return false;
  before.sequence = report.sequence;
  return report == before;
}

// Whether `directive` differs from `before` in the numbers of itself and of the report that it
// answers only.
inline bool IsRepeatOf(const Directive& directive, const Directive& before) {
  return directive.term == before.term && directive.instance == before.instance &&
         directive.body == before.body;
}

}  // namespace muster::rendezvous
