#include "agent/torch_store/torch_store_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/machine/socket_owner.h"
#include "agent/machine/worker_sockets.h"
#include "asio/buffer.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/ip/v6_only.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

using asio::ip::tcp;

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kPiecesPerWrite = 64;
constexpr size_t kRefusalsShown = 5;
constexpr absl::Duration kAcceptAgain = absl::Milliseconds(200);  // out of descriptors

// Writes an address as /proc and peers show it: an IPv4 address that is mapped into IPv6 is IPv4.
std::string Numeric(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

// A socket of the address is bound and given up: only that tells whether it is this machine's.
bool IsOfThisMachine(const asio::ip::address& address) {
  const tcp::endpoint endpoint(address, 0);
  const UniqueFd probe(::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe && ::bind(probe.get(), endpoint.data(), endpoint.size()) == 0;
}

// The addresses to listen on; empty: every address. Blocks for as long as the name takes to
// resolve.
std::vector<asio::ip::address> AddressesOf(const std::string& host) {
  asio::io_context unused;
  asio::error_code error;
  std::vector<asio::ip::address> addresses;
  for (const auto& entry : tcp::resolver(unused).resolve(host, "", error)) {
    const asio::ip::address address = entry.endpoint().address();
    if (address.is_unspecified()) return {};
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end() &&
        IsOfThisMachine(address)) {
      addresses.push_back(address);
    }
  }
  if (addresses.empty()) return {};
  for (const bool v4 : {true, false}) {
    const asio::ip::address loopback = v4 ? asio::ip::address(asio::ip::address_v4::loopback())
                                          : asio::ip::address(asio::ip::address_v6::loopback());
    if (std::find(addresses.begin(), addresses.end(), loopback) == addresses.end() &&
        IsOfThisMachine(loopback)) {
      addresses.push_back(loopback);
    }
  }
  return addresses;
}

// No TIME_WAIT is left behind. By hand: what Asio knows of, its destructor undoes.
void ResetAtClose(tcp::socket& socket) {
  const ::linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

// Root may do as it pleases anyway, and who is not known is taken for the job's own user.
std::string OtherUser(std::optional<uid_t> owner) {
  if (!owner || *owner == ::geteuid() || *owner == 0) return "";
  return absl::StrCat("uid ", *owner, " of this machine");
}

absl::Status ListenError(const std::string& where, int port, const asio::error_code& error) {
  const std::string text = absl::StrCat("cannot serve PyTorch's store on ", where, " port ", port,
                                        ": ", error.message());
  if (error == asio::error::address_in_use) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, "; give another --master_port, or leave it out"));
  }
  return absl::ResourceExhaustedError(text);
}

// SO_REUSEADDR: the port is held by a reservation of ours that does not listen, and connections of
// the round before may not have ended yet.
absl::StatusOr<tcp::acceptor> Listen(asio::io_context& loop, const tcp::endpoint& endpoint,
                                     bool both_families) {
  tcp::acceptor acceptor(loop);
  asio::error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor.set_option(asio::ip::v6_only(!both_families), error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    return ListenError(both_families ? "every address" : endpoint.address().to_string(),
                       endpoint.port(), error);
  }
  return acceptor;
}

absl::StatusOr<std::vector<tcp::acceptor>> ListenOnEvery(asio::io_context& loop, int port) {
  std::vector<tcp::acceptor> acceptors;
  auto both = Listen(loop, tcp::endpoint(tcp::v6(), port), /*both_families=*/true);
  if (!both.ok() && !absl::IsInvalidArgument(both.status())) {
    both = Listen(loop, tcp::endpoint(tcp::v4(), port), /*both_families=*/true);
  }
  if (!both.ok()) return both.status();
  acceptors.push_back(*std::move(both));
  return acceptors;
}

absl::StatusOr<std::vector<tcp::acceptor>> ListenOn(asio::io_context& loop, const std::string& host,
                                                    int port) {
  const std::vector<asio::ip::address> addresses = AddressesOf(host);
  if (addresses.empty()) return ListenOnEvery(loop, port);
  std::vector<tcp::acceptor> acceptors;
  for (const asio::ip::address& address : addresses) {
    MUSTER_ASSIGN_OR_RETURN(tcp::acceptor acceptor, Listen(loop, tcp::endpoint(address, port),
                                                           /*both_families=*/false));
    if (port == 0) port = acceptor.local_endpoint().port();
    acceptors.push_back(std::move(acceptor));
  }
  return acceptors;
}

}  // namespace

// What runs on the thread. Completions find their connection by its number, or not at all.
class TorchStoreServer::Loop {
 public:
  explicit Loop(TorchStoreServerOptions options)
      : place_(ToString(Endpoint{.host = options.host, .port = options.port})),
        core_(std::move(options.settings)) {}

  void Start(asio::io_context& loop, std::vector<tcp::acceptor> acceptors) {
    timer_.emplace(loop);
    acceptors_ = std::move(acceptors);
    for (size_t i = 0; i < acceptors_.size(); ++i) Accept(i);
  }

  void AddWorker(Rank rank, pid_t pid) {
    ranks_.push_back(rank);
    pids_.push_back(pid);
  }

  std::vector<hangs::Gathering> WhoIsMissing() const { return core_.Gatherings(MonoNow()); }

  void StopTelling() {
    core_.StopTelling();
    ArmTimer();
  }

 private:
  struct Client {
    explicit Client(tcp::socket s) : socket(std::move(s)) {}
    tcp::socket socket;
    std::array<char, kReadBytes> input;
    std::deque<SharedBytes> unsent;
    size_t being_sent = 0;  // of the first of them
    bool is_reading = false;
  };

  void Accept(size_t i) {
    acceptors_[i].async_accept([this, i](const asio::error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        AcceptLater(i);
        return;
      }
      Welcome(std::move(socket));
      Accept(i);
    });
  }

  void AcceptLater(size_t i) {
    auto pause = std::make_shared<asio::steady_timer>(acceptors_[i].get_executor());
    pause->expires_after(absl::ToChronoNanoseconds(kAcceptAgain));
    pause->async_wait([this, i, pause](const asio::error_code& error) {
      if (!error) Accept(i);
    });
  }

  void Welcome(tcp::socket socket) {
    asio::error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // gone already
    const tcp::endpoint here = socket.local_endpoint(error);
    StoreClient client{
        .address = Numeric(peer.address()),
        .port = peer.port(),
        .is_local = peer.address().is_loopback() || peer.address() == here.address()};
    if (client.is_local) client.other_user = OtherUser(OwnerOfPeer(peer, here));
    ResetAtClose(socket);
    socket.set_option(tcp::no_delay(true), error);
    const StoreConnection id(next_++);
    clients_.emplace(id, std::make_shared<Client>(std::move(socket)));
    Perform(core_.Open(id, std::move(client), MonoNow()));
    Read(id);
  }

  void Read(StoreConnection id) {
    const auto found = clients_.find(id);
    if (found == clients_.end() || found->second->is_reading || !core_.MayRead(id)) return;
    const std::shared_ptr<Client> client = found->second;
    client->is_reading = true;
    client->socket.async_read_some(
        asio::buffer(client->input),
        [this, id, client](const asio::error_code& error, size_t bytes) {
          client->is_reading = false;
          if (!clients_.contains(id)) return;
          if (error) {
            clients_.erase(id);
            Perform(core_.Close(id, MonoNow()));
            return;
          }
          Perform(core_.Receive(id, absl::string_view(client->input.data(), bytes), MonoNow()));
          Read(id);
        });
  }

  void Perform(const TorchStoreCore::Effects& effects) {
    for (const TorchStoreEffect& effect : effects) {
      std::visit([this](const auto& e) { Perform(e); }, effect);
    }
    ArmTimer();
  }

  void Perform(const SendToClient& effect) {
    const auto found = clients_.find(effect.to);
    if (found == clients_.end()) return;
    found->second->unsent.push_back(effect.bytes);
    Write(effect.to);
  }

  void Write(StoreConnection id) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    const std::shared_ptr<Client> client = found->second;
    if (client->being_sent > 0 || client->unsent.empty()) return;
    client->being_sent = std::min(client->unsent.size(), kPiecesPerWrite);
    std::vector<asio::const_buffer> pieces;
    for (size_t i = 0; i < client->being_sent; ++i) {
      pieces.push_back(asio::buffer(client->unsent[i].text()));
    }
    asio::async_write(client->socket, pieces,
                      [this, id, client](const asio::error_code& error, size_t) {
                        if (!error) OnWritten(id, *client);  // else the read ends it
                      });
  }

  void OnWritten(StoreConnection id, Client& client) {
    const size_t sent = std::exchange(client.being_sent, 0);
    client.unsent.erase(client.unsent.begin(), client.unsent.begin() + sent);
    for (size_t i = 0; i < sent; ++i) Perform(core_.Sent(id, MonoNow()));
    Write(id);
    Read(id);
  }

  void Perform(const CutClient& effect) {
    clients_.erase(effect.client);
    Refuse(absl::StrCat("PyTorch's store ", effect.reason));
  }

  void Perform(const LookUpWorkers&) {
    const int port = acceptors_.front().local_endpoint().port();
    for (const WorkerSocket& socket : FindWorkerSockets(pids_, port)) {
      Perform(core_.Identify(socket.address, socket.port, ranks_[socket.worker], MonoNow()));
    }
  }

  void Perform(const TellPeople& effect) {
    log::Write(effect.is_warning ? log::Level::kWarning : log::Level::kInfo, "store_wait",
               absl::StrCat(effect.text, " (the launcher's store at ", place_, ")"));
  }

  // Somebody who tries again and again is not told again and again.
  void Refuse(const std::string& text) {
    if (++refusals_ > kRefusalsShown) return;
    log::Write(log::Level::kWarning, "store_refused",
               absl::StrCat(text, refusals_ == kRefusalsShown ? " (and no more of these)" : ""));
  }

  void ArmTimer() {
    const MonoTime deadline = core_.NextDeadline();
    if (deadline == armed_) return;
    armed_ = deadline;
    timer_->cancel();
    if (deadline.is_infinite()) return;
    timer_->expires_after(absl::ToChronoNanoseconds(deadline - MonoNow()));
    timer_->async_wait([this](const asio::error_code& error) {
      if (error) return;
      armed_ = MonoTime::InfiniteFuture();
      Perform(core_.Tick(MonoNow()));
    });
  }

  const std::string place_;  // as workers are told it
  TorchStoreCore core_;
  std::vector<Rank> ranks_;  // of this node's workers
  std::vector<pid_t> pids_;  // theirs
  std::vector<tcp::acceptor> acceptors_;
  std::optional<asio::steady_timer> timer_;
  MonoTime armed_ = MonoTime::InfiniteFuture();
  std::map<StoreConnection, std::shared_ptr<Client>> clients_;
  uint64_t next_ = 1;
  size_t refusals_ = 0;
};

absl::StatusOr<std::unique_ptr<TorchStoreServer>> TorchStoreServer::Start(
    TorchStoreServerOptions options) {
  auto thread = std::make_unique<StoreThread>();
  MUSTER_ASSIGN_OR_RETURN(std::vector<tcp::acceptor> acceptors,
                          ListenOn(thread->loop(), options.host, options.port));
  const int port = acceptors.front().local_endpoint().port();
  auto loop = std::make_unique<Loop>(std::move(options));
  Loop* const raw = loop.get();
  // The acceptors belong to the loop that runs on the thread.
  auto shared = std::make_shared<std::vector<tcp::acceptor>>(std::move(acceptors));
  StoreThread& on = *thread;
  on.Post([raw, shared, &on] { raw->Start(on.loop(), std::move(*shared)); });
  return std::unique_ptr<TorchStoreServer>(
      new TorchStoreServer(std::move(thread), std::move(loop), port));
}

TorchStoreServer::TorchStoreServer(std::unique_ptr<StoreThread> thread, std::unique_ptr<Loop> loop,
                                   int port)
    : port_(port), thread_(std::move(thread)), loop_(std::move(loop)) {}

TorchStoreServer::~TorchStoreServer() { thread_->Join(); }

void TorchStoreServer::AddWorker(Rank rank, pid_t pid) {
  thread_->Post([loop = loop_.get(), rank, pid] { loop->AddWorker(rank, pid); });
}

void TorchStoreServer::AskWhoIsMissing(
    absl::AnyInvocable<void(std::vector<hangs::Gathering>)> answer) {
  thread_->Post(
      [loop = loop_.get(), answer = std::move(answer)]() mutable { answer(loop->WhoIsMissing()); });
}

void TorchStoreServer::StopTelling() {
  thread_->Post([loop = loop_.get()] { loop->StopTelling(); });
}

}  // namespace muster::agent
