// What the hang watch of a node has said of hangs.
//
// Pure values.
#pragma once

#include <string>

#include "proto/base/mono_time.h"
#include "rendezvous/verdict/watch_messages.h"

namespace muster::agent {

// What the watch has said, for the diary.
enum class WatchEvent { kNotice, kGoesOn, kVerdict, kSlow, kAbort };

struct HangsSaid {
  int num_notices = 0;
  int notice = 0;  // the one whose stacks are being read; 0: none
  verdict::StandingKind standing = verdict::StandingKind::kNone;
  std::string text;  // of what stands
  MonoTime at;
};

}  // namespace muster::agent
