#include "launcher/hosts/host_ends.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/process_end.h"

namespace muster::launcher {
namespace {

// A job that ends is over on every host by then, but for workers that take their time to end.
constexpr absl::Duration kOthersMayTake = absl::Seconds(10);

}  // namespace

HostEnds::Orders HostEnds::OnEnd(const End& end, MonoTime now) {
  ++num_ended_;
  if (!end.was_greeted) return OnUnreachable(end);
  if (end.exit_code == kConnectionFailed) {
    return {.say = Line{.event = "connection_lost",
                        .text = absl::StrCat("lost the connection to ", end.host,
                                             "; its agent keeps running, but its output no longer "
                                             "appears here"),
                        .is_warning = true}};
  }
  has_finished_ = true;
  if (has_stopped_others_ || end.exit_code == 0) return {};
  if (worst_ == 0) {
    first_failure_ = absl::StrCat("the agent on ", end.host, " exited with ", end.exit_code);
    stop_others_at_ = now + kOthersMayTake;
  }
  worst_ = std::max(worst_, end.exit_code);
  return {};
}

HostEnds::Orders HostEnds::OnUnreachable(const End& end) {
  // The launcher has ended its ssh, or never started it.
  if (stop_signal_ != 0 || has_stopped_others_ || !unreachable_.empty()) return {};
  const std::string why = end.last_words.empty() ? "ssh exited without a message" : end.last_words;
  unreachable_ = absl::StrCat("cannot start an agent on ", end.host, ": ", why);
  return {.say = Line{.event = "unreachable",
                      .text = absl::StrCat(unreachable_,
                                           num_hosts_ > 1 ? "; stopping the others" : "")},
          .stops_others = true};
}

HostEnds::Orders HostEnds::OnTime(MonoTime now) {
  if (now < stop_others_at_) return {};
  stop_others_at_ = MonoTime::InfiniteFuture();
  if (stop_signal_ != 0 || HaveAllEnded()) return {};
  has_stopped_others_ = true;
  return {.say = Line{.event = "host_left",
                      .text = absl::StrCat(first_failure_, ", and the job needs all of its ",
                                           num_hosts_, " hosts; stopping the others")},
          .stops_others = true};
}

int HostEnds::ExitCode() const {
  if (!unreachable_.empty()) return kExitNodesMissing;
  if (has_finished_) return worst_;
  return stop_signal_ != 0 ? ExitCodeOfSignal(stop_signal_) : kExitFailure;
}

std::string HostEnds::Reason() const {
  if (!unreachable_.empty()) return unreachable_;
  if (stop_signal_ != 0) return absl::StrCat("got ", SignalInWords(stop_signal_));
  if (has_finished_) return first_failure_;
  return "lost the connection to every host";
}

}  // namespace muster::launcher
