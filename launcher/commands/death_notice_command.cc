// The death notice tells the rendezvous of an agent that was killed, until it has answered.
#include "launcher/commands/commands.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/guardian/death_notice_wire.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/exit_codes.h"
#include "proto/io/job_key.h"
#include "rendezvous/client/grpc_link.h"

namespace muster::launcher {
namespace {

// Half a lease: later the server has nearly noticed by itself.
constexpr absl::Duration kNoticeTime = absl::Seconds(3);
constexpr size_t kNoticeBytesMax = size_t{64} << 10;

absl::StatusOr<agent::DeathNotice> ReadNotice() {
  std::string text(kNoticeBytesMax, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(STDIN_FILENO, &text[size], text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  return agent::DecodeDeathNotice(text.substr(0, size));
}

rendezvous::GrpcLinkOptions LinkOf(const agent::DeathNotice& notice) {
  rendezvous::GrpcLinkOptions link{.host = notice.host,
                                   .port = notice.port,
                                   .tls = notice.tls ? TlsMode::kOn : TlsMode::kOff,
                                   .run_id = notice.run_id,
                                   .role = rendezvous::LinkRole::kPerson,
                                   .incarnation = IncarnationOf(DrawLifeKey()),
                                   .node_name = notice.node_name};
  link.secret.secret = notice.secret;
  link.jitter_seed = link.incarnation.value();
  return link;
}

}  // namespace

int DeathNoticeCommand() {
  prctl(PR_SET_NAME, "muster-notice");
  const absl::StatusOr<agent::DeathNotice> notice = ReadNotice();
  rendezvous::AgentEnding ending;
  if (!notice.ok() || notice->life_key.size() != ending.life_key.size()) return kExitFailure;
  std::copy(notice->life_key.begin(), notice->life_key.end(), ending.life_key.begin());
  asio::io_context loop{1};
  const auto work = asio::make_work_guard(loop);
  asio::steady_timer patience(loop, absl::ToChronoNanoseconds(kNoticeTime));
  patience.async_wait([&](const asio::error_code& error) {
    if (!error) loop.stop();
  });
  bool is_heard = false;
  rendezvous::GrpcLink link(loop, LinkOf(*notice));
  link.Ask(ending, [&](const StopAnswer&) {
    is_heard = true;
    loop.stop();
  });
  link.Open({.on_state = [&](bool, const std::string&, const absl::Status& fatal) {
    if (!fatal.ok()) loop.stop();
  }});
  loop.run();
  return is_heard ? 0 : kExitFailure;
}

}  // namespace muster::launcher
