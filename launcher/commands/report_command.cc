// `muster report` and `muster explain`: what a job has left, read on this machine.
#include "launcher/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/sight.h"
#include "launcher/sight/incident_text.h"
#include "launcher/sight/job_history.h"
#include "launcher/sight/report_html.h"
#include "launcher/sight/report_text.h"
#include "launcher/sight/report_trace.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/command_line.h"
#include "proto/command_line/values.h"
#include "proto/io/metrics_token.h"
#include "proto/io/read_file.h"
#include "proto/io/user_secret.h"

namespace muster::launcher {
namespace {

namespace fs = std::filesystem;
using command_line::Into;
using command_line::ParseName;

constexpr uintmax_t kFileBytesMax = uintmax_t{32} << 20;
constexpr char kReportUsage[] =
    "usage: muster report [options] DIR\n"
    "       muster report --log_dir=DIR [options] JOB\n"
    "\n"
    "What happened in a job that kept its logs (muster run --log_dir=DIR): goodput and lost time,\n"
    "restarts and who caused them, hangs and aborts, slow ranks. DIR is that folder, or one of "
    "the\n"
    "folders in it; of several jobs it reports the newest, or JOB (--rdzv_id). The folders of all\n"
    "nodes of the job that lie there are put together.\n";
constexpr char kExplainUsage[] =
    "usage: muster explain FILE\n"
    "\n"
    "What an incident file says, in prose: hang_*.json and abort_*.json, which an agent writes\n"
    "into the folder of the job's logs.\n";
constexpr char kTokenUsage[] =
    "usage: muster metrics_token\n"
    "\n"
    "Prints the token that a Prometheus shows where metrics are served (muster run --metrics,\n"
    "musterd --metrics): for `credentials` of `authorization` in its configuration. It is derived\n"
    "from your secret ($MUSTER_TOKEN, $MUSTER_TOKEN_FILE, ~/.config/muster/token), which cannot "
    "be\n"
    "computed from it, and opens nothing else.\n";

struct ReportFlags {
  std::string log_dir;
  std::string html;
  std::string trace;
  std::string words;  // DIR or JOB
};

absl::StatusOr<std::string> ReadRegular(const fs::path& path) {
  std::error_code error;
  const uintmax_t size = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
  if (error || !fs::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path.native(), " is not a file"));
  }
  if (size > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.native(), " is too large: ", size, " bytes"));
  }
  return ReadFile(path);
}

bool IsIncident(const std::string& name) {
  return absl::EndsWith(name, ".json") &&
         (absl::StartsWith(name, "hang_") || absl::StartsWith(name, "abort_"));
}

NodeFiles ReadNode(const fs::path& folder) {
  NodeFiles files;
  if (auto diary = ReadRegular(folder / status::kDiaryName); diary.ok()) files.diary = *diary;
  for (const std::string& name : NamesIn(folder)) {
    if (!IsIncident(name)) continue;
    const fs::path path = folder / name;
    const absl::StatusOr<std::string> text = ReadRegular(path);
    if (!text.ok()) continue;
    absl::StatusOr<IncidentSummary> incident = SummaryOfIncident(*text);
    if (!incident.ok()) continue;
    incident->file = path.native();
    files.incidents.push_back(*std::move(incident));
  }
  return files;
}

// What muster-train --trace has left in the folders of the job, or in the one above them.
std::vector<std::string> ReadSteps(const fs::path& directory,
                                   const std::vector<fs::path>& folders) {
  std::vector<std::string> steps;
  const auto read = [&](const fs::path& folder) {
    for (const std::string& name : NamesIn(folder)) {
      if (!absl::StartsWith(name, "steps_") || !absl::EndsWith(name, ".trace.json")) continue;
      if (absl::StatusOr<std::string> text = ReadRegular(folder / name); text.ok()) {
        steps.push_back(*std::move(text));
      }
    }
  };
  read(directory);
  for (const fs::path& folder : folders) {
    if (folder != directory) read(folder);
  }
  return steps;
}

// When a diary begins and ends, and of which job it is.
struct Life {
  fs::path folder;
  std::string run_id;
  int64_t from = 0;
  int64_t to = 0;
};

std::optional<Life> LifeOf(const fs::path& folder) {
  const absl::StatusOr<std::string> text = ReadRegular(folder / status::kDiaryName);
  if (!text.ok()) return std::nullopt;
  const auto diary = status::ParseDiary(*text);
  if (!diary.ok() || diary->empty()) return std::nullopt;
  return Life{.folder = folder,
              .run_id = diary->front().run_id,
              .from = diary->front().unix_millis,
              .to = diary->back().unix_millis};
}

std::string IsEmpty(const fs::path& diary) {
  return absl::StrCat(diary.native(),
                      " is empty: its disk was full when the job ran, or the job has just begun");
}

// The folders of the newest job there, or of the newest of that name: those of its run whose times
// overlap.
absl::StatusOr<std::vector<fs::path>> FindFolders(const fs::path& directory,
                                                  const std::string& job) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(directory.native(), " is not a folder"));
  }
  if (const fs::path diary = directory / status::kDiaryName; fs::exists(diary, error)) {
    if (fs::is_empty(diary, error) && !error) return absl::NotFoundError(IsEmpty(diary));
    return std::vector<fs::path>{directory};
  }
  std::vector<Life> lives;
  fs::path empty;
  for (const std::string& name : NamesIn(directory)) {
    const fs::path path = directory / name;
    std::optional<Life> life = LifeOf(path);
    if (life && (job.empty() || life->run_id == job)) lives.push_back(*std::move(life));
    const fs::path diary = path / status::kDiaryName;
    if (!life && fs::is_empty(diary, error) && !error) empty = diary;
  }
  if (lives.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "there is no diary of ", job.empty() ? "a job" : absl::StrCat("job '", job, "'"), " in ",
        directory.native(), "; ",
        empty.empty() ? "jobs that are started with --log_dir keep one there" : IsEmpty(empty)));
  }
  const Life newest =
      *absl::c_max_element(lives, [](const Life& a, const Life& b) { return a.from < b.from; });
  std::vector<fs::path> folders;
  for (const Life& life : lives) {
    const bool overlaps = life.from <= newest.to && newest.from <= life.to;
    if (life.run_id == newest.run_id && overlaps) folders.push_back(life.folder);
  }
  return folders;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<int> Report(const ReportFlags& flags) {
  const bool names_job = !flags.log_dir.empty();
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<fs::path> folders,
      FindFolders(names_job ? flags.log_dir : flags.words, names_job ? flags.words : ""));
  std::vector<NodeFiles> nodes;
  for (const fs::path& folder : folders) nodes.push_back(ReadNode(folder));
  MUSTER_ASSIGN_OR_RETURN(const JobHistory job, MakeHistory(nodes));
  if (!flags.html.empty()) MUSTER_RETURN_IF_ERROR(WriteFile(flags.html, ReportHtml(job)));
  if (!flags.trace.empty())
    MUSTER_RETURN_IF_ERROR(
        WriteFile(flags.trace,
                  ReportTrace(job, ReadSteps(names_job ? flags.log_dir : flags.words, folders))));
  return PrintText(ReportText(job), 0);
}

}  // namespace

int ReportCommand(const Invocation& invocation) {
  constexpr char kProgram[] = "muster report";
  ReportFlags flags;
  command_line::Grammar grammar{.program = kProgram, .usage = kReportUsage, .has_words = true};
  grammar.options = {
      {.name = "log_dir",
       .value_name = "DIR",
       .group = "The job",
       .help = "folder in which the newest job named JOB is looked for",
       .read = Into(ParseName, flags.log_dir)},
      {.name = "html",
       .value_name = "FILE",
       .group = "What is written",
       .help = "also write the report as one HTML page that needs nothing else",
       .read = Into(ParseName, flags.html)},
      {.name = "trace",
       .value_name = "FILE",
       .group = "What is written",
       .help = "also write a trace of the job's life, for ui.perfetto.dev or chrome://tracing",
       .read = Into(ParseName, flags.trace)},
  };
  const auto words = ReadWords(grammar, invocation, 1, "one folder, or one job beside --log_dir");
  if (!words.ok()) return PrintRefusal(kProgram, words.status());
  if (!*words) return 0;
  flags.words = (*words)->front();
  const absl::StatusOr<int> exit_code = Report(flags);
  return exit_code.ok() ? *exit_code : PrintRefusal(kProgram, exit_code.status());
}

int ExplainCommand(const Invocation& invocation) {
  constexpr char kProgram[] = "muster explain";
  const command_line::Grammar grammar{
      .program = kProgram, .usage = kExplainUsage, .has_words = true};
  const auto words = ReadWords(grammar, invocation, 1, "one incident file");
  if (!words.ok()) return PrintRefusal(kProgram, words.status());
  if (!*words) return 0;
  const absl::StatusOr<std::string> text = ReadRegular((*words)->front());
  if (!text.ok()) return PrintRefusal(kProgram, text.status());
  const absl::StatusOr<std::string> prose = ExplainIncident(*text);
  if (!prose.ok()) return PrintRefusal(kProgram, prose.status());
  return PrintText(*prose, 0);
}

int MetricsTokenCommand(const Invocation& invocation) {
  constexpr char kProgram[] = "muster metrics_token";
  const command_line::Grammar grammar{.program = kProgram, .usage = kTokenUsage};
  const auto line = command_line::Split(grammar, invocation.args, invocation.environment);
  if (!line.ok()) return PrintRefusal(kProgram, line.status());
  if (!line->print.empty()) return PrintText(line->print, 0);
  const auto secret = LoadUserSecret(SecretSourcesIn(invocation.environment));
  if (!secret.ok()) return PrintRefusal(kProgram, secret.status());
  return PrintText(DeriveMetricsToken(secret->secret) + "\n", 0);
}

}  // namespace muster::launcher
