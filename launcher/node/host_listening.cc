#include "launcher/node/host_listening.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/base/numeric_address.h"
#include "proto/io/log.h"
#include "rendezvous/server/port_mark.h"

namespace muster::launcher {

absl::StatusOr<int> ListenAsHost(const ResolvedEndpoint& endpoint, uint64_t seed,
                                 rendezvous::RendezvousServer& server) {
  constexpr absl::Duration kPatience = absl::Seconds(5);
  const absl::Duration rhythm = absl::Milliseconds(10 + seed % 64);
  const MonoTime give_up = MonoNow() + kPatience;
  absl::StatusOr<int> port = server.Listen(endpoint.address, endpoint.port);
  while (port.status().code() == absl::StatusCode::kAlreadyExists && !IsServedHere(endpoint) &&
         MonoNow() < give_up) {
    absl::SleepFor(rhythm);
    port = server.Listen(endpoint.address, endpoint.port);
  }
  return port;
}

std::optional<JobOutcome> AwaitMarkedServer(const JobSpec& spec, const ResolvedEndpoint& endpoint,
                                            NodeSignals& signals) {
  constexpr absl::Duration kLookForServerEvery = absl::Milliseconds(200);
  if (spec.is_host.value_or(false)) return std::nullopt;  // the user has decided
  bool is_said = false;
  const MonoTime give_up = MonoNow() + spec.orphan_timeout;
  while (const auto marked = rendezvous::FindMarkedServer(endpoint.port, spec.orphan_timeout)) {
    if (IsServedHere(endpoint) || MonoNow() >= give_up) return std::nullopt;
    if (!std::exchange(is_said, true)) {
      log::Write(log::Level::kInfo, "awaiting_musterd",
                 absl::StrCat(marked->who, " had port ", endpoint.port,
                              " here and has not ended cleanly; waiting up to ",
                              absl::FormatDuration(absl::Ceil(
                                  spec.orphan_timeout - marked->silent_for, absl::Seconds(1))),
                              " for it to be started again, then this node hosts the rendezvous "
                              "(at once with --rdzv_conf=is_host=true)"));
    }
    const int signal = signals.Await(kLookForServerEvery).value_or(0);
    if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP && signal != SIGQUIT) continue;
    return JobOutcome{.exit_code = ExitCodeOfSignal(signal),
                      .reason = absl::StrCat("interrupted while waiting for ", marked->who,
                                             " to be started again")};
  }
  return std::nullopt;
}

void ListenForOtherMachines(const JobSpec& spec, const ResolvedEndpoint& endpoint,
                            const std::vector<std::string>& others,
                            rendezvous::RendezvousServer& server) {
  if (spec.is_single_node() || !endpoint.is_loopback) return;
  std::vector<std::string> places;
  for (const std::string& address : others) {
    if (!spec.authentication || address == endpoint.address) continue;
    const absl::Status listening = server.ListenAlso(address);
    if (listening.ok()) {
      places.push_back(ToString(Endpoint{.host = address, .port = endpoint.port}));
    } else {
      log::Write(log::Level::kWarning, "hosting",
                 absl::StrCat("agents of other machines must not come to ", address, ": ",
                              listening.message()));
    }
  }
  if (!places.empty()) {
    log::Write(log::Level::kInfo, "hosting",
               absl::StrCat(endpoint.host, " is this machine; agents of others reach it at ",
                            absl::StrJoin(places, " and ")));
  } else if (IsLoopbackAddress(endpoint.address)) {
    log::Write(
        log::Level::kWarning, "hosting",
        absl::StrCat(
            "only agents of this machine reach ", endpoint.host,
            spec.authentication ? "" : ", since nothing listens further without authentication",
            others.empty() ? ""
                           : absl::StrCat("; for other machines, give this node ", "--master_addr=",
                                          others.front(), " or --rdzv_endpoint")));
  }
}

}  // namespace muster::launcher
