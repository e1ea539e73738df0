#include "agent/torch_store/torch_store_core.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr char kArrivalKey[] = "init/";  // every rank's store adds 1 to it when it is made
constexpr absl::Duration kSlicePause = absl::Seconds(5);
// A client that gave up a wait and closes this soon after has failed for it.
constexpr absl::Duration kFailsWithin = absl::Seconds(10);
constexpr absl::Duration kShortWait = absl::Seconds(3);
constexpr size_t kKeyBytesShown = 120;
constexpr char kInit[] = "init_process_group";

std::string Shown(const std::string& key) {
  const bool cut = key.size() > kKeyBytesShown;
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kKeyBytesShown)), cut ? "…" : "", "'");
}

// Source: README.md, "Keys".
bool IsOfTheDefaultGroup(const std::string& key) { return absl::StrContains(key, "default_pg"); }

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
      of_absent_{.interval = settings_.repeat},
      of_barrier_{.interval = settings_.repeat} {}

TorchStoreCore::Effects TorchStoreCore::Open(StoreConnection connection, StoreClient client,
                                             MonoTime now) {
  Effects out;
  const StoreDoor::Answer answer = door_.Open(connection, client, attendance_.RanksAt(client), now);
  if (!answer.refusal.empty()) {
    out.push_back(CutClient{connection, absl::StrCat("refuses a connection: ", answer.refusal)});
    return out;
  }
  sessions_.try_emplace(connection);
  bare_clients_.Connect(connection, client.address);
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
  RequestReader& reader = found->second.reader;
  if (!reader.has_asked()) {
    if (bare_clients_.IsOf21(connection)) reader.AssumeIsOf21();
    if (!bare_clients_.MayWatch(connection)) reader.AssumeNeverWatches();
  }
  reader.Append(bytes);
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
    NoteSpeech(connection, session.reader, **request);
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

void TorchStoreCore::NoteSpeech(StoreConnection connection, const RequestReader& reader,
                                const TorchRequest& request) {
  if (!reader.is_bare()) {
    bare_clients_.Disconnect(connection);  // says itself what it is, and nothing of the others
    return;
  }
  bare_clients_.Note(connection, request.command, IsArrival(request));
  if (reader.is_of_2_1()) bare_clients_.NoteIsOf21(connection);
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
    NoteArrival(now, out);
    return;
  }
  if (IsArrival(request)) {
    attendance_.Arrive(from);
    NoteArrival(now, out);
  }
  const bool cancels = request.command == StoreCommand::kCancelWait;
  const std::vector<TorchReply> replies = store_.Apply(from, request);
  const auto wait = store_.waits().find(from);
  barriers_.Note(from, request, wait == store_.waits().end() ? nullptr : &wait->second);
  NoteWait(from, cancels, now);
  for (const TorchReply& reply : replies) {
    if (const auto* cut = std::get_if<CutClient>(&reply)) {
      Cut(cut->client, cut->reason, out);
      continue;
    }
    const auto& send = std::get<SendToClient>(reply);
    if (send.to != from) NoteWait(send.to, /*cancelled=*/false, now);
    Send(send, out);
  }
  NoteBarrier(now, out);
}

void TorchStoreCore::Send(const SendToClient& send, Effects& out) {
  if (!sessions_.contains(send.to)) return;
  unsent_.Add(send.to, send.bytes);
  out.push_back(send);
  const TorchStoreLimits& limits = settings_.limits;
  if (unsent_.BytesOf(send.to) > limits.unsent_bytes_of_client_max) {
    Cut(send.to, "it does not read its replies", out);
  }
  while (unsent_.bytes() > limits.unsent_bytes_max) {
    Cut(unsent_.Slowest(), "replies that are not read take too much memory, most of them its own",
        out);
  }
}

// After each request: whether `connection` waits now, and since when.
void TorchStoreCore::NoteWait(StoreConnection connection, bool cancelled, MonoTime now) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  const auto wait = store_.waits().find(connection);
  if (wait == store_.waits().end()) {
    if (!session.waits) return;
    waiting_.erase({session.since, connection});
    at_barrier_.erase({session.since, connection});
    session.waits = false;
    session.cancelled_at = now;
    if (!cancelled) session.awaited.clear();
    return;
  }
  const StoreWait& held = wait->second;
  const std::string& key = held.barrier.empty() ? *held.absent.begin() : held.barrier;
  if (session.waits) return;  // one of several keys has come
  const bool goes_on = session.awaited == key && now - session.cancelled_at <= kSlicePause;
  if (!goes_on) session.since = now;
  session.awaited = key;
  session.waits = true;
  waiting_.insert({session.since, connection});
  if (barriers_.Find(key) != nullptr) at_barrier_.insert({session.since, connection});
}

TorchStoreCore::Effects TorchStoreCore::Close(StoreConnection connection, MonoTime now) {
  Effects out;
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return out;
  TellIfGivenUp(connection, found->second, now, out);
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
  waiting_.erase({found->second.since, connection});
  at_barrier_.erase({found->second.since, connection});
  store_.Forget(connection);
  door_.Close(connection);
  unsent_.Forget(connection);
  attendance_.Disconnect(connection);
  bare_clients_.Disconnect(connection);
  sessions_.erase(found);
  out.push_back(CutClient{connection, std::move(reason)});
}

TorchStoreCore::Effects TorchStoreCore::Identify(const std::string& address, int port, Rank rank,
                                                 MonoTime now) {
  Effects out;
  attendance_.Identify(address, port, rank);
  if (const auto connection = attendance_.Find(address, port)) door_.NoteIsOurs(*connection);
  NoteArrival(now, out);
  return out;
}

// --- What the hang watch is told

bool TorchStoreCore::Waits(const Session& session, MonoTime now) {
  return session.waits || (!session.awaited.empty() && now - session.cancelled_at <= kSlicePause);
}

std::vector<verdict::Gathering> TorchStoreCore::Gatherings(MonoTime now) const {
  const bool nobody_waits =
      std::none_of(sessions_.begin(), sessions_.end(),
                   [now](const auto& entry) { return Waits(entry.second, now); });
  if (nobody_waits || !is_telling_) return {};
  const bool is_start = !attendance_.IsComplete();
  absl::btree_map<std::string, std::vector<int>> waiting;  // by what is awaited
  for (const auto& [connection, session] : sessions_) {
    if (!Waits(session, now)) continue;
    const std::optional<Rank> rank = attendance_.RankOf(connection);
    if (!rank) continue;
    const bool is_at_start = is_start && IsOfTheDefaultGroup(session.awaited);
    const bool is_at_barrier = !is_start && barriers_.Find(session.awaited) != nullptr;
    if (is_at_start) waiting[""].push_back(rank->value());
    if (is_at_barrier) waiting[session.awaited].push_back(rank->value());
  }
  std::vector<verdict::Gathering> out;
  for (auto& [awaited, ranks] : waiting) {
    const StoreBarrier* const barrier = is_start ? nullptr : barriers_.Find(awaited);
    if (barrier != nullptr && barrier->needed != settings_.world_size) continue;
    const std::optional<std::vector<int>> missing =
        barrier == nullptr ? attendance_.Missing() : attendance_.Among(barrier->came).Missing();
    if (!missing || missing->empty() || out.size() == verdict::kGatheringsMax) continue;
    // A barrier of other processes than one of each rank.
    if (barrier != nullptr &&
        barrier->came.size() + missing->size() != static_cast<size_t>(settings_.world_size)) {
      continue;
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    // A second connection of one that has not come itself.
    std::erase_if(ranks, [&](int rank) {
      return std::binary_search(missing->begin(), missing->end(), rank);
    });
    if (ranks.empty()) continue;
    out.push_back(
        {.name = is_start ? std::string(kInit)
                          : absl::StrCat("barrier ", Shown(barrier->name), " of PyTorch's store"),
         .is_start = is_start,
         .waiting = std::move(ranks),
         .missing = *missing});
  }
  return out;
}

// --- What people are told

MonoTime TorchStoreCore::NoticeDue() const {
  if (!is_telling_ || waiting_.empty()) return MonoTime::InfiniteFuture();
  const bool is_absent = !attendance_.IsComplete();
  const auto& waiting = is_absent ? waiting_ : at_barrier_;
  if (waiting.empty()) return MonoTime::InfiniteFuture();
  const auto& [since, connection] = *waiting.begin();
  const MonoTime due = since + settings_.first_notice;
  if (is_absent) return std::max(due, of_absent_.next);
  const bool goes_on = of_barrier_.key == sessions_.at(connection).awaited;
  return goes_on ? std::max(due, of_barrier_.next) : due;
}

MonoTime TorchStoreCore::NextDeadline() const {
  const MonoTime due = NoticeDue();
  return std::min(door_.NextDeadline(),
                  due.is_infinite() || looked_up_ ? due : due - settings_.lookup_lead);
}

TorchStoreCore::Effects TorchStoreCore::Tick(MonoTime now) {
  Effects out;
  for (const ShownOut& closed : door_.CloseSilent(now)) Cut(closed.connection, closed.reason, out);
  const MonoTime due = NoticeDue();
  if (due.is_infinite()) return out;
  if (now >= due - settings_.lookup_lead && !looked_up_) {
    looked_up_ = true;
    out.push_back(LookUpWorkers{});
  }
  if (now < due) return out;
  const bool is_absent = !attendance_.IsComplete();
  is_absent ? TellOfAbsent(now, out) : TellOfBarrier(now, out);
  Notices& notices = is_absent ? of_absent_ : of_barrier_;
  looked_up_ = false;
  notices.next = now + notices.interval;
  notices.interval = 2 * notices.interval;
  return out;
}

void TorchStoreCore::TellOfAbsent(MonoTime now, Effects& out) {
  const auto& [since, connection] = *waiting_.begin();
  const int present = attendance_.NumPresent();
  out.push_back(TellPeople{
      .text = absl::StrCat(Purpose(sessions_.at(connection).awaited), ": ", present, " of ",
                           settings_.world_size, present == 1 ? " ranks is" : " ranks are",
                           " there; waiting for ", attendance_.MissingInWords(), " for ",
                           InWords(now - since))});
  if (!of_absent_.has_told) of_absent_.first_wait = since;
  of_absent_.has_told = true;
  of_absent_.told_present = present;
}

void TorchStoreCore::TellOfBarrier(MonoTime now, Effects& out) {
  const auto& [since, connection] = *at_barrier_.begin();
  const std::string& key = sessions_.at(connection).awaited;
  const StoreBarrier* const barrier = barriers_.Find(key);
  if (barrier == nullptr) {  // spoilt: its key holds no number any more, or is one of several
    at_barrier_.erase(at_barrier_.begin());
    return;
  }
  if (of_barrier_.key != key) {
    of_barrier_ = {
        .key = key, .name = barrier->name, .first_wait = since, .interval = settings_.repeat};
  }
  of_barrier_.has_told = true;
  of_barrier_.told_present = static_cast<int>(barrier->came.size());
  out.push_back(TellPeople{
      .text = absl::StrCat("the barrier ", Shown(barrier->name), " of PyTorch's store: ",
                           ComeInWords(*barrier, attendance_), " for ", InWords(now - since))});
}

void TorchStoreCore::NoteArrival(MonoTime now, Effects& out) {
  if (!of_absent_.has_told || !is_telling_) return;
  if (!attendance_.IsComplete()) {
    if (attendance_.NumPresent() == of_absent_.told_present) return;
    of_absent_.next = std::min(of_absent_.next, now + settings_.first_notice);
    of_absent_.interval = settings_.repeat;
    return;
  }
  of_absent_.has_told = false;
  out.push_back(
      TellPeople{.text = absl::StrCat("all ", settings_.world_size, " ranks are there now, after ",
                                      InWords(now - of_absent_.first_wait))});
}

// As NoteArrival, of the barrier that was told of.
void TorchStoreCore::NoteBarrier(MonoTime now, Effects& out) {
  if (!of_barrier_.has_told || !is_telling_) return;
  if (const StoreBarrier* const barrier = barriers_.Find(of_barrier_.key)) {
    if (static_cast<int>(barrier->came.size()) == of_barrier_.told_present) return;
    of_barrier_.next = std::min(of_barrier_.next, now + settings_.first_notice);
    of_barrier_.interval = settings_.repeat;
    return;
  }
  out.push_back(TellPeople{
      .text = absl::StrCat("all ranks have reached the barrier ", Shown(of_barrier_.name),
                           " of PyTorch's store after ", InWords(now - of_barrier_.first_wait))});
  of_barrier_ = {.interval = settings_.repeat};
}

void TorchStoreCore::TellIfGivenUp(StoreConnection connection, const Session& session, MonoTime now,
                                   Effects& out) {
  if (!is_telling_ || has_told_end_ || session.awaited.empty()) return;
  // PyTorch 1 does not say that it gives up: it only closes.
  const bool gave_up =
      session.waits ? session.reader.is_bare() && now - session.since >= settings_.first_notice
                    : now - session.cancelled_at <= kFailsWithin &&
                          session.cancelled_at - session.since >= kShortWait;
  if (!gave_up) return;
  has_told_end_ = true;
  const absl::Duration waited = (session.waits ? now : session.cancelled_at) - session.since;
  std::string text =
      absl::StrCat(attendance_.NameOf(connection), " gave up after ", InWords(waited), ": ");
  if (!attendance_.IsComplete()) {
    absl::StrAppend(&text, Purpose(session.awaited), " needs ", settings_.world_size,
                    " ranks, of which ", attendance_.NumPresent(),
                    " came; missing: ", attendance_.MissingInWords());
  } else if (const StoreBarrier* const barrier = barriers_.Find(session.awaited)) {
    absl::StrAppend(&text, "the barrier ", Shown(barrier->name), " ",
                    NeedsInWords(*barrier, attendance_));
  } else {
    absl::StrAppend(&text, "the key ", Shown(session.awaited),
                    " of PyTorch's store that it waited for was never set");
  }
  out.push_back(TellPeople{.is_warning = true, .text = std::move(text)});
}

// What a rank does that waits for `key`.
std::string TorchStoreCore::Purpose(const std::string& key) const {
  return IsOfTheDefaultGroup(key) ? kInit : "PyTorch's store";
}

std::string TorchStoreCore::CheckInvariants() const {
  size_t unread = 0;
  for (const auto& [connection, session] : sessions_) unread += session.reader.buffered_bytes();
  if (unread != unread_bytes_) return absl::StrCat("T4: ", unread_bytes_, " is not ", unread);
  if (waiting_.size() != store_.waits().size()) return "T4: another number of waits";
  for (const auto& wait : at_barrier_) {
    if (!waiting_.contains(wait)) return "T4: at a barrier, but not waiting";
  }
  if (door_.size() != sessions_.size()) return "T4: the door counts other connections";
  const std::string door = door_.CheckInvariants();
  return door.empty() ? store_.CheckInvariants() : door;
}

}  // namespace muster::agent
