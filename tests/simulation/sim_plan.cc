#include "tests/simulation/sim_plan.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster::simulation {
namespace {

constexpr SimFamily kFamilies[] = {
    {"loss", &SimPlan::loss},
    {"duplication", &SimPlan::duplication},
    {"reorder", &SimPlan::reorder},
    {"stream_breaks", &SimPlan::stream_breaks},
    {"crashes", &SimPlan::crashes},
    {"pauses", &SimPlan::pauses},
    {"slow_loops", &SimPlan::slow_loops},
    {"signals", &SimPlan::signals},
    {"cuts", &SimPlan::cuts},
    {"cuts_up", &SimPlan::cuts_up},
    {"cuts_down", &SimPlan::cuts_down},
    {"impostors", &SimPlan::impostors},
    {"guardian_losses", &SimPlan::guardian_losses},
    {"flapping", &SimPlan::flapping},
    {"storms", &SimPlan::storms},
    {"blackouts", &SimPlan::blackouts},
    {"server_crashes", &SimPlan::server_crashes},
    {"server_stalls", &SimPlan::server_stalls},
    {"disk_stalls", &SimPlan::disk_stalls},
    {"disk_damages", &SimPlan::disk_damages},
    {"clock_jumps", &SimPlan::clock_jumps},
    {"host_departures", &SimPlan::host_departures},
    {"stops", &SimPlan::stops},
    {"drains", &SimPlan::drains},
    {"port_failures", &SimPlan::port_failures},
    {"worker_failures", &SimPlan::worker_failures},
    {"stubborn_workers", &SimPlan::stubborn_workers},
    {"unkillable_workers", &SimPlan::unkillable_workers},
    {"liars", &SimPlan::liars},
    {"drifts", &SimPlan::drifts},
    {"hostile_members", &SimPlan::hostile_members},
    {"misfits", &SimPlan::misfits},
    {"late_deaths", &SimPlan::late_deaths},
    {"warnings", &SimPlan::warnings},
    {"forbidden_rounds", &SimPlan::forbidden_rounds},
    {"leftovers", &SimPlan::leftovers},
    {"death_notices", &SimPlan::death_notices},
    {"odd_requests", &SimPlan::odd_requests},
    {"deaths_in_stops", &SimPlan::deaths_in_stops},
    {"broken_pairs", &SimPlan::broken_pairs},
    {"lost_writes", &SimPlan::lost_writes},
    {"inquiries", &SimPlan::inquiries},
    {"failed_checks", &SimPlan::failed_checks},
};

// The most of each, in the order of kFamilies; the last five are drawn by themselves.
constexpr double kMost[] = {
    0.2,      0.3,       0.2,       1.0 / 30, 1.0 / 120, 1.0 / 60,  1.0 / 10, 1.0 / 300,
    1.0 / 60, 1.0 / 90,  1.0 / 90,  1.0 / 10, 1.0 / 300, 1.0 / 3,   1.0 / 30, 1.0 / 40,
    1.0 / 60, 1.0 / 30,  1.0 / 30,  0.3,      0.7,       1.0 / 200, 1.0 / 60, 1.0 / 30,
    0.05,     0.2,       0.3,       0.02,     0.3,       0.01,      0.5,      0.3,
    1.0,      1.0 / 200, 1.0 / 400, 0.5,      1.0,       0.3};
static_assert(std::size(kMost) + 5 == std::size(kFamilies));

ScaleUp DrawScaleUp(SimRandom& random) {
  const double kind = random.Unit();
  return kind < 0.2 ? ScaleUp::kNever : kind < 0.4 ? ScaleUp::kCheckpoint : ScaleUp::kNow;
}

absl::string_view InWords(ScaleUp scale_up) {
  return scale_up == ScaleUp::kNever        ? "never"
         : scale_up == ScaleUp::kCheckpoint ? "checkpoint"
                                            : "now";
}

SimJobPlan DrawJob(SimRandom& random) {
  SimJobPlan job;
  const bool is_large = random.Chance(0.1);
  const int min_nodes = is_large ? random.Between(4, 9) : random.Between(1, 4);
  const bool is_static = random.Chance(0.25);
  job.settings = {
      .min_nodes = min_nodes,
      .max_nodes = is_static ? min_nodes : min_nodes + random.Between(0, is_large ? 3 : 2),
      .max_restarts = random.Chance(0.1) ? 10 : random.Between(0, 3),
      .is_static = is_static,
      .join_timeout = absl::Seconds(60),
      .last_call_timeout = absl::Seconds(random.Between(1, 8)),
      .close_timeout = absl::Seconds(30),
      .shutdown_timeout = absl::Seconds(random.Between(2, 10)),
      .orphan_timeout = absl::Minutes(3),
      .scale_up = DrawScaleUp(random)};
  job.num_nodes = random.Between(job.settings.min_nodes, job.settings.max_nodes);
  job.num_late = is_static ? 0 : random.Between(0, 2);
  job.local_world_size = random.Between(1, 3);
  job.start_spread = absl::Seconds(random.Between(0, 20));
  job.work = absl::Seconds(random.Between(5, 60));
  job.is_endless = random.Chance(0.15);
  if (job.is_endless) job.work = absl::Hours(10);
  if (random.Chance(0.5)) job.checkpoint_every = absl::Seconds(random.Between(1, 15));
  if (random.Chance(0.7)) job.steps = random.Between(5, 40);
  // A drained node leaves after a step, which takes twelve seconds at most, on average.
  if (job.is_endless) job.steps *= 600;
  return job;
}

}  // namespace

absl::Span<const SimFamily> SimFamilies() { return kFamilies; }

SimPlan DrawPlan(SimRandom& random) {
  SimPlan plan;
  const int num_jobs = random.Chance(0.2) ? random.Between(2, 5) : 1;
  for (int i = 0; i < num_jobs; ++i) plan.jobs.push_back(DrawJob(random));
  plan.is_embedded = num_jobs == 1 && random.Chance(0.3);
  plan.is_durable = !plan.is_embedded && random.Chance(0.5);
  plan.delay_mean = absl::Milliseconds(random.Chance(0.2) ? 400 : random.Between(1, 50));
  plan.safety_phase = absl::Seconds(random.Between(30, 150));
  const double kind = random.Unit();
  const int single = random.Between(0, static_cast<int>(std::size(kMost)) - 1);
  for (size_t i = 0; i < std::size(kMost); ++i) {
    const bool is_drawn = random.Chance(0.35);
    const double rate = random.Unit() * kMost[i];
    const bool is_on = kind < 0.125 ? false : kind < 0.3 ? static_cast<int>(i) == single : is_drawn;
    plan.*kFamilies[i].rate = is_on ? rate : 0;
  }
  if (!plan.is_embedded) plan.host_departures = 0;
  if (!plan.is_durable) plan.disk_stalls = plan.disk_damages = plan.late_deaths = 0;
  if (num_jobs == 1) plan.hostile_members = 0;
  for (SimJobPlan& job : plan.jobs) job.survives = random.Chance(0.4);
  // Workers that wait for a check promise nothing, so that liars and survivors are left to others.
  if (random.Chance(0.1)) {
    plan.broken_pairs = 0.4 * random.Unit();
    plan.liars = 0;
    for (SimJobPlan& job : plan.jobs) job.survives = false;
  }
  // A stop that is agreed on and a death of the server meet too seldom by themselves.
  if (plan.is_durable && random.Chance(0.2)) {
    plan.stops = 1.0 / 40;
    plan.deaths_in_stops = random.Unit();
  }
  if (plan.is_durable && random.Chance(0.1)) plan.lost_writes = random.Unit();
  // What they are about must happen.
  if (random.Chance(0.2)) {
    plan.inquiries = random.Unit();
    plan.worker_failures = std::max(plan.worker_failures, 0.2);
  }
  if (random.Chance(0.2)) plan.failed_checks = 0.8 * random.Unit();
  return plan;
}

std::string ToString(const SimPlan& plan) {
  std::string text = plan.is_embedded  ? "embedded"
                     : plan.is_durable ? "musterd --state_dir"
                                       : "musterd";
  for (const SimJobPlan& job : plan.jobs) {
    absl::StrAppend(
        &text, " job{nodes=", job.num_nodes, "+", job.num_late, "x", job.local_world_size,
        " min=", job.settings.min_nodes, " max=", job.settings.max_nodes,
        " restarts=", job.settings.max_restarts, " static=", job.settings.is_static,
        " scale_up=", InWords(job.settings.scale_up),
        " checkpoints=", absl::FormatDuration(job.checkpoint_every), " steps=", job.steps,
        " survives=", job.survives, " endless=", job.is_endless, "}");
  }
  for (const SimFamily& family : kFamilies) {
    if (plan.*family.rate > 0) absl::StrAppend(&text, " ", family.name, "=", plan.*family.rate);
  }
  return text;
}

bool HasOnly(const SimPlan& plan, absl::Span<const char* const> names) {
  return std::all_of(std::begin(kFamilies), std::end(kFamilies), [&](const SimFamily& family) {
    const bool is_named = std::any_of(names.begin(), names.end(), [&](const char* name) {
      return absl::string_view(name) == family.name;
    });
    return is_named || plan.*family.rate == 0;
  });
}

}  // namespace muster::simulation
