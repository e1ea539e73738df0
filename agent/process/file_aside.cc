#include "agent/process/file_aside.h"

namespace muster::agent {

FileAside::FileAside(asio::io_context& loop, std::shared_ptr<FileWriter> files)
    : loop_(loop), files_(std::move(files)), mailbox_(loop) {}

FileAside::~FileAside() { mailbox_.Close(); }

void FileAside::Start(absl::Duration at_most, absl::AnyInvocable<void()> work,
                      absl::AnyInvocable<void(bool in_time)> then) {
  const uint64_t id = next_id_++;
  Due& due = due_.try_emplace(id, Due{asio::steady_timer(loop_), std::move(then)}).first->second;
  due.timer.expires_after(absl::ToChronoNanoseconds(at_most));
  due.timer.async_wait([this, id, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) Answer(id, /*in_time=*/false);
  });
  files_->Do([this, id, mailbox = mailbox_, work = std::move(work)]() mutable {
    work();
    mailbox.Post([this, id] { Answer(id, /*in_time=*/true); });
  });
}

void FileAside::Answer(uint64_t id, bool in_time) {
  auto found = due_.extract(id);
  if (!found.empty()) found.mapped().then(in_time);
}

}  // namespace muster::agent
