#include "rendezvous/server/state_file.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "rendezvous/server/record_wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kApplicationId = 0x4d737472;  // "Mstr"
constexpr char kFileName[] = "musterd.db";
constexpr char kLockName[] = "musterd.lock";

constexpr char kSchema[] =
    "CREATE TABLE life (first_term INTEGER NOT NULL, term INTEGER NOT NULL);"
    "INSERT INTO life VALUES (0, 0);"
    "CREATE TABLE jobs (owner TEXT NOT NULL, run_id BLOB NOT NULL, instance INTEGER NOT NULL,"
    " round BLOB NOT NULL, progress BLOB NOT NULL, kept_at INTEGER NOT NULL, forget_at INTEGER,"
    " PRIMARY KEY (owner, run_id, instance));";

// A round that is absent stays as it is.
constexpr char kUpsert[] =
    "INSERT INTO jobs VALUES (?1, ?2, ?3, coalesce(?4, x''), ?5, ?6, ?7)"
    " ON CONFLICT (owner, run_id, instance) DO UPDATE SET round = coalesce(?4, round),"
    " progress = ?5, kept_at = ?6, forget_at = ?7";

// File systems whose locks and syncs are another machine's word (linux/magic.h, and their sources).
constexpr struct {
  uint32_t magic;
  const char* name;
} kNetworkFileSystems[] = {
    {0x6969, "NFS"},      {0xff534d42, "CIFS"},   {0xfe534d42, "SMB"},  {0x0bd00bd0, "Lustre"},
    {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"}, {0x00c36400, "Ceph"}, {0x01021997, "9p"},
};

absl::Status CheckLocal(const std::string& directory) {
  struct statfs about {};
  if (::statfs(directory.c_str(), &about) != 0) return absl::OkStatus();  // said when it is opened
  for (const auto& one : kNetworkFileSystems) {
    if (static_cast<uint32_t>(about.f_type) != one.magic) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--state_dir=", directory, " is on a network file system (", one.name,
                     "), which may lose what it says is written; give a local directory"));
  }
  return absl::OkStatus();
}

// One statement, reset and finalized by scope.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  int Step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  int64_t Number(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  }
  void Bind(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
  // `value` must outlive the next Step.
  void BindBytes(int index, const std::string& value) {
    sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_STATIC);
  }
  void BindText(int index, const std::string& value) {
    sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(const std::string& directory,
                                                           int64_t unix_millis, MonoTime now) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("cannot make --state_dir=", directory, ": ", std::strerror(errno)));
  }
  MUSTER_RETURN_IF_ERROR(CheckLocal(directory));
  const std::string lock_path = absl::StrCat(directory, "/", kLockName);
  std::unique_ptr<StateFile> file(new StateFile(absl::StrCat(directory, "/", kFileName)));
  file->lock_ =
      UniqueFd(::open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file->lock_) {
    const int error = errno;
    const std::string text =
        absl::StrCat("cannot use --state_dir=", directory, ": ", std::strerror(error));
    return error == ENOTDIR ? absl::InvalidArgumentError(text) : absl::UnavailableError(text);
  }
  if (::flock(file->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another musterd uses --state_dir=", directory, "; end it, or give another"));
  }
  MUSTER_RETURN_IF_ERROR(file->OpenDatabase());
  MUSTER_RETURN_IF_ERROR(file->CheckFormat());
  MUSTER_RETURN_IF_ERROR(file->Load(unix_millis, now));
  MUSTER_RETURN_IF_ERROR(file->BeginLife(unix_millis));
  return file;
}

StateFile::~StateFile() { sqlite3_close(db_); }

absl::Status StateFile::OpenDatabase() {
  constexpr int kFlags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path_.c_str(), &db_, kFlags, nullptr) != SQLITE_OK) return Explain("open");
  sqlite3_extended_result_codes(db_, 1);
  Statement check(db_, "PRAGMA quick_check(1)");
  if (check.Step() != SQLITE_ROW) return Explain("read");
  const std::string found = check.Bytes(0);
  if (found != "ok") {
    return absl::DataLossError(absl::StrCat(
        path_, " is damaged (", found,
        "). Move it away and start again: agents that still run a round then run on, and their "
        "jobs are formed anew when it ends"));
  }
  return absl::OkStatus();
}

absl::Status StateFile::CheckFormat() {
  MUSTER_ASSIGN_OR_RETURN(const int64_t format, Number("PRAGMA user_version"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t application, Number("PRAGMA application_id"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t tables, Number("SELECT count(*) FROM sqlite_schema"));
  if (tables != 0 && application != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " is a database, but none of musterd's; give --state_dir another directory"));
  }
  if (format > kStateFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " was written by a newer muster (format ", format, "; this one knows ",
                     kStateFormat, "). Start that version, or give --state_dir another directory"));
  }
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  if (tables != 0) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  MUSTER_RETURN_IF_ERROR(Execute(kSchema));
  MUSTER_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA application_id=", kApplicationId,
                                              "; PRAGMA user_version=", kStateFormat, "; COMMIT")
                                     .c_str()));
  return absl::OkStatus();
}

absl::Status StateFile::Load(int64_t unix_millis, MonoTime now) {
  Statement rows(db_,
                 "SELECT owner, run_id, instance, round, progress, kept_at, forget_at FROM jobs"
                 " ORDER BY owner, run_id, instance");
  int result = SQLITE_ROW;
  while ((result = rows.Step()) == SQLITE_ROW) {
    const int64_t forget_at = rows.Number(6);
    if (forget_at != 0 && forget_at <= unix_millis) continue;
    KeptJob job{.key = {rows.Bytes(0), rows.Bytes(1)}, .instance = Instance(rows.Number(2))};
    // A wall clock that went back makes a record no younger than now.
    const int64_t age = std::max<int64_t>(0, unix_millis - rows.Number(5));
    auto record = DecodeRecord(rows.Bytes(3), rows.Bytes(4), now - absl::Milliseconds(age));
    if (!record.ok()) {
      return absl::DataLossError(absl::StrCat(
          "the record of job '", job.key.run_id, "' in ", path_, " is damaged: ",
          record.status().message(), ". Move the file away and start again: agents that still run ",
          "a round then run on, and their jobs are formed anew when it ends"));
    }
    job.record = *std::move(record);
    contents_.jobs.push_back(std::move(job));
  }
  return result == SQLITE_DONE ? absl::OkStatus() : Explain("read");
}

// Writing the term first also shows that the file can be written at all.
absl::Status StateFile::BeginLife(int64_t unix_millis) {
  MUSTER_ASSIGN_OR_RETURN(const int64_t before, Number("SELECT term FROM life"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t first, Number("SELECT first_term FROM life"));
  contents_.term = ServerTerm(std::max(TermOfStart(unix_millis).value(), before + 1));
  contents_.first_term = first == 0 ? contents_.term : ServerTerm(first);
  return Execute(absl::StrCat("UPDATE life SET term = ", contents_.term.value(),
                              ", first_term = ", contents_.first_term.value())
                     .c_str());
}

absl::Status StateFile::Write(const std::vector<KeptChange>& changes, int64_t unix_millis) {
  MUSTER_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status;
  for (const KeptChange& change : changes) {
    if (status.ok()) status = Store(change, unix_millis);
  }
  if (status.ok()) {
    status = Execute(absl::StrCat("DELETE FROM jobs WHERE forget_at <= ", unix_millis).c_str());
  }
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status StateFile::Store(const KeptChange& change, int64_t unix_millis) {
  Statement upsert(db_, kUpsert);
  upsert.BindText(1, change.key.owner);
  upsert.BindBytes(2, change.key.run_id);
  upsert.Bind(3, change.instance.value());
  if (change.round) upsert.BindBytes(4, *change.round);
  upsert.BindBytes(5, change.progress);
  upsert.Bind(6, unix_millis);
  if (change.forget_after) {
    upsert.Bind(7, unix_millis + absl::ToInt64Milliseconds(*change.forget_after));
  }
  return upsert.Step() == SQLITE_DONE ? absl::OkStatus() : Explain("write");
}

absl::Status StateFile::Execute(const char* sql) {
  const int result = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return result == SQLITE_OK ? absl::OkStatus() : Explain("write");
}

absl::StatusOr<int64_t> StateFile::Number(const char* sql) {
  Statement statement(db_, sql);
  if (statement.Step() != SQLITE_ROW) return Explain("read");
  return statement.Number(0);
}

absl::Status StateFile::Explain(const char* what) const {
  const int code = sqlite3_errcode(db_);
  const int system_error = sqlite3_system_errno(db_);
  const bool is_system = system_error != 0 && code != SQLITE_FULL;
  const std::string text =
      absl::StrCat("cannot ", what, " ", path_, ": ", sqlite3_errmsg(db_),
                   is_system ? absl::StrCat(" (", std::strerror(system_error), ")") : "");
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
    return absl::DataLossError(absl::StrCat(
        text,
        ". Move it away and start again: agents that still run a round then run on, and their "
        "jobs are formed anew when it ends"));
  }
  return absl::UnavailableError(text);
}

}  // namespace muster::rendezvous
