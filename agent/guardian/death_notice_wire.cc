#include "agent/guardian/death_notice_wire.h"

#include "proto/agent.pb.h"

namespace muster::agent {

std::string Encode(const DeathNotice& notice) {
  proto::DeathNotice out;
  out.set_host(notice.host);
  out.set_port(notice.port);
  out.set_secret(notice.secret);
  out.set_tls(notice.tls);
  out.set_run_id(notice.run_id);
  out.set_node_name(notice.node_name);
  out.set_life_key(notice.life_key);
  return out.SerializeAsString();
}

absl::StatusOr<DeathNotice> DecodeDeathNotice(absl::string_view text) {
  proto::DeathNotice in;
  if (!in.ParseFromArray(text.data(), static_cast<int>(text.size())) || in.life_key().empty()) {
    return absl::InvalidArgumentError("not a death notice");
  }
  return DeathNotice{.host = in.host(),
                     .port = in.port(),
                     .secret = in.secret(),
                     .tls = in.tls(),
                     .run_id = in.run_id(),
                     .node_name = in.node_name(),
                     .life_key = in.life_key()};
}

}  // namespace muster::agent
