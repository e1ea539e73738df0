#include "agent/console/attempt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// The job goes on without it.
void WriteAbout(const UniqueFd& file, const std::pair<std::string, std::string>& about) {
  const auto& [path, text] = about;
  const ssize_t put = ::write(file.get(), text.data(), text.size());
  if (put == static_cast<ssize_t>(text.size())) return;
  log::Write(log::Level::kWarning, "log_file_failed",
             absl::StrCat(LogPathError("write", path, put < 0 ? errno : ENOSPC).message(),
                          "; nothing there says whose logs these are"),
             {{"path", path}});
}

}  // namespace

std::string AttemptWorker::LogFile(ConsoleStream stream) const {
  return absl::StrCat(directory, "/", LogFileName(stream));
}

void WorkerPlan::Follow(AttemptWorker& worker) const {
  worker.who = who;
  for (const ConsoleStream stream : kConsoleStreams) {
    worker.of(stream).route = routes[Index(stream)];
    worker.of(stream).prefix = prefixes[Index(stream)];
  }
}

Attempt::Attempt(const LogPumpOptions& options)
    : options_(options), folder_(options.run_directory, options.topmost_directory) {}

void Attempt::Begin(int number, const std::vector<PumpedWorker>& who) {
  shared_.Begin(absl::StrCat(options_.run_directory, "/attempt_", number));
  std::vector<std::unique_ptr<AttemptWorker>> before = std::exchange(workers_, {});
  for (const PumpedWorker& one : who) {
    if (one.is_kept) {
      const auto found = absl::c_find_if(before, [&](const auto& worker) {
        return worker != nullptr && worker->who.local_rank == one.local_rank;
      });
      MUSTER_CHECK(found != before.end() && (*found)->is_open);
      workers_.push_back(std::move(*found));
      continue;
    }
    auto worker = std::make_unique<AttemptWorker>();
    worker->who = one;
    worker->directory = absl::StrCat(shared_.directory(), "/", one.local_rank.value());
    workers_.push_back(std::move(worker));
  }
}

std::vector<WorkerPlan> Attempt::Plan(const std::vector<PumpedWorker>& who,
                                      const std::array<ConsoleFacts, 2>& facts) const {
  std::vector<WorkerPlan> plans(who.size());
  for (const ConsoleStream stream : kConsoleStreams) {
    const ConsoleFacts& its = facts[Index(stream)];
    const std::vector<StreamRoute> routes = DecideRoutes(options_.logs, stream, who, its);
    for (size_t i = 0; i < who.size(); ++i) {
      plans[i].who = who[i];
      plans[i].routes[Index(stream)] =
          who[i].is_kept ? ContinueRoute(workers_[i]->of(stream).route, routes[i]) : routes[i];
      plans[i].prefixes[Index(stream)] =
          MakeLinePrefix(PrefixTemplate(options_.logs, stream, who[i], its),
                         {options_.host, options_.role, who[i].rank, who[i].local_rank});
    }
  }
  return plans;
}

Attempt::Paths Attempt::List(const std::vector<WorkerPlan>& plans) const {
  Paths paths;
  const std::string& directory = shared_.directory();
  paths.directories.push_back(directory);
  paths.former_error_name =
      absl::StrCat("error_before_", directory.substr(directory.rfind('/') + 1), ".json");
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].who.is_kept) {
      paths.former_errors.push_back(workers_[i]->ErrorFile());
      continue;
    }
    paths.directories.push_back(workers_[i]->directory);
    for (const ConsoleStream stream : kConsoleStreams) {
      if (plans[i].route(stream).to_file) paths.files.push_back(workers_[i]->LogFile(stream));
    }
  }
  for (const ConsoleStream stream : kConsoleStreams) {
    const bool is_filtered = absl::c_any_of(
        plans, [&](const WorkerPlan& plan) { return plan.route(stream).to_filtered; });
    if (is_filtered) paths.files.push_back(shared_.FilteredPath(stream));
  }
  if (options_.has_hook) paths.files.push_back(shared_.HookPath());
  if (!options_.logs.log_dir.empty()) paths.about = {shared_.AboutPath(), About(plans)};
  return paths;
}

std::string Attempt::About(const std::vector<WorkerPlan>& plans) const {
  nlohmann::ordered_json about = {{"schema", 1}, {"node", options_.host}};
  for (const WorkerPlan& plan : plans) about["ranks"].push_back(plan.who.rank.value());
  return about.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::function<absl::StatusOr<Attempt::OpenFiles>()> Attempt::Maker(
    const std::vector<WorkerPlan>& plans) const {
  return [folder = folder_, paths = List(plans), writer = writer_] {
    return Make(folder, paths, writer);
  };
}

absl::StatusOr<Attempt::OpenFiles> Attempt::Make(const LogFolder& folder, const Paths& paths,
                                                 const std::shared_ptr<FileWriter>& writer) {
  for (const std::string& directory : paths.directories) {
    MUSTER_RETURN_IF_ERROR(folder.OpenDirectory(directory).status());
  }
  OpenFiles files;
  for (const std::string& path : paths.files) {
    MUSTER_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Open(folder, path, writer));
    files.emplace(path, std::move(file));
  }
  for (const std::string& path : paths.former_errors) folder.Rename(path, paths.former_error_name);
  if (paths.about) {
    MUSTER_ASSIGN_OR_RETURN(const UniqueFd file,
                            folder.OpenFile(paths.about->first, O_WRONLY | O_CREAT | O_TRUNC));
    WriteAbout(file, *paths.about);
  }
  return files;
}

const AttemptWorker* Attempt::Find(LocalRank local_rank) const {
  for (const auto& worker : workers_) {
    if (worker->who.local_rank == local_rank) return worker.get();
  }
  return nullptr;
}

}  // namespace muster::agent
