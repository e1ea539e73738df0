#include "agent/torch_store/bare_clients.h"

namespace muster::agent {

int& BareClients::CountOf(Host& host, Kind kind) {
  return kind == Kind::kQuiet ? host.quiet : kind == Kind::kArrived ? host.arrived : host.talking;
}

void BareClients::Connect(StoreConnection connection, const std::string& host) {
  Host& here = hosts_[host];
  clients_[connection] = {.host = host, .has_company = here.quiet + here.arrived > 0};
  ++here.quiet;
}

void BareClients::Disconnect(StoreConnection connection) {
  const auto found = clients_.find(connection);
  if (found == clients_.end()) return;
  const auto host = hosts_.find(found->second.host);
  --CountOf(host->second, found->second.kind);
  if (host->second.quiet + host->second.arrived + host->second.talking == 0) hosts_.erase(host);
  clients_.erase(found);
}

void BareClients::Note(StoreConnection connection, StoreCommand command, bool is_arrival) {
  const auto found = clients_.find(connection);
  if (found == clients_.end() || command == StoreCommand::kWatchKey) return;
  Client& client = found->second;
  if (client.kind == Kind::kTalks) return;
  Host& host = hosts_.at(client.host);
  --CountOf(host, client.kind);
  client.kind = is_arrival ? Kind::kArrived : Kind::kTalks;
  ++CountOf(host, client.kind);
  if (host.talking > host.quiet) host.lacks_second = true;
}

void BareClients::NoteIsOf21(StoreConnection connection) {
  const auto found = clients_.find(connection);
  if (found != clients_.end()) hosts_.at(found->second.host).is_of_2_1 = true;
}

bool BareClients::IsOf21(StoreConnection connection) const {
  const auto found = clients_.find(connection);
  return found != clients_.end() && hosts_.at(found->second.host).is_of_2_1;
}

bool BareClients::MayWatch(StoreConnection connection) const {
  const auto found = clients_.find(connection);
  if (found == clients_.end() || !found->second.has_company) return false;
  const Host& host = hosts_.at(found->second.host);
  return !host.is_of_2_1 && !host.lacks_second;
}

}  // namespace muster::agent
