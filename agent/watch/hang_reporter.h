// Says and writes what the hang watch of this node finds or is told: lines on the console, reports
// in the report directory, and a word to who keeps the diary.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "agent/watch/incident.h"
#include "agent/watch/report_file.h"
#include "agent/watch/watched_round.h"
#include "proto/base/mono_time.h"
#include "proto/io/log.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::agent {

// What the watch has said, for the diary.
enum class WatchEvent { kNotice, kGoesOn, kVerdict, kSlow, kAbort };
using OnWatchSaid = std::function<void(WatchEvent event, const std::string& text)>;

class HangReporter {
 public:
  // Writes its reports to `report_directory`, for `node` of the job `run_id`. `on_said` is called
  // with what was said, after it was said, unless it is empty.
  HangReporter(std::string run_id, std::string node, const std::string& report_directory,
               OnWatchSaid on_said);

  void StartRound(const WatchedRound& round);

  // Ranks wait for others.
  void SayNotice(const std::string& text, hangs::Finding finding);
  // What a notice or a verdict was about goes on. Nothing is said where neither stands.
  void SayRecovery(const std::string& text);
  void SaySlow(const hangs::SaySlow& order);
  void SayQuiet(bool is_over, const std::string& text) const;
  // Writes a report, too. Returns why workers are ended for it.
  std::string SayVerdict(const hangs::SayVerdict& order);
  // Writes a report, too.
  void SayAborts(const hangs::AbortReport& report);

  // What follows from the last hang, until its ranks are back in a step.
  void AddMilestone(absl::string_view what);
  // Ranks are in a step.
  void OnStep();

  // What was said last and stands.
  hangs::Standing standing() const;
  bool HasWritten() const { return reports_.HasNamed(); }

 private:
  Incident MakeIncident(const hangs::SayVerdict& order) const;
  void Stand(hangs::StandingKind kind, const std::string& text);
  void Write(log::Level level, absl::string_view event, const std::string& text) const;
  void Tell(WatchEvent event, const std::string& text) const;

  const std::string run_id_;
  const std::string node_;
  const OnWatchSaid on_said_;
  ReportWriter reports_;
  Round round_ = kNoRound;
  int restart_count_ = 0;
  std::function<std::vector<std::string>()> network_faults_;
  hangs::Standing standing_;
  MonoTime standing_since_;
  std::optional<Incident> incident_;  // the last hang, while something follows from it
  MonoTime detected_at_;
  std::string report_path_;
};

}  // namespace muster::agent
