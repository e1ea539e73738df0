#include "rendezvous/server/state_file.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "rendezvous/core/round_restore.h"
#include "rendezvous/server/log_damage.h"
#include "rendezvous/server/record_wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kApplicationId = 0x4d737472;  // "Mstr"
constexpr char kFileName[] = "musterd.db";
constexpr char kLockName[] = "musterd.lock";

constexpr char kSchema[] =
    "CREATE TABLE life (first_term INTEGER NOT NULL, term INTEGER NOT NULL, sum INTEGER);"
    "INSERT INTO life VALUES (0, 0, NULL);"
    "CREATE TABLE jobs (owner TEXT NOT NULL, run_id BLOB NOT NULL, instance INTEGER NOT NULL,"
    " round BLOB NOT NULL, progress BLOB NOT NULL, kept_at INTEGER NOT NULL, forget_at INTEGER,"
    " round_sum INTEGER, progress_sum INTEGER, PRIMARY KEY (owner, run_id, instance));";

// Adds the columns that tables of format 1 lack. Tables of a format are never changed, but for new
// columns at their end.
constexpr char kAddSums[] =
    "ALTER TABLE life ADD COLUMN sum INTEGER;"
    "ALTER TABLE jobs ADD COLUMN round_sum INTEGER;"
    "ALTER TABLE jobs ADD COLUMN progress_sum INTEGER;";

// A round that is absent stays as it is.
constexpr char kUpsert[] =
    "INSERT INTO jobs VALUES (?1, ?2, ?3, coalesce(?4, x''), ?5, ?6, ?7, coalesce(?8, ?10), ?9)"
    " ON CONFLICT (owner, run_id, instance) DO UPDATE SET round = coalesce(?4, round),"
    " progress = ?5, kept_at = ?6, forget_at = ?7, round_sum = coalesce(?8, round_sum),"
    " progress_sum = ?9";

constexpr char kLogSuffix[] = "-wal";
constexpr char kLogEndSuffix[] = "-end";
constexpr int kMaxLogFrames = 1000;  // then the log is begun again, as SQLite does by itself

// Called by SQLite once a transaction is in the log.
int OnCommitted(void* num_log_frames, sqlite3* db, const char* name, int num_frames) {
  *static_cast<int*>(num_log_frames) = num_frames;
  if (num_frames >= kMaxLogFrames) {
    sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  }
  return SQLITE_OK;
}

constexpr char kMoveAway[] =
    "Move it away and start again: agents finish their running rounds, and their jobs are then "
    "formed again";

// FNV-1a over fields and their lengths: any flipped bit changes it.
class Checksum {
 public:
  Checksum& Add(const std::string& field) {
    Add(static_cast<int64_t>(field.size()));
    for (const char c : field) Mix(static_cast<uint8_t>(c));
    return *this;
  }
  Checksum& Add(int64_t field) {
    for (int shift = 0; shift < 64; shift += 8) Mix(static_cast<uint64_t>(field) >> shift & 0xff);
    return *this;
  }
  int64_t value() const { return static_cast<int64_t>(sum_); }

 private:
  void Mix(uint64_t byte) { sum_ = (sum_ ^ byte) * 0x100000001b3; }
  uint64_t sum_ = 0xcbf29ce484222325;
};

Checksum SumOfKey(const JobKey& key, Instance instance) {
  return Checksum().Add(key.owner).Add(key.run_id).Add(instance.value());
}

int64_t SumOfRound(const JobKey& key, Instance instance, const std::string& round) {
  return SumOfKey(key, instance).Add(round).value();
}

// `forget_at` is 0 if there is none.
struct KeptProgress {
  std::string progress;
  int64_t kept_at = 0;
  int64_t forget_at = 0;
};

int64_t SumOfProgress(const JobKey& key, Instance instance, const KeptProgress& kept) {
  return SumOfKey(key, instance).Add(kept.progress).Add(kept.kept_at).Add(kept.forget_at).value();
}

std::string ReadWhole(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string bytes;
  char buffer[65536];
  for (ssize_t count = 0; file && (count = ::read(file.get(), buffer, sizeof(buffer))) > 0;) {
    bytes.append(buffer, static_cast<size_t>(count));
  }
  return bytes;
}

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
  bool IsNull(int column) { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
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
  if (file->format_ != 0) MUSTER_RETURN_IF_ERROR(file->Load(unix_millis, now));
  MUSTER_RETURN_IF_ERROR(file->ReadLife(unix_millis));
  const absl::Status begun = file->BeginLife();
  const bool may_heal = file->IsFull();  // what follows forgets the error
  file->RollBack();
  if (!begun.ok() && !may_heal) return begun;
  return file;
}

absl::StatusOr<StateFile::Identity> StateFile::IdentityOf(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return Identity{.device = about.st_dev, .inode = about.st_ino};
}

absl::Status StateFile::CheckThere() const {
  const absl::StatusOr<Identity> now = IdentityOf(path_);
  if (now.ok() && *now == identity_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path_, now.ok() ? " was replaced" : " was removed",
                   " while musterd uses it, so a restarted musterd would not know its jobs. "
                   "Put it back, or restart musterd: agents finish their running rounds, and "
                   "their jobs are then formed again"));
}

// The disk, or what the user may have of it; or it fails, and may come to itself.
bool StateFile::IsFull() const {
  const int code = sqlite3_errcode(db_) & 0xff, error = sqlite3_system_errno(db_);
  return code == SQLITE_FULL || code == SQLITE_IOERR || error == ENOSPC || error == EDQUOT ||
         error == EFBIG;
}

StateFile::~StateFile() { sqlite3_close(db_); }

absl::Status StateFile::OpenDatabase() {
  constexpr int kFlags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX;
  const std::string log_path = path_ + kLogSuffix, end_path = path_ + kLogEndSuffix;
  switch (JudgeLog(ReadWhole(log_path), DecodeLogEnd(ReadWhole(end_path)))) {
    case LogTail::kWhole:
      break;
    case LogTail::kTorn:
      contents_.note = absl::StrCat("the newest transaction in ", log_path,
                                    " is not whole, as after a crash while it was written; the "
                                    "state before it is used");
      break;
    case LogTail::kLost:
      return absl::DataLossError(absl::StrCat(
          log_path, " is damaged; what was written after the damage is lost. ", kMoveAway));
  }
  constexpr int kEndFlags = O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW;
  log_end_ = UniqueFd(::open(end_path.c_str(), kEndFlags, 0600));
  if (sqlite3_open_v2(path_.c_str(), &db_, kFlags, nullptr) != SQLITE_OK) return Explain("open");
  sqlite3_extended_result_codes(db_, 1);
  sqlite3_wal_hook(db_, OnCommitted, &num_log_frames_);
  // The mode is set before the first reading: a log is then read without an index in a file, which
  // a full disk cannot take.
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
  MUSTER_ASSIGN_OR_RETURN(identity_, IdentityOf(path_));
  Statement check(db_, "PRAGMA integrity_check(1)");
  if (check.Step() != SQLITE_ROW) return Explain("read");
  const std::string found = check.Bytes(0);
  if (found != "ok") {
    return absl::DataLossError(absl::StrCat(path_, " is damaged (", found, "). ", kMoveAway));
  }
  return absl::OkStatus();
}

absl::Status StateFile::CheckFormat() {
  MUSTER_ASSIGN_OR_RETURN(const int64_t format, Number("PRAGMA user_version"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t application, Number("PRAGMA application_id"));
  MUSTER_ASSIGN_OR_RETURN(const int64_t tables, Number("SELECT count(*) FROM sqlite_schema"));
  if (tables != 0 && application != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " is not a database of musterd; give --state_dir another directory"));
  }
  if (format > kStateFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " was written by a newer muster (format ", format, "; this one knows ",
                     kStateFormat, "). Start that version, or give --state_dir another directory"));
  }
  if (tables != 0 && format < 1) {
    return absl::DataLossError(
        absl::StrCat(path_, " is damaged (format ", format, "). ", kMoveAway));
  }
  format_ = tables == 0 ? 0 : format;
  return absl::OkStatus();
}

absl::Status StateFile::Load(int64_t unix_millis, MonoTime now) {
  const bool has_sums = format_ > 1;
  Statement rows(db_, has_sums
                          ? "SELECT owner, run_id, instance, round, progress, kept_at, forget_at,"
                            " round_sum, progress_sum FROM jobs ORDER BY owner, run_id, instance"
                          : "SELECT owner, run_id, instance, round, progress, kept_at, forget_at"
                            " FROM jobs ORDER BY owner, run_id, instance");
  int result = SQLITE_ROW;
  while ((result = rows.Step()) == SQLITE_ROW) {
    KeptJob job{.key = {rows.Bytes(0), rows.Bytes(1)}, .instance = Instance(rows.Number(2))};
    const std::string round = rows.Bytes(3);
    const KeptProgress kept{
        .progress = rows.Bytes(4), .kept_at = rows.Number(5), .forget_at = rows.Number(6)};
    const bool is_whole =
        !has_sums || (SumOfRound(job.key, job.instance, round) == rows.Number(7) &&
                      SumOfProgress(job.key, job.instance, kept) == rows.Number(8));
    if (is_whole && kept.forget_at != 0 && kept.forget_at <= unix_millis) continue;
    // A wall clock that went back makes a record no younger than now.
    const int64_t age = std::max<int64_t>(0, unix_millis - kept.kept_at);
    auto record = DecodeRecord(round, kept.progress, now - absl::Milliseconds(age));
    if (!is_whole || !record.ok()) {
      const std::string how =
          is_whole ? std::string(record.status().message()) : "its checksum does not match";
      return absl::DataLossError(absl::StrCat("the record of job '", job.key.run_id, "' in ", path_,
                                              " is damaged: ", how, ". ", kMoveAway));
    }
    job.record = *std::move(record);
    if (!contents_.note.empty()) SkipLostRounds(job.record);
    contents_.jobs.push_back(std::move(job));
  }
  return result == SQLITE_DONE ? absl::OkStatus() : Explain("read");
}

absl::Status StateFile::ReadLife(int64_t unix_millis) {
  int64_t before = 0, first = 0;
  if (format_ != 0) {
    Statement life(db_, format_ > 1 ? "SELECT term, first_term, sum FROM life"
                                    : "SELECT term, first_term, NULL FROM life");
    if (life.Step() != SQLITE_ROW) return Explain("read");
    before = life.Number(0);
    first = life.Number(1);
    const bool is_unused = before == 0 && first == 0 && life.IsNull(2);
    const bool is_whole =
        format_ == 1 || is_unused || life.Number(2) == Checksum().Add(before).Add(first).value();
    if (!is_whole) {
      return absl::DataLossError(
          absl::StrCat(path_, " is damaged: the checksum of its term does not match. ", kMoveAway));
    }
  }
  term_ = ServerTerm(std::max(TermOfStart(unix_millis).value(), before + 1));
  // What the newest transaction said may have been told, and is not known.
  const bool knows_all = first != 0 && contents_.note.empty();
  first_term_ = knows_all ? ServerTerm(first) : term_;
  contents_.term = term_;
  contents_.first_term = first_term_;
  return absl::OkStatus();
}

// Writing the term first also shows that the file can be written at all.
absl::Status StateFile::BeginLife() {
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  MUSTER_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  MUSTER_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status;
  if (format_ == 0) {
    status = Execute(absl::StrCat(kSchema, "PRAGMA application_id=", kApplicationId).c_str());
  } else if (format_ == 1) {
    status = AddChecksums();
  }
  if (status.ok() && first_term_ == term_) status = SkipRounds();
  const int64_t sum = Checksum().Add(term_.value()).Add(first_term_.value()).value();
  if (status.ok()) {
    status =
        Execute(absl::StrCat("PRAGMA user_version=", kStateFormat,
                             "; UPDATE life SET term = ", term_.value(),
                             ", first_term = ", first_term_.value(), ", sum = ", sum, "; COMMIT")
                    .c_str());
  }
  has_begun_ = status.ok();
  if (has_begun_) format_ = kStateFormat;
  if (has_begun_) NoteLogEnd();
  return status;
}

void StateFile::NoteLogEnd() const {
  LogEnd end{.salts = std::string(kLogSaltsBytes, 0),
             .num_frames = static_cast<uint64_t>(num_log_frames_)};
  const UniqueFd log(::open((path_ + kLogSuffix).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!log || !log_end_) return;
  if (::pread(log.get(), end.salts.data(), kLogSaltsBytes, kLogSaltsAt) != kLogSaltsBytes) return;
  const std::string bytes = Encode(end);
  [[maybe_unused]] const ssize_t count = ::pwrite(log_end_.get(), bytes.data(), bytes.size(), 0);
}

absl::Status StateFile::AddChecksums() {
  MUSTER_RETURN_IF_ERROR(Execute(kAddSums));
  Statement rows(db_,
                 "SELECT rowid, owner, run_id, instance, round, progress, kept_at, forget_at"
                 " FROM jobs");
  std::string updates;
  while (rows.Step() == SQLITE_ROW) {
    const JobKey key{rows.Bytes(1), rows.Bytes(2)};
    const Instance instance(rows.Number(3));
    const KeptProgress kept{
        .progress = rows.Bytes(5), .kept_at = rows.Number(6), .forget_at = rows.Number(7)};
    absl::StrAppend(&updates,
                    "UPDATE jobs SET round_sum = ", SumOfRound(key, instance, rows.Bytes(4)),
                    ", progress_sum = ", SumOfProgress(key, instance, kept),
                    " WHERE rowid = ", rows.Number(0), ";");
  }
  return updates.empty() ? absl::OkStatus() : Execute(updates.c_str());
}

absl::Status StateFile::SkipRounds() {
  std::vector<KeptChange> skipped;
  Statement rows(db_, "SELECT owner, run_id, instance, round, progress FROM jobs");
  while (rows.Step() == SQLITE_ROW) {
    auto record = DecodeRecord(rows.Bytes(3), rows.Bytes(4), MonoTime());
    if (!record.ok()) continue;  // its time is over, or Load would have said so
    SkipLostRounds(*record);
    skipped.push_back({.key = {rows.Bytes(0), rows.Bytes(1)},
                       .instance = Instance(rows.Number(2)),
                       .round = EncodeRound(*record)});
  }
  for (const KeptChange& one : skipped) {
    Statement update(db_,
                     "UPDATE jobs SET round = ?4, round_sum = ?5"
                     " WHERE owner = ?1 AND run_id = ?2 AND instance = ?3");
    update.BindText(1, one.key.owner);
    update.BindBytes(2, one.key.run_id);
    update.Bind(3, one.instance.value());
    update.BindBytes(4, *one.round);
    update.Bind(5, SumOfRound(one.key, one.instance, *one.round));
    if (update.Step() != SQLITE_DONE) return Explain("write");
  }
  return absl::OkStatus();
}

void StateFile::RollBack() {
  if (sqlite3_get_autocommit(db_) == 0) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
}

absl::Status StateFile::Write(const std::vector<KeptChange>& changes, int64_t unix_millis) {
  MUSTER_RETURN_IF_ERROR(CheckThere());
  if (!has_begun_) {
    const absl::Status begun = BeginLife();
    if (!begun.ok()) RollBack();
    MUSTER_RETURN_IF_ERROR(begun);
  }
  MUSTER_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status;
  for (const KeptChange& change : changes) {
    if (status.ok()) status = Store(change, unix_millis);
  }
  if (status.ok()) {
    status = Execute(absl::StrCat("DELETE FROM jobs WHERE forget_at <= ", unix_millis).c_str());
  }
  if (status.ok()) status = Execute("COMMIT");
  if (status.ok()) {
    NoteLogEnd();
  } else {
    RollBack();
  }
  return status;
}

absl::Status StateFile::Store(const KeptChange& change, int64_t unix_millis) {
  Statement upsert(db_, kUpsert);
  upsert.BindText(1, change.key.owner);
  upsert.BindBytes(2, change.key.run_id);
  upsert.Bind(3, change.instance.value());
  if (change.round) {
    upsert.BindBytes(4, *change.round);
    upsert.Bind(8, SumOfRound(change.key, change.instance, *change.round));
  }
  upsert.Bind(10, SumOfRound(change.key, change.instance, ""));
  upsert.BindBytes(5, change.progress);
  upsert.Bind(6, unix_millis);
  KeptProgress kept{.progress = change.progress, .kept_at = unix_millis};
  if (change.forget_after) {
    // Times of absl have an end where others overflow.
    kept.forget_at = absl::ToUnixMillis(absl::FromUnixMillis(unix_millis) + *change.forget_after);
    upsert.Bind(7, kept.forget_at);
  }
  upsert.Bind(9, SumOfProgress(change.key, change.instance, kept));
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
    return absl::DataLossError(absl::StrCat(text, ". ", kMoveAway));
  }
  return absl::UnavailableError(text);
}

}  // namespace muster::rendezvous
