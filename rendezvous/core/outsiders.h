// Nodes outside the round, counted or listed so that nobody has to look at all of a job
// (waiting_list.h keeps it).
//
// Plain values.
#pragma once

#include "absl/container/btree_set.h"
#include "proto/base/ids.h"

namespace muster::rendezvous {

struct Outsiders {
  int survivors_joined = 0;  // how many of JobState::joined are members of the last round
  // Members that have left the round and whose node check runs; it has not failed since.
  absl::btree_set<Incarnation> checking;
  absl::btree_set<Incarnation> unfit;  // nodes whose check has failed, and not passed since
};

}  // namespace muster::rendezvous
