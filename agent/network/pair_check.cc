#include "agent/network/pair_check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "asio/buffer.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/steady_timer.hpp"
#include "asio/write.hpp"

namespace muster::agent {
namespace {

using asio::ip::tcp;

constexpr char kMagic[] = "muster-pair:";
constexpr size_t kHeaderBytes = 12 + 16 + 16 + 8 + 8 + 8;
constexpr size_t kClockBytes = 20;
// Several packets of the largest usual size (9000), within the first window of a connection.
constexpr size_t kBulkBytes = size_t{16} << 10;
// The largest packet of IP, and what every path must pass.
constexpr uint32_t kPacketBytesMax = 65535;
constexpr uint32_t kPacketBytesMin = 536;
constexpr auto kTryAgain = std::chrono::milliseconds(50);
constexpr size_t kStrangersMax = 16;

struct Header {
  uint64_t instance = 0;
  uint64_t round = 0;
  uint32_t rank = 0;
  uint32_t greeting_bytes = 0;
  uint32_t packet_bytes = 0;
};

std::string Encode(const Header& header) {
  return absl::StrFormat("%s%016x%016x%08x%08x%08x", kMagic, header.instance, header.round,
                         header.rank, header.greeting_bytes, header.packet_bytes);
}

std::optional<Header> DecodeHeader(absl::string_view text) {
  Header header;
  if (text.substr(0, 12) != kMagic || !absl::SimpleHexAtoi(text.substr(12, 16), &header.instance) ||
      !absl::SimpleHexAtoi(text.substr(28, 16), &header.round) ||
      !absl::SimpleHexAtoi(text.substr(44, 8), &header.rank) ||
      !absl::SimpleHexAtoi(text.substr(52, 8), &header.greeting_bytes) ||
      !absl::SimpleHexAtoi(text.substr(60, 8), &header.packet_bytes) ||
      header.greeting_bytes > kGreetingBytesMax || header.packet_bytes > kPacketBytesMax) {
    return std::nullopt;
  }
  return header;
}

// What fits into one packet of the connection. Sent alone, it is not cut by the path's own hardware
// first, as a longer message is.
uint32_t PacketBytesOf(tcp::socket& socket) {
  int bytes = 0;
  socklen_t length = sizeof(bytes);
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_MAXSEG, &bytes, &length) != 0) {
    return kPacketBytesMin;
  }
  return std::clamp(static_cast<uint32_t>(bytes), kPacketBytesMin, kPacketBytesMax);
}

// Its end leaves no TIME_WAIT behind.
void Close(tcp::socket& socket) {
  asio::error_code ignored;
  socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket.close(ignored);
}

}  // namespace

// One check. Whatever is under way keeps it alive, and finds it over.
class PairCheck::Run : public std::enable_shared_from_this<PairCheck::Run> {
 public:
  Run(asio::io_context& loop, PairCheckRun run, absl::AnyInvocable<void(PairResults)> then)
      : loop_(loop),
        run_(std::move(run)),
        then_(std::move(then)),
        acceptor_(loop),
        deadline_(loop),
        doubtful_deadline_(loop),
        neighbours_(run_.neighbours) {}

  void Start() {
    Listen();
    for (const int peer : neighbours_.to) {
      calls_.push_back(std::make_unique<Call>(loop_, peer));
      Connect(*calls_.back());
    }
    deadline_.expires_after(absl::ToChronoNanoseconds(run_.patience));
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->Finish();
    });
    if (!run_.doubtful.empty()) {
      doubtful_deadline_.expires_after(absl::ToChronoNanoseconds(kDoubtfulPatience));
      doubtful_deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
        if (error || self->is_over_) return;
        self->waits_for_doubtful_ = false;
        self->FinishIfDone();
      });
    }
    FinishIfDone();
  }

  void Cancel() {
    then_ = nullptr;
    End();
  }

 private:
  // A conversation that this node has begun.
  struct Call {
    Call(asio::io_context& loop, int to) : peer(to), socket(loop), again(loop) {}
    const int peer;
    tcp::socket socket;
    asio::steady_timer again;
    PairStage stage = PairStage::kConnecting;  // the furthest that it has come to
    absl::Time bulk_begun;                     // once it has come to kBulk
    int connect_errno = 0;
    uint32_t packet_bytes = 0;
    std::string out;
    std::string in;
    absl::Time sent;
    double clock_offset = 0;
  };
  // One that another node has begun.
  struct Guest {
    explicit Guest(tcp::socket taken) : socket(std::move(taken)) {}
    tcp::socket socket;
    int peer = -1;
    std::string out;
    std::string in;
  };

  tcp::endpoint EndpointOf(int node, int port) const {
    asio::error_code error;
    const auto address = asio::ip::make_address(run_.nodes[node].address, error);
    return {address, static_cast<asio::ip::port_type>(port)};
  }
  std::string Greeting(uint32_t packet_bytes) const {
    return Encode(Header{.instance = run_.instance,
                         .round = static_cast<uint64_t>(run_.round),
                         .rank = static_cast<uint32_t>(run_.self),
                         .greeting_bytes = static_cast<uint32_t>(run_.greeting.size()),
                         .packet_bytes = packet_bytes}) +
           run_.greeting;
  }
  // The header if it is of this check and from `peer`; -1: any that calls us.
  std::optional<Header> Accepted(absl::string_view text, int peer) const {
    const std::optional<Header> header = DecodeHeader(text);
    if (!header || header->instance != run_.instance ||
        header->round != static_cast<uint64_t>(run_.round)) {
      return std::nullopt;
    }
    const int rank = static_cast<int>(header->rank);
    const bool fits = peer >= 0 ? rank == peer : absl::c_linear_search(neighbours_.from, rank);
    return fits ? header : std::nullopt;
  }

  // --- Called

  void Listen() {
    const tcp::endpoint here = EndpointOf(run_.self, run_.nodes[run_.self].port);
    asio::error_code error;
    acceptor_.open(here.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(here, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      neighbours_.from.clear();
      return;
    }
    Accept();
  }

  void Accept() {
    acceptor_.async_accept(
        [self = shared_from_this()](const asio::error_code& error, tcp::socket socket) {
          if (self->is_over_ || error) return;
          // Nothing is under way with one that has been closed.
          std::erase_if(self->guests_, [](const auto& guest) { return !guest->socket.is_open(); });
          if (self->guests_.size() < self->neighbours_.from.size() + kStrangersMax) {
            self->guests_.push_back(std::make_unique<Guest>(std::move(socket)));
            self->Hear(*self->guests_.back());
          }
          self->Accept();
        });
  }

  void Hear(Guest& guest) {
    Read(guest, kHeaderBytes, [this, &guest] {
      const std::optional<Header> header = Accepted(guest.in, -1);
      if (!header) return Close(guest.socket);
      guest.peer = static_cast<int>(header->rank);
      Read(guest, header->greeting_bytes, [this, &guest, packet_bytes = header->packet_bytes] {
        heard_[guest.peer] = guest.in;
        guest.out =
            Greeting(packet_bytes) + absl::StrFormat("%020d", absl::ToUnixMicros(absl::Now()));
        Write(guest, [this, &guest, packet_bytes] {
          Echo(guest, packet_bytes,
               [this, &guest] { Echo(guest, kBulkBytes, [this, &guest] { AwaitEnd(guest); }); });
        });
      });
    });
  }

  template <typename Then>
  void Echo(Guest& guest, size_t bytes, Then then) {
    Read(guest, bytes, [this, &guest, bytes, then] {
      guest.out.assign(bytes, 'm');
      Write(guest, then);
    });
  }

  // Our own end would take back what it has not read yet.
  void AwaitEnd(Guest& guest) {
    guest.in.resize(1);
    guest.socket.async_read_some(asio::buffer(guest.in), [self = shared_from_this(), &guest](
                                                             const asio::error_code&, size_t) {
      if (self->is_over_) return;
      Close(guest.socket);
      self->came_.insert(guest.peer);
      self->FinishIfDone();
    });
  }

  // --- Calling

  void Connect(Call& call) {
    asio::error_code error;
    const tcp::endpoint to = EndpointOf(call.peer, run_.nodes[call.peer].port);
    call.socket = tcp::socket(loop_);
    call.socket.open(to.protocol(), error);
    // The source is the address that its workers have; any, where that is of another kind.
    if (!error && EndpointOf(run_.self, 0).protocol() == to.protocol()) {
      call.socket.bind(EndpointOf(run_.self, 0), error);
    }
    if (error) return TryAgain(call, error.value());
    call.socket.async_connect(to, [self = shared_from_this(), &call](const asio::error_code& e) {
      if (self->is_over_) return;
      if (e) return self->TryAgain(call, e.value());
      self->Greet(call);
    });
  }

  void TryAgain(Call& call, int why) {
    call.connect_errno = why;
    call.again.expires_after(kTryAgain);
    call.again.async_wait([self = shared_from_this(), &call](const asio::error_code& error) {
      if (!error && !self->is_over_) self->Connect(call);
    });
  }

  void Greet(Call& call) {
    call.stage = std::max(call.stage, PairStage::kGreeting);
    call.packet_bytes = PacketBytesOf(call.socket);
    call.out = Greeting(call.packet_bytes);
    call.sent = absl::Now();
    Write(call, [this, &call] {
      Read(call, kHeaderBytes, [this, &call] {
        const std::optional<Header> header = Accepted(call.in, call.peer);
        if (!header) return TryAgain(call, ECONNREFUSED);
        Read(call, header->greeting_bytes + kClockBytes, [this, &call] { TakeGreeting(call); });
      });
    });
  }

  void TakeGreeting(Call& call) {
    const absl::string_view text = call.in;
    int64_t clock = 0;
    if (absl::SimpleAtoi(text.substr(text.size() - kClockBytes), &clock)) {
      // Theirs was read between these two of ours: a slow answer proves no difference.
      const absl::Time theirs = absl::FromUnixMicros(clock), now = absl::Now();
      const absl::Time nearest = std::clamp(theirs, call.sent, std::max(call.sent, now));
      call.clock_offset = absl::ToDoubleSeconds(theirs - nearest);
    }
    heard_[call.peer] = std::string(text.substr(0, text.size() - kClockBytes));
    call.stage = PairStage::kBulk;
    call.bulk_begun = absl::Now();
    Exchange(call, call.packet_bytes, [this, &call] {
      Exchange(call, kBulkBytes, [this, &call] {
        call.stage = PairStage::kDone;
        Close(call.socket);
        FinishIfDone();
      });
    });
  }

  template <typename Then>
  void Exchange(Call& call, size_t bytes, Then then) {
    call.out.assign(bytes, 'm');
    Write(call, [this, &call, bytes, then] { Read(call, bytes, then); });
  }

  // --- Both

  // `then` is not called once the check is over, or where the connection breaks.
  template <typename Conversation, typename Then>
  void Read(Conversation& with, size_t bytes, Then then) {
    with.in.resize(bytes);
    asio::async_read(
        with.socket, asio::buffer(with.in),
        [self = shared_from_this(), &with, then](const asio::error_code& error, size_t) {
          if (self->is_over_) return;
          error ? self->Break(with, error.value()) : then();
        });
  }
  template <typename Conversation, typename Then>
  void Write(Conversation& with, Then then) {
    asio::async_write(
        with.socket, asio::buffer(with.out),
        [self = shared_from_this(), &with, then](const asio::error_code& error, size_t) {
          if (self->is_over_) return;
          error ? self->Break(with, error.value()) : then();
        });
  }
  // Another program's listener may have had the port until now.
  void Break(Call& call, int) { TryAgain(call, ECONNREFUSED); }
  void Break(Guest& guest, int) { Close(guest.socket); }

  // Full packets that had less time than all before them prove nothing: a machine that is short of
  // CPU answers late.
  PairStage ProvenStage(const Call& call) const {
    const bool is_late = absl::Now() - call.bulk_begun < call.bulk_begun - begun_;
    return call.stage == PairStage::kBulk && is_late ? PairStage::kGreeting : call.stage;
  }

  bool IsWaitedFor(int peer) const {
    return waits_for_doubtful_ || !absl::c_linear_search(run_.doubtful, peer);
  }

  void FinishIfDone() {
    const bool all_called = absl::c_all_of(calls_, [&](const auto& call) {
      return call->stage == PairStage::kDone || !IsWaitedFor(call->peer);
    });
    const bool all_came = absl::c_all_of(
        neighbours_.from, [&](int peer) { return came_.contains(peer) || !IsWaitedFor(peer); });
    if (all_called && all_came) Finish();
  }

  void Finish() {
    if (is_over_) return;
    PairResults results;
    for (const auto& call : calls_) {
      results.called.push_back({.peer = call->peer,
                                .fault = FaultOf(ProvenStage(*call), call->connect_errno),
                                .greeting = heard_[call->peer],
                                .clock_offset = call->clock_offset});
    }
    absl::c_copy_if(neighbours_.from, std::back_inserter(results.absent),
                    [&](int peer) { return !came_.contains(peer); });
    End();
    if (auto then = std::exchange(then_, nullptr)) then(std::move(results));
  }

  void End() {
    is_over_ = true;
    asio::error_code ignored;
    acceptor_.close(ignored);
    deadline_.cancel();
    doubtful_deadline_.cancel();
    for (const auto& call : calls_) {
      call->again.cancel();
      Close(call->socket);
    }
    for (const auto& guest : guests_) Close(guest->socket);
  }

  asio::io_context& loop_;
  const PairCheckRun run_;
  absl::AnyInvocable<void(PairResults)> then_;
  tcp::acceptor acceptor_;
  asio::steady_timer deadline_;
  asio::steady_timer doubtful_deadline_;
  bool waits_for_doubtful_ = true;
  const absl::Time begun_ = absl::Now();
  Neighbours neighbours_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<Guest>> guests_;
  absl::btree_map<int, std::string> heard_;  // greetings by node rank
  absl::btree_set<int> came_;                // who has reached us
  bool is_over_ = false;
};

PairCheck::PairCheck(asio::io_context& loop) : loop_(loop) {}

PairCheck::~PairCheck() { Cancel(); }

void PairCheck::Start(PairCheckRun run, absl::AnyInvocable<void(PairResults)> then) {
  Cancel();
  run_ = std::make_shared<Run>(loop_, std::move(run), std::move(then));
  run_->Start();
}

void PairCheck::Cancel() {
  if (run_) run_->Cancel();
  run_.reset();
}

}  // namespace muster::agent
