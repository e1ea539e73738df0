#include "worker_runtime/comm/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <ctime>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/gloo/sigpipe_block.h"
#include "worker_runtime/comm/interface_choice.h"

namespace muster::comm {

// Gloo takes a socket from its I/O thread by waiting for that thread's next turn, and idle it turns
// every 10 ms: connections would come about and end a hundred a second. While a Haste lives the
// thread hardly pauses.
//
// Threads: safe.
class GlooTurns final : public gloo::transport::tcp::Handler {
 public:
  class Haste {
   public:
    explicit Haste(GlooTurns& turns) : turns_(turns) { turns_.Begin(); }
    ~Haste() { turns_.End(); }
    Haste(const Haste&) = delete;
    Haste& operator=(const Haste&) = delete;

   private:
    GlooTurns& turns_;
  };

  GlooTurns() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~GlooTurns() override {
    if (event_ >= 0) ::close(event_);
  }

  // Once. From now on it must outlive the I/O thread of `device`.
  void Join(gloo::transport::tcp::Device& device) {
    // Without an event nothing is quick, and nothing else is missed.
    if (event_ >= 0) device.registerDescriptor(event_, EPOLLIN, this);
  }

  // Called on the I/O thread, at each of its turns as long as the event is set.
  void handleEvents(int /*events*/) override {
    {
      base::MutexLock lock(mu_);
      if (MonoNow() >= calm_at_) Calm();
    }
    std::this_thread::sleep_for(kPause);
  }

 private:
  // What waits for a turn has it long before: who hastes for longer waits for something else.
  static constexpr absl::Duration kHaste = absl::Milliseconds(20);
  static constexpr std::chrono::microseconds kPause{20};

  void Begin() {
    base::MutexLock lock(mu_);
    ++num_hasting_;
    calm_at_ = MonoNow() + kHaste;
    eventfd_write(event_, 1);
  }
  void End() {
    base::MutexLock lock(mu_);
    if (--num_hasting_ == 0) Calm();
  }
  void Calm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    eventfd_t count = 0;
    eventfd_read(event_, &count);
  }

  const int event_;
  base::Mutex mu_;
  int num_hasting_ ABSL_GUARDED_BY(mu_) = 0;
  MonoTime calm_at_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Our own watch ends waits; Gloo's time-out would close every pair.
constexpr auto kNoTimeout = std::chrono::hours(24 * 365);

// Gloo multiplies the time-out of a pair by five while it connects.
constexpr auto kNoConnectTimeout = std::chrono::hours(24);
// The time that writing an address to the store may take.
constexpr absl::Duration kStoreTime = absl::Seconds(30);

// How long a wait goes on before it looks whether its peer is still there.
constexpr absl::Duration kPeerCheck = absl::Milliseconds(250);
// How long the I/O thread waits for who uses a connection before it turns to others.
constexpr absl::Duration kLockWait = absl::Milliseconds(1);
// The slot of the receives that are never answered, above those of SlotOf.
constexpr uint64_t kSentinelSlot = ~uint64_t{0};

// Runs `act`; an exception of Gloo becomes kUnavailable with its text. Gloo's own thread inherits
// the mask of the one that opens the device.
template <typename Act>
absl::Status Guard(Act act) {
  const SigpipeBlock block;
  try {
    act();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const size_t end_of_place = text.find("] ");  // "[gloo/transport/tcp/pair.cc:598] ..."
    return absl::UnavailableError(
        end_of_place == std::string::npos ? text : text.substr(end_of_place + 2));
  }
}

// A connection whose errors end it, and not the process. Gloo throws on its own thread, where
// nobody catches, when a peer resets a connection that has just come about (it asks for the peer's
// name) or sends what is no message of Gloo.
class GuardedPair final : public gloo::transport::tcp::Pair {
 public:
  using Pair::Pair;
  // Here and not in the base: until then the I/O thread may call what is overridden.
  ~GuardedPair() override {
    std::lock_guard<std::mutex> lock(m_);
    if (state_ != CLOSED) changeState(CLOSED);
  }

  // Stands in place of the base's, and has the same steps, but the lock is held from the event to
  // the end of a connection that fails, so that no other thread closes one that is half made.
  void handleEvents(int events) override {
    if (!LockForATime()) return;  // the event comes again
    const std::unique_lock<std::mutex> lock(m_, std::adopt_lock);
    try {
      switch (state_) {
        case LISTENING:
          return handleListening();
        case CONNECTING:
          return handleConnecting();
        case CONNECTED:
          return handleReadWrite(events);
        case INITIALIZING:
        case CLOSED:
          return;
      }
    } catch (const std::exception&) {
      if (state_ == CLOSED) return;
      PutIntoLoop();
      signalException(std::current_exception());
    }
  }

 private:
  // Who closes waits with the lock for the I/O thread's next turn, so the I/O thread does not wait
  // for the lock without end. It waits all the same: who sends has the lock too, and may be waiting
  // for the very CPU that an I/O thread would keep busy with asking again and again.
  bool LockForATime() {
    if (m_.try_lock()) return true;
    const timespec until = absl::ToTimespec((MonoNow() + kLockWait).since_zero());
    return pthread_mutex_clocklock(m_.native_handle(), CLOCK_MONOTONIC, &until) == 0;
  }

  // To close a connection Gloo takes its socket from the loop, and the process ends if the loop
  // does not have it: one that was just accepted it has only once all is well.
  void PutIntoLoop() {
    try {
      device_->registerDescriptor(fd_, EPOLLIN, this);  // nothing new where it is there
    } catch (const std::exception&) {
      if (fd_ >= 0) ::close(fd_);
      fd_ = -1;  // which Gloo leaves alone until it is connected, and then the loop has the socket
    }
  }

  // The base may be larger than its header says: see not_shipped/gloo/common/memory.h.
  [[maybe_unused]] std::byte room_[256];
};

class GuardedContext final : public gloo::transport::tcp::Context {
 public:
  using Context::Context;

  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    pairs_[rank] = std::make_unique<GuardedPair>(this, device_.get(), rank, getTimeout());
    return pairs_[rank];
  }
};

std::shared_ptr<gloo::transport::tcp::Device> TcpDeviceOf(const GlooDevice& device) {
  return std::dynamic_pointer_cast<gloo::transport::tcp::Device>(device.device);
}

// The key of the address at which `from` awaits `to`.
std::string KeyOf(const MeshOptions& options, int from, int to) {
  return absl::StrCat(options.prefix, "/", from, "/", to);
}

}  // namespace

// Pairs refer to the device by raw pointer; the context, which owns them, holds it.
struct GlooMesh::Links {
  enum class State : uint8_t { kNone, kConnecting, kConnected, kFailed };
  // A receive that no peer answers. When its connection breaks, Gloo fails all receives that wait
  // on it, so this one tells, without any traffic, whether the peer is there.
  struct Sentinel {
    uint8_t byte = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> receive;
  };

  std::shared_ptr<gloo::transport::Context> context;

  base::Mutex mu;
  base::Condition changed;
  std::map<int, State> states ABSL_GUARDED_BY(mu);  // by peer; absent: kNone
  bool is_closed ABSL_GUARDED_BY(mu) = false;

  base::Mutex sentinels_mu;
  std::map<int, Sentinel> sentinels ABSL_GUARDED_BY(sentinels_mu);  // by peer
};

TcpTransfer::TcpTransfer() = default;
TcpTransfer::~TcpTransfer() = default;
TcpTransfer::TcpTransfer(TcpTransfer&&) noexcept = default;
TcpTransfer& TcpTransfer::operator=(TcpTransfer&&) noexcept = default;

GlooDevice::GlooDevice() = default;

// The I/O thread sees that it is to end at its next turn.
GlooDevice::~GlooDevice() {
  if (turns == nullptr) return;
  const GlooTurns::Haste haste(*turns);
  device.reset();
}

absl::StatusOr<std::shared_ptr<GlooDevice>> OpenGlooDevice(const std::string& address,
                                                           const std::string& interface) {
  auto out = std::make_shared<GlooDevice>();
  out->address = address;
  out->interface = interface;
  const absl::Status status = Guard([&] {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    out->device = gloo::transport::tcp::CreateDevice(attributes);
    out->turns = std::make_unique<GlooTurns>();
    out->turns->Join(*TcpDeviceOf(*out));
  });
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot use ", interface, " (", address,
        ") for connections between ranks: ", status.message(), "; ", DescribeChoices()));
  }
  out->watch = std::make_shared<DeadlineWatch>();
  return out;
}

GlooMesh::GlooMesh(std::shared_ptr<GlooDevice> device, std::shared_ptr<Store> store,
                   MeshOptions options)
    : device_(std::move(device)),
      store_(std::move(store)),
      options_(std::move(options)),
      links_(std::make_unique<Links>()) {}

GlooMesh::~GlooMesh() { Close(); }

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Create(std::shared_ptr<GlooDevice> device,
                                                           std::shared_ptr<Store> store,
                                                           MeshOptions options) {
  std::unique_ptr<GlooMesh> mesh(
      new GlooMesh(std::move(device), std::move(store), std::move(options)));
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    mesh->links_->context = std::make_shared<GuardedContext>(
        TcpDeviceOf(*mesh->device_), mesh->options_.rank, mesh->options_.size);
    // Ours end sooner: Close ends a connecting that takes too long.
    mesh->links_->context->setTimeout(kNoConnectTimeout);
  }));
  return mesh;
}

void GlooMesh::Close() {
  std::vector<int> peers;
  {
    base::MutexLock lock(links_->mu);
    links_->is_closed = true;
    for (const auto& [peer, state] : links_->states) peers.push_back(peer);
    links_->changed.NotifyAll();
  }
  for (const int peer : peers) {
    const GlooTurns::Haste haste(*device_->turns);
    Guard([&] {
      if (auto& pair = links_->context->getPair(peer); pair != nullptr) pair->close();
    }).IgnoreError();
  }
}

int GlooMesh::num_connections() const {
  base::MutexLock lock(links_->mu);
  int num_connected = 0;
  for (const auto& [peer, state] : links_->states) {
    num_connected += state == Links::State::kConnected ? 1 : 0;
  }
  return num_connected;
}

std::vector<int> GlooMesh::Claim(absl::Span<const int> peers) {
  std::vector<int> out;
  base::MutexLock lock(links_->mu);
  for (const int peer : peers) {
    Links::State& state = links_->states[peer];
    if (state != Links::State::kNone) continue;
    state = Links::State::kConnecting;
    out.push_back(peer);
  }
  return out;
}

// All addresses are written before any is waited for, so that no two ranks wait for each other. Of
// each pair the side with the lower address then waits for the other's call, and only it: no circle
// of ranks can come about.
absl::Status GlooMesh::Reach(absl::Span<const int> peers, WaitPoint& point) {
  const std::vector<int> own = Claim(peers);
  absl::Status status;
  for (const int peer : own) {
    if (status.ok()) status = Publish(peer);
  }
  for (const int peer : own) {
    if (status.ok()) status = ConnectTo(peer, point);
    base::MutexLock lock(links_->mu);
    links_->states[peer] = status.ok() ? Links::State::kConnected : Links::State::kFailed;
    links_->changed.NotifyAll();
  }
  MUSTER_RETURN_IF_ERROR(status);
  return AwaitOthersConnecting(peers, point);
}

absl::Status GlooMesh::AwaitOthersConnecting(absl::Span<const int> peers, WaitPoint& point) {
  base::MutexLock lock(links_->mu);
  for (const int peer : peers) {
    while (links_->states[peer] == Links::State::kConnecting) {
      if (point.is_interrupted()) return absl::AbortedError("the wait was interrupted");
      links_->changed.WaitUntil(links_->mu, MonoNow() + kPeerCheck);
    }
    if (links_->states[peer] == Links::State::kFailed || links_->is_closed) {
      return absl::UnavailableError(absl::StrCat("there is no connection with rank ", peer));
    }
  }
  return absl::OkStatus();
}

absl::Status GlooMesh::Publish(int peer) {
  std::string address;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    const std::vector<char> bytes = links_->context->createPair(peer)->address().bytes();
    address.assign(bytes.data(), bytes.size());
  }));
  return store_->Set(KeyOf(options_, options_.rank, peer), address, MonoNow() + kStoreTime);
}

absl::StatusOr<std::string> GlooMesh::AwaitAddress(int peer, WaitPoint& point) {
  while (true) {
    if (point.is_interrupted()) return absl::AbortedError("the wait was interrupted");
    absl::StatusOr<std::string> address =
        store_->Wait(KeyOf(options_, peer, options_.rank), MonoNow() + kPeerCheck);
    if (!absl::IsDeadlineExceeded(address.status())) return address;
  }
}

absl::Status GlooMesh::ConnectTo(int peer, WaitPoint& point) {
  MUSTER_ASSIGN_OR_RETURN(const std::string address, AwaitAddress(peer, point));
  gloo::transport::Pair& pair = *links_->context->getPair(peer);
  if (!point.Begin([&pair] { Guard([&pair] { pair.close(); }).IgnoreError(); })) {
    return absl::AbortedError("the wait was interrupted");
  }
  const GlooTurns::Haste haste(*device_->turns);
  absl::Status status =
      Guard([&] { pair.connect(std::vector<char>(address.begin(), address.end())); });
  point.End();
  if (point.is_interrupted()) return absl::AbortedError("the wait was interrupted");
  if (status.ok()) status = WatchPeer(peer);
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat(
      "rank ", options_.rank, " of group ", options_.group, " cannot connect with rank ", peer,
      " from ", device_->interface, " (", device_->address, "): ", status.message(),
      "; if the nodes share another network, name its interface in GLOO_SOCKET_IFNAME: ",
      DescribeChoices()));
}

absl::Status GlooMesh::WatchPeer(int peer) {
  base::MutexLock lock(links_->sentinels_mu);
  Links::Sentinel& sentinel = links_->sentinels[peer];
  return Guard([&] {
    sentinel.receive = links_->context->createUnboundBuffer(&sentinel.byte, 1);
    sentinel.receive->recv(peer, kSentinelSlot);
  });
}

// Looks without waiting: a wait that was aborted beforehand returns at once, or throws what has
// befallen its connection.
absl::Status GlooMesh::CheckPeer(int peer) {
  base::MutexLock lock(links_->sentinels_mu);
  const auto found = links_->sentinels.find(peer);
  if (found == links_->sentinels.end()) return absl::OkStatus();
  return Guard([&] {
    found->second.receive->abortWaitRecv();
    found->second.receive->waitRecv(kNoTimeout);
  });
}

absl::StatusOr<TcpTransfer> GlooMesh::Send(int peer, uint64_t slot, const void* data,
                                           size_t bytes) {
  TcpTransfer transfer;
  if (bytes == 0) return transfer;
  transfer.sends_ = true;
  transfer.peer_ = peer;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    // Gloo has one kind of buffer for both directions and does not write to it here.
    transfer.buffer_ = links_->context->createUnboundBuffer(const_cast<void*>(data), bytes);
    transfer.buffer_->send(peer, slot);
  }));
  bytes_sent_ += static_cast<int64_t>(bytes);
  return transfer;
}

absl::StatusOr<TcpTransfer> GlooMesh::Receive(int peer, uint64_t slot, void* data, size_t bytes) {
  TcpTransfer transfer;
  if (bytes == 0) return transfer;
  transfer.peer_ = peer;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    transfer.buffer_ = links_->context->createUnboundBuffer(data, bytes);
    transfer.buffer_->recv(peer, slot);
  }));
  return transfer;
}

absl::StatusOr<TcpTransfer> GlooMesh::ReceiveFromAny(const std::vector<int>& peers, uint64_t slot,
                                                     void* data, size_t bytes) {
  TcpTransfer transfer;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    transfer.buffer_ = links_->context->createUnboundBuffer(data, bytes);
    transfer.buffer_->recv(peers, slot);
  }));
  return transfer;
}

absl::Status GlooMesh::Wait(TcpTransfer& transfer, WaitPoint& point) {
  if (transfer.buffer_ == nullptr) return absl::OkStatus();
  gloo::transport::UnboundBuffer* buffer = transfer.buffer_.get();
  const auto wake = [buffer] {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  };
  if (!point.Begin(wake)) return absl::AbortedError("the wait was interrupted");
  // What any peer may send is not watched for: the ranks that live on tell of one that is gone.
  const MonoTime no_check = MonoTime::InfiniteFuture();
  absl::Status status;
  bool done = false;
  while (status.ok() && !done && !point.is_interrupted()) {
    const MonoTime check_at = transfer.peer_ < 0 ? no_check : MonoNow() + kPeerCheck;
    const DeadlineWatch::Entry check = device_->watch->Add(check_at, [&point] { point.Nudge(); });
    status = Guard([&] {
      done = transfer.sends_ ? buffer->waitSend(kNoTimeout) : buffer->waitRecv(kNoTimeout);
    });
    device_->watch->Remove(check);
    if (status.ok() && !done) status = CheckPeer(transfer.peer_);
  }
  point.End();
  if (status.ok() && !done) status = absl::AbortedError("the wait was interrupted");
  if (status.ok()) transfer.buffer_.reset();
  return status;
}

}  // namespace muster::comm
