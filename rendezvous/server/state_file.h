// The file of musterd --state_dir: an SQLite database in a directory that one musterd holds at a
// time. Write-ahead log, synchronous=FULL: what Write has returned from survives the process and
// the machine; a transaction that was being written when either died is not there at all.
//
// A row carries a checksum of all that it says, so that a flipped bit of the database is noticed
// when the server starts. So is one in the write-ahead log, since where that ended is written to a
// third file after each transaction (log_damage.h). That file is not synced: what is told of the
// last seconds before the machine itself lost its power is less.
//
// Threads: compatible; one caller at a time.
// Source:  SQLite, "Write-Ahead Logging", "PRAGMA synchronous" (sqlite.org).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/mono_time.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/server/record_keeper.h"

struct sqlite3;

namespace muster::rendezvous {

// The format of the database; a higher one is refused.
//   1: without checksums; 2: each row has its own.
inline constexpr int kStateFormat = 2;

class StateFile {
 public:
  // What it held, and the terms: of this life of the server (higher than any before it), and of the
  // first whose state is all here. Where the newest transaction is not used, jobs have skipped the
  // rounds that it may have told of.
  struct Contents {
    ServerTerm term;
    ServerTerm first_term;
    std::vector<KeptJob> jobs;
    std::string note;  // a sentence for people where the newest transaction is not used
  };

  // Makes `directory` (0700) and the file if they are not there. `unix_millis` is the wall clock's.
  //
  // Errors: kInvalidArgument:    no directory, or one on a network file system.
  //         kAlreadyExists:      another musterd uses it.
  //         kFailedPrecondition: a newer version of muster wrote the file, or no muster did.
  //         kDataLoss:           the file is damaged. Nothing in it is changed.
  //         kUnavailable:        it cannot be read or written: no permission, a read-only file
  //         system.
  // A full disk is no error: the first Write that finds room begins this life.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(const std::string& directory,
                                                         int64_t unix_millis, MonoTime now);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // Once.
  Contents TakeContents() { return std::move(contents_); }

  // All of `changes`, or none. Instances whose time is over are forgotten by the way. What has
  // returned before the first success is not durable, nor is this life's term.
  //
  // Errors: kUnavailable with the reason in words; trying again may help.
  absl::Status Write(const std::vector<KeptChange>& changes, int64_t unix_millis);

  // kUnavailable if the file is no longer where it was opened.
  absl::Status CheckThere() const;

 private:
  // Which file it is, whatever its name.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  explicit StateFile(std::string path) : path_(std::move(path)) {}
  static absl::StatusOr<Identity> IdentityOf(const std::string& path);
  absl::Status OpenDatabase();
  absl::Status CheckFormat();
  absl::Status ReadLife(int64_t unix_millis);
  absl::Status Load(int64_t unix_millis, MonoTime now);
  // Makes the tables, or brings them to the present format, and records this life's term. Once.
  absl::Status BeginLife();
  absl::Status AddChecksums();
  // Does to the rows what Load does to what it gives (SkipLostRounds in core/round_restore.h).
  absl::Status SkipRounds();
  // Called after a transaction. Without a note, or with an older one, less damage is noticed.
  void NoteLogEnd() const;
  void RollBack();
  bool IsFull() const;
  absl::Status Execute(const char* sql);
  absl::StatusOr<int64_t> Number(const char* sql);
  absl::Status Store(const KeptChange& change, int64_t unix_millis);
  // The database's last error, with the file's name and what to do.
  absl::Status Explain(const char* what) const;

  const std::string path_;
  UniqueFd lock_;
  UniqueFd log_end_;
  sqlite3* db_ = nullptr;
  int num_log_frames_ = 0;  // as of the last transaction of ours
  int64_t format_ = 0;      // of the file as it is; 0: it has no tables yet
  Identity identity_;
  ServerTerm term_;  // of this life, and the first
  ServerTerm first_term_;
  bool has_begun_ = false;
  Contents contents_;
};

}  // namespace muster::rendezvous
