#include "agent/torch_store/torch_store_core.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

constexpr char kArrivalKey[] = "init/";  // every rank's store adds 1 to it when it is made
bool IsArrival(const TorchRequest& request) {
  return request.command == StoreCommand::kAdd && request.keys[0] == kArrivalKey &&
         request.numbers[0] > 0;
}

}  // namespace

TorchStoreCore::TorchStoreCore(TorchStoreSettings settings)
    : settings_(std::move(settings)),
      store_(settings_.limits),
      attendance_(settings_.world_size, settings_.nodes, settings_.own),
      door_(settings_.world_size, settings_.clients),
      barriers_(settings_.world_size),
      news_(settings_.notices, attendance_, barriers_, waits_) {}

TorchStoreCore::Effects TorchStoreCore::Open(StoreConnection connection, StoreClient client,
                                             MonoTime now) {
  Effects out;
  const StoreDoor::Answer answer = door_.Open(connection, client, attendance_.RanksAt(client), now);
  if (!answer.refusal.empty()) {
    out.push_back(CutClient{connection, absl::StrCat("refuses a connection: ", answer.refusal)});
    return out;
  }
  sessions_.try_emplace(connection);
  waits_.Open(connection);
  attendance_.Connect(connection, std::move(client));
  for (const ShownOut& closed : answer.closed) Cut(closed.connection, closed.reason, out);
  if (!answer.notice.empty()) out.push_back(TellPeople{.is_warning = true, .text = answer.notice});
  return out;
}

TorchStoreCore::Effects TorchStoreCore::Receive(StoreConnection connection, absl::string_view bytes,
                                                MonoTime now) {
  Effects out;
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return out;
  found->second.reader.Append(bytes);
  ServeAll(connection, now, out);
  return out;
}

TorchStoreCore::Effects TorchStoreCore::Sent(StoreConnection connection, MonoTime now) {
  Effects out;
  const bool was_pausing = !MayRead(connection);
  unsent_.Sent(connection);
  if (was_pausing && MayRead(connection)) ServeAll(connection, now, out);
  return out;
}

bool TorchStoreCore::MayRead(StoreConnection connection) const {
  return unsent_.BytesOf(connection) <= settings_.limits.unsent_bytes_pause;
}

void TorchStoreCore::ServeAll(StoreConnection connection, MonoTime now, Effects& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  Session& session = found->second;  // Serve may end it
  absl::Status error;
  while (MayRead(connection)) {
    absl::StatusOr<std::optional<TorchRequest>> request = session.reader.Next();
    error = request.status();
    if (!request.ok() || !request->has_value()) break;
    door_.NoteIsUsed(connection);
    Serve(connection, **std::move(request), now, out);
    if (!sessions_.contains(connection)) return;
  }
  unread_bytes_ = unread_bytes_ - session.unread_bytes + session.reader.buffered_bytes();
  session.unread_bytes = session.reader.buffered_bytes();
  if (!error.ok()) {
    Cut(connection, std::string(error.message()), out);
  } else if (unread_bytes_ > settings_.limits.bytes_max) {
    Cut(connection, "requests that are not whole yet take too much memory", out);
  }
}

void TorchStoreCore::Serve(StoreConnection from, TorchRequest request, MonoTime now, Effects& out) {
  if (request.command == StoreCommand::kIdentify) {
    const std::string address = attendance_.HostOf(from);
    for (size_t i = 0; i + 1 < request.numbers.size(); i += 2) {
      const int64_t port = request.numbers[i], rank = request.numbers[i + 1];
      if (port < 1 || port > 65535 || rank < 0 || rank >= settings_.world_size) continue;
      attendance_.Identify(address, static_cast<int>(port), Rank(static_cast<int>(rank)));
      if (const auto named = attendance_.Find(address, static_cast<int>(port))) {
        door_.NoteIsUsed(*named);
      }
    }
    Tell(news_.NoteArrival(now), out);
    return;
  }
  if (IsArrival(request)) {
    attendance_.Arrive(from);
    Tell(news_.NoteArrival(now), out);
  }
  const bool cancelled = request.command == StoreCommand::kCancelWait;
  const std::vector<TorchReply> replies = store_.Apply(from, request);
  barriers_.Note(from, request, HeldBy(from));
  waits_.Note(from, HeldBy(from), cancelled, barriers_, now);
  for (const TorchReply& reply : replies) {
    if (const auto* cut = std::get_if<CutClient>(&reply)) {
      Cut(cut->client, cut->reason, out);
      continue;
    }
    const auto& send = std::get<SendToClient>(reply);
    if (send.to != from) {
      waits_.Note(send.to, HeldBy(send.to), /*cancelled=*/false, barriers_, now);
    }
    Send(send, out);
  }
  Tell(news_.NoteBarrier(now), out);
}

void TorchStoreCore::Send(const SendToClient& send, Effects& out) {
  if (!sessions_.contains(send.to)) return;
  unsent_.Add(send.to, send.bytes);
  out.push_back(send);
  const TorchStoreLimits& limits = settings_.limits;
  while (unsent_.bytes() > limits.unsent_bytes_max) {
    Cut(unsent_.Slowest(), "replies that are not read take too much memory, most of them its own",
        out);
  }
}

const StoreWait* TorchStoreCore::HeldBy(StoreConnection connection) const {
  const auto wait = store_.waits().find(connection);
  return wait == store_.waits().end() ? nullptr : &wait->second;
}

void TorchStoreCore::Tell(std::optional<TellPeople> news, Effects& out) {
  if (news) out.push_back(*std::move(news));
}

TorchStoreCore::Effects TorchStoreCore::Close(StoreConnection connection, MonoTime now) {
  Effects out;
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return out;
  // PyTorch 1 does not say that it gives up.
  Tell(news_.NoteGivenUp(connection, /*only_closes=*/found->second.reader.is_bare(), now), out);
  Cut(connection, "", out);
  out.pop_back();  // it is closed already
  return out;
}

void TorchStoreCore::Cut(StoreConnection connection, std::string reason, Effects& out) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  if (!reason.empty()) {
    reason =
        absl::StrCat("closed the connection of ", attendance_.NameOf(connection), ": ", reason);
  }
  unread_bytes_ -= found->second.unread_bytes;
  waits_.Close(connection);
  store_.Forget(connection);
  door_.Close(connection);
  unsent_.Forget(connection);
  attendance_.Disconnect(connection);
  sessions_.erase(found);
  out.push_back(CutClient{connection, std::move(reason)});
}

TorchStoreCore::Effects TorchStoreCore::Identify(const std::string& address, int port, Rank rank,
                                                 MonoTime now) {
  Effects out;
  attendance_.Identify(address, port, rank);
  if (const auto connection = attendance_.Find(address, port)) door_.NoteIsOurs(*connection);
  Tell(news_.NoteArrival(now), out);
  return out;
}

MonoTime TorchStoreCore::NextDeadline() const {
  return std::min(door_.NextDeadline(), news_.NextDeadline());
}

TorchStoreCore::Effects TorchStoreCore::Tick(MonoTime now) {
  Effects out;
  for (const ShownOut& closed : door_.CloseSilent(now)) Cut(closed.connection, closed.reason, out);
  if (news_.TakeLookup(now)) out.push_back(LookUpWorkers{});
  Tell(news_.TakeNotice(now), out);
  return out;
}

std::string TorchStoreCore::CheckInvariants() const {
  size_t unread = 0;
  for (const auto& [connection, session] : sessions_) unread += session.reader.buffered_bytes();
  if (unread != unread_bytes_) return absl::StrCat("T4: ", unread_bytes_, " is not ", unread);
  if (waits_.held().size() != store_.waits().size()) return "T4: another number of waits";
  for (const auto& wait : waits_.at_barrier()) {
    if (!waits_.held().contains(wait)) return "T4: at a barrier, but not waiting";
  }
  if (door_.size() != sessions_.size()) return "T4: the door counts other connections";
  const std::string door = door_.CheckInvariants();
  return door.empty() ? store_.CheckInvariants() : door;
}

}  // namespace muster::agent
