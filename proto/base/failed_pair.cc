#include "proto/base/failed_pair.h"

namespace muster {
namespace {

struct FaultWord {
  PairFault fault;
  const char* word;
};
constexpr FaultWord kWords[] = {
    {PairFault::kNone, "reached"},     {PairFault::kRefused, "refused"},
    {PairFault::kNoRoute, "no route"}, {PairFault::kTimeOut, "time-out"},
    {PairFault::kMtu, "MTU"},
};

}  // namespace

std::string ToString(PairFault fault) {
  for (const FaultWord& entry : kWords) {
    if (entry.fault == fault) return entry.word;
  }
  return "?";
}

PairFault PairFaultOf(const std::string& word) {
  for (const FaultWord& entry : kWords) {
    if (entry.word == word) return entry.fault;
  }
  return PairFault::kTimeOut;
}

}  // namespace muster
