// The status of a job as a screen of text, and as an exit code.
//
// Threads: pure.
#pragma once

#include <string>

#include "rendezvous/status/status_page.h"

namespace muster::launcher {

// What a text for people is as wide as.
inline constexpr size_t kTextColumns = 78;

// The status in at most 24 lines of 80 columns, but for texts that are longer: of the nodes those
// of whom there is most to say.
std::string StatusText(const status::StatusPage& page);
// One line for each job.
std::string JobListText(const status::JobList& list);

// See proto/base/exit_codes.h.
int ExitCodeOfHealth(const status::HealthOfJob& health);
// That of the worst; 0 if there is none.
int ExitCodeOfWorst(const status::JobList& list);

// "12s", "4m10s", "3h2m".
std::string ShortTime(double seconds);
// `text` in lines of at most `width` columns, each behind `indent`, the first without.
std::string Wrapped(const std::string& text, size_t width, const std::string& indent);
// "0-7", "3"; "-": none.
std::string RankRange(int first_rank, int num_ranks);

}  // namespace muster::launcher
