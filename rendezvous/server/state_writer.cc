#include "rendezvous/server/state_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/mono_time.h"
#include "proto/io/log.h"

namespace muster::rendezvous {
namespace {

constexpr absl::Duration kTryAgain = absl::Seconds(1);
// While there is nothing to write.
constexpr absl::Duration kLookEvery = absl::Seconds(5);

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

void StateWriter::Open(Listener listener) { listener_ = std::move(listener); }

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

StateWriter::Turn StateWriter::WaitForTurn(uint64_t written) {
  base::MutexLock lock(mu_);
  const MonoTime look = MonoNow() + kLookEvery;
  while (ticket_ == written && !is_ending_ && MonoNow() < look) changed_.WaitUntil(mu_, look);
  Turn turn{.ticket = ticket_, .is_last = is_ending_};
  for (auto& [unused, change] : pending_) turn.changes.push_back(std::move(change));
  pending_.clear();
  return turn;
}

void StateWriter::Run() {
  uint64_t written = 0;
  while (true) {
    const Turn turn = WaitForTurn(written);
    if (turn.ticket == written && turn.is_last) return;
    if (turn.ticket == written) {
      Say(file_->CheckThere());
      continue;
    }
    if (!WriteUntilDone(turn.changes)) return;
    written = turn.ticket;
    mailbox_.Post([this, written] {
      if (listener_.on_durable) listener_.on_durable(written);
    });
  }
}

void StateWriter::Say(const absl::Status& status) {
  if (said_ == status.message()) return;
  said_ = std::string(status.message());
  mailbox_.Post([this, why = said_] {
    if (listener_.on_trouble) listener_.on_trouble(why);
  });
  if (status.ok()) {
    log::Write(log::Level::kInfo, "state_written", "the state can be written again", {});
    return;
  }
  log::Write(log::Level::kError, "state_not_written",
             absl::StrCat(said_,
                          ". Until it can be written no round begins or ends and no checkpoint is "
                          "committed; running workers go on. Trying again every second"),
             {});
}

bool StateWriter::WriteUntilDone(const std::vector<KeptChange>& changes) {
  while (true) {
    const absl::Status status = file_->Write(changes, absl::ToUnixMillis(absl::Now()));
    Say(status);
    if (status.ok()) return true;
    base::MutexLock lock(mu_);
    const MonoTime again = MonoNow() + kTryAgain;
    while (!is_ending_ && MonoNow() < again) changed_.WaitUntil(mu_, again);
    if (is_ending_) return false;
  }
}

}  // namespace muster::rendezvous
