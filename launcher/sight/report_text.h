// A job's history as one page of text.
//
// Threads: pure.
#pragma once

#include <string>

#include "launcher/sight/job_history.h"

namespace muster::launcher {

// The most rounds, failures or notices that the text lists, as many as a page shows; how many more
// there are is said.
inline constexpr size_t kReportLinesMax = 12;

std::string ReportText(const JobHistory& job);

// "ended well after 1m12s", "failed with exit code 7 after 1m12s: …", "has no end: …".
std::string OutcomeInWords(const JobHistory& job);
// "2026-11-25 13:00:05 UTC".
std::string TimeInWords(const JobHistory& job, double at);
// "2 kept, 1 forked, back after 0.20s": where the workers of a round had their processes from, and
// how long after the round before broke off they ran. "": it is the first, or no diary tells.
std::string StartsInWords(const RoundHistory& round);
// What the nodes' time that was no goodput was spent on, the most first: "hung 8.2s", on average of
// the nodes.
std::vector<std::string> LostInWords(const JobHistory& job);
// Events of these kinds, by time.
std::vector<JobEvent> EventsOf(const JobHistory& job, const std::vector<std::string>& kinds);

}  // namespace muster::launcher
