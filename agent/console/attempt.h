// An attempt knows its workers, decides where their streams are to go, and makes the files for
// them.
//
// Loop thread only.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/console/attempt_files.h"
#include "agent/console/line_format.h"
#include "agent/console/log_pump.h"
#include "agent/console/log_routing.h"
#include "agent/console/output_file.h"
#include "agent/process/file_writer.h"

namespace muster::agent {

// One of the two streams of a worker.
struct AttemptStream {
  StreamRoute route;
  std::string prefix;
  std::optional<OutputFile> file;  // with kFile, its descriptor is the worker's alone
};

struct AttemptWorker {
  PumpedWorker who;
  std::string directory;
  std::array<AttemptStream, 2> streams;
  OutputTail tail;
  bool is_open = false;     // its process has its streams
  bool takes_keys = false;  // its standard input is its terminal

  AttemptStream& of(ConsoleStream stream) { return streams[Index(stream)]; }
  const AttemptStream& of(ConsoleStream stream) const { return streams[Index(stream)]; }
  std::string LogFile(ConsoleStream stream) const;
  std::string ErrorFile() const { return directory + "/error.json"; }
};

// What an attempt that is being opened makes of one worker.
struct WorkerPlan {
  PumpedWorker who;
  std::array<StreamRoute, 2> routes;
  std::array<std::string, 2> prefixes;

  const StreamRoute& route(ConsoleStream stream) const { return routes[Index(stream)]; }
  void Follow(AttemptWorker& worker) const;
};

class Attempt {
 public:
  // `options` outlive this.
  explicit Attempt(const LogPumpOptions& options);

  // Paths and workers are those of the new attempt from now on. Those of the attempt before have
  // been closed, but for kept ones, which go on as they are until they follow a plan.
  void Begin(int number, const std::vector<PumpedWorker>& who);
  // Shapes: facts [ConsoleStream]; result [workers().size()], in their order.
  std::vector<WorkerPlan> Plan(const std::vector<PumpedWorker>& who,
                               const std::array<ConsoleFacts, 2>& facts) const;

  // Files are keyed by their paths.
  using OpenFiles = std::map<std::string, OutputFile>;
  // Makes directories and files, and gives error files of earlier rounds another name; for aside.
  std::function<absl::StatusOr<OpenFiles>()> Maker(const std::vector<WorkerPlan>& plans) const;

  const std::vector<std::unique_ptr<AttemptWorker>>& workers() const { return workers_; }
  // It is null where there is none.
  const AttemptWorker* Find(LocalRank local_rank) const;

  // Filtered lines of kept workers go to the files of the attempt before while another is being
  // opened.
  AttemptFiles& shared() { return shared_; }
  const LogFolder& folder() const { return folder_; }
  FileWriter& writer() const { return *writer_; }
  const std::shared_ptr<FileWriter>& shared_writer() const { return writer_; }

 private:
  // What is made aside, and its directories.
  struct Paths {
    std::vector<std::string> directories;
    std::vector<std::string> files;
    std::optional<std::pair<std::string, std::string>> about;  // a path and its text
    std::vector<std::string> former_errors;                    // of earlier rounds
    std::string former_error_name;                             // that they get
  };
  Paths List(const std::vector<WorkerPlan>& plans) const;
  std::string About(const std::vector<WorkerPlan>& plans) const;
  static absl::StatusOr<OpenFiles> Make(const LogFolder& folder, const Paths& paths,
                                        const std::shared_ptr<FileWriter>& writer);

  const LogPumpOptions& options_;
  const LogFolder folder_;
  const std::shared_ptr<FileWriter> writer_ = std::make_shared<FileWriter>();
  std::vector<std::unique_ptr<AttemptWorker>> workers_;
  AttemptFiles shared_;
};

}  // namespace muster::agent
