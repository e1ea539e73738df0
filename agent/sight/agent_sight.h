// The ways to see from outside what goes on at an agent: its health, its part in what is asked
// about the job, its diary and its metrics (agent_sight.cc).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "agent/process/aside.h"
#include "agent/sight/diary_file.h"
#include "agent/sight/figures_reader.h"
#include "agent/sight/job_diary.h"
#include "agent/sight/log_followers.h"
#include "agent/sight/sight_desk.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/http_door.h"
#include "rendezvous/status/diary.h"

namespace muster::agent {

// Loop thread only.
struct AgentSight {
  AgentSight(asio::io_context& loop, SightSources sources, HttpDoor::Serve tell_metrics)
      : health(loop, [](const HttpRequest&, HttpDoor::Tell tell) { tell({.body = "alive\n"}); }),
        metrics(loop, std::move(tell_metrics)),
        desk(loop, std::move(sources)),
        diary_file(loop, files),
        diary([this](std::string line) { diary_file.Append(std::move(line)); }),
        next_steps(loop),
        logs(loop, files),
        log_followers(loop),
        figures(loop, Lane("figures")) {}
  AgentSight(const AgentSight&) = delete;
  AgentSight& operator=(const AgentSight&) = delete;

  HttpDoor health;  // answered by the agent's own loop, so that one that hangs gives no answer
  HttpDoor metrics;
  std::string metrics_token;  // empty: everyone who asks is told
  SightDesk desk;
  const Lane files{"logs"};  // a file system may be stuck
  DiaryFile diary_file;
  JobDiary diary;
  status::WorkerStarts starts;    // of this round, so far
  asio::steady_timer next_steps;  // of the diary
  Aside logs;
  LogFollowers log_followers;
  Aside figures;  // a driver may be stuck
  std::shared_ptr<FiguresReader> reader = std::make_shared<FiguresReader>();
  // Rates are since the last read, so that each who reads regularly has one of its own.
  std::shared_ptr<FiguresReader> metrics_reader = std::make_shared<FiguresReader>();
};

}  // namespace muster::agent
