#include "rendezvous/server/state_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/mono_time.h"
#include "proto/io/log.h"

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kTryAgain = absl::Seconds(1);

}  // namespace

StateWriter::StateWriter(asio::io_context& loop, std::unique_ptr<StateFile> file)
    : mailbox_(loop), file_(std::move(file)), thread_([this] { Run(); }) {}

StateWriter::~StateWriter() {
  {
    base::MutexLock lock(mu_);
    is_ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  mailbox_.Close();
}

void StateWriter::Open(std::function<void(uint64_t ticket)> on_durable) {
  on_durable_ = std::move(on_durable);
}

void StateWriter::Keep(std::vector<KeptChange> changes, uint64_t ticket) {
  base::MutexLock lock(mu_);
  for (KeptChange& change : changes) {
    KeptChange& pending = pending_[{change.key, change.instance}];
    if (!change.round) change.round = std::move(pending.round);
    pending = std::move(change);
  }
  ticket_ = ticket;
  changed_.NotifyAll();
}

void StateWriter::Run() {
  while (true) {
    std::vector<KeptChange> changes;
    uint64_t ticket = 0;
    {
      base::MutexLock lock(mu_);
      while (pending_.empty() && !is_ending_) changed_.WaitUntil(mu_, MonoTime::InfiniteFuture());
      if (pending_.empty()) return;
      for (auto& [unused, change] : pending_) changes.push_back(std::move(change));
      pending_.clear();
      ticket = ticket_;
    }
    if (!WriteUntilDone(changes)) return;
    mailbox_.Post([this, ticket] {
      if (on_durable_) on_durable_(ticket);
    });
  }
}

bool StateWriter::WriteUntilDone(const std::vector<KeptChange>& changes) {
  std::string said;
  while (true) {
    const absl::Status status = file_->Write(changes, absl::ToUnixMillis(absl::Now()));
    if (status.ok()) break;
    if (said != status.message()) {
      said = std::string(status.message());
      log::Write(log::Level::kError, "state_not_written",
                 absl::StrCat(said,
                              ". Until it can be written no round begins or ends and no "
                              "checkpoint is committed; running workers go on. Trying again "
                              "every second"),
                 {});
    }
    base::MutexLock lock(mu_);
    const MonoTime again = MonoNow() + kTryAgain;
    while (!is_ending_ && MonoNow() < again) changed_.WaitUntil(mu_, again);
    if (is_ending_) return false;
  }
  if (!said.empty()) {
    log::Write(log::Level::kInfo, "state_written", "the state is written again", {});
  }
  return true;
}

}  // namespace muster::rendezvous
