#include "agent/process/aside.h"

namespace muster::agent {

Aside::Aside(asio::io_context& loop, Lane lane)
    : loop_(loop),
      thread_([lane = std::move(lane)](absl::Duration at_most, absl::AnyInvocable<void()> task) {
        return lane.Do(at_most, std::move(task));
      }),
      mailbox_(loop) {}

Aside::Aside(asio::io_context& loop, std::shared_ptr<FileWriter> files)
    : loop_(loop),
      thread_([files = std::move(files)](absl::Duration, absl::AnyInvocable<void()> task) {
        files->Do(std::move(task));
        return true;
      }),
      mailbox_(loop) {}

Aside::~Aside() { mailbox_.Close(); }

void Aside::Start(absl::Duration at_most, absl::AnyInvocable<void()> work,
                  absl::AnyInvocable<void(bool in_time)> then) {
  const uint64_t id = next_id_++;
  Due& due = due_.try_emplace(id, Due{asio::steady_timer(loop_), std::move(then)}).first->second;
  due.timer.expires_after(absl::ToChronoNanoseconds(at_most));
  due.timer.async_wait([this, id, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (!error && !alive.expired()) Answer(id, /*in_time=*/false);
  });
  const bool runs =
      thread_(at_most, [this, id, mailbox = mailbox_, work = std::move(work)]() mutable {
        work();
        mailbox.Post([this, id] { Answer(id, /*in_time=*/true); });
      });
  if (!runs) mailbox_.Post([this, id] { Answer(id, /*in_time=*/false); });
}

void Aside::Answer(uint64_t id, bool in_time) {
  auto found = due_.extract(id);
  if (!found.empty()) found.mapped().then(in_time);
}

}  // namespace muster::agent
