#include "worker_runtime/comm/gloo/gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/interface_choice.h"

namespace muster::comm {
namespace {

// Our own watch ends waits; Gloo's time-out would close every pair.
constexpr auto kNoTimeout = std::chrono::hours(24 * 365);

// Gloo multiplies the time-out of a pair by five while it connects.
constexpr int kConnectTimeoutFactor = 5;

// How long a wait goes on before it looks whether its peer is still there.
constexpr absl::Duration kPeerCheck = absl::Milliseconds(250);
// Of the receives that are never answered, above those of SlotOf.
constexpr uint64_t kSentinelSlot = ~uint64_t{0};

// Gloo writes to connections that a peer may have closed; the signal for that is to end nobody.
// Gloo's own thread inherits the mask of the one that opens the device.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlock() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

// Runs `act`; an exception of Gloo becomes kUnavailable with its text.
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

std::string KeyOf(const MeshOptions& options, int rank) {
  return absl::StrCat(options.prefix, "/", rank);
}

}  // namespace

// Pairs refer to the device by raw pointer; the context, which owns them, holds it.
struct GlooMesh::Links {
  // A receive that no peer answers. When its connection breaks, Gloo fails all receives that wait
  // on it, so this one tells, without any traffic, whether the peer is there.
  struct Sentinel {
    uint8_t byte = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> receive;
  };

  std::shared_ptr<gloo::transport::Context> context;
  std::vector<int> peers;

  base::Mutex sentinels_mu;
  std::map<int, Sentinel> sentinels ABSL_GUARDED_BY(sentinels_mu);  // by peer
};

Transfer::Transfer() = default;
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void WaitPoint::Interrupt() {
  {
    base::MutexLock lock(mu_);
    interrupted_ = true;
  }
  Nudge();
}

void WaitPoint::Nudge() {
  base::MutexLock lock(mu_);
  if (waited_for_ == nullptr) return;
  waited_for_->abortWaitRecv();
  waited_for_->abortWaitSend();
}

void WaitPoint::Reset() {
  base::MutexLock lock(mu_);
  interrupted_ = false;
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
  });
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot use ", interface, " (", address,
        ") for connections between ranks: ", status.message(), "; ", DescribeChoices()));
  }
  out->watch = std::make_shared<DeadlineWatch>();
  return out;
}

GlooMesh::GlooMesh(std::shared_ptr<GlooDevice> device, MeshOptions options)
    : device_(std::move(device)), options_(std::move(options)), links_(std::make_unique<Links>()) {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank) links_->peers.push_back(rank);
  }
}

GlooMesh::~GlooMesh() { Close(); }

void GlooMesh::Close() {
  if (links_->context == nullptr) return;
  for (const int peer : links_->peers) {
    Guard([&] {
      if (auto& pair = links_->context->getPair(peer); pair != nullptr) pair->close();
    }).IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<GlooMesh>> GlooMesh::Connect(std::shared_ptr<GlooDevice> device,
                                                            Store& store, MeshOptions options) {
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(std::move(device), std::move(options)));
  MUSTER_RETURN_IF_ERROR(mesh->CreatePairs());
  MUSTER_RETURN_IF_ERROR(mesh->Publish(store));
  MUSTER_RETURN_IF_ERROR(mesh->ConnectToPeers(store));
  return mesh;
}

absl::Status GlooMesh::CreatePairs() {
  return Guard([&] {
    links_->context = device_->device->createContext(options_.rank, options_.size);
    const int64_t left_ms = absl::ToInt64Milliseconds(options_.deadline - MonoNow());
    links_->context->setTimeout(
        std::chrono::milliseconds(std::max<int64_t>(1, left_ms / kConnectTimeoutFactor)));
    for (const int peer : links_->peers) links_->context->createPair(peer);
  });
}

// One address per peer, in order of ranks, all of one size.
absl::Status GlooMesh::Publish(Store& store) {
  std::string addresses;
  const absl::Status status = Guard([&] {
    for (const int peer : links_->peers) {
      const std::vector<char> bytes = links_->context->getPair(peer)->address().bytes();
      addresses.append(bytes.data(), bytes.size());
    }
  });
  MUSTER_RETURN_IF_ERROR(status);
  return store.Set(KeyOf(options_, options_.rank), addresses, options_.deadline);
}

absl::Status GlooMesh::ConnectToPeers(Store& store) {
  std::vector<int> absent;
  std::vector<std::string> addresses;
  for (const int peer : links_->peers) {
    absl::StatusOr<std::string> value = store.Wait(KeyOf(options_, peer), options_.deadline);
    if (absl::IsDeadlineExceeded(value.status())) {
      absent.push_back(peer);
    } else if (!value.ok()) {
      return value.status();
    } else {
      addresses.push_back(*std::move(value));
    }
  }
  if (!absent.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat(NameRanks(absent, options_.size), " did not come to group ", options_.group,
                     "; rank ", options_.rank, " waited until its connect_timeout"));
  }
  for (size_t i = 0; i < links_->peers.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(ConnectTo(links_->peers[i], addresses[i]));
  }
  return WatchPeers();
}

absl::Status GlooMesh::WatchPeers() {
  base::MutexLock lock(links_->sentinels_mu);
  for (const int peer : links_->peers) {
    Links::Sentinel& sentinel = links_->sentinels[peer];
    MUSTER_RETURN_IF_ERROR(Guard([&] {
      sentinel.receive = links_->context->createUnboundBuffer(&sentinel.byte, 1);
      sentinel.receive->recv(peer, kSentinelSlot);
    }));
  }
  return absl::OkStatus();
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

absl::Status GlooMesh::ConnectTo(int peer, const std::string& addresses) {
  const size_t each = addresses.size() / links_->peers.size();
  const size_t index = options_.rank < peer ? options_.rank : options_.rank - 1;
  const std::string address = addresses.substr(index * each, each);
  const absl::Status status = Guard([&] {
    links_->context->getPair(peer)->connect(std::vector<char>(address.begin(), address.end()));
  });
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat(
      "rank ", options_.rank, " of group ", options_.group, " cannot connect with rank ", peer,
      " from ", device_->interface, " (", device_->address, "): ", status.message(),
      "; if the nodes share another network, name its interface in GLOO_SOCKET_IFNAME: ",
      DescribeChoices()));
}

absl::StatusOr<Transfer> GlooMesh::Send(int peer, uint64_t slot, const void* data, size_t bytes) {
  Transfer transfer;
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

absl::StatusOr<Transfer> GlooMesh::Receive(int peer, uint64_t slot, void* data, size_t bytes) {
  Transfer transfer;
  if (bytes == 0) return transfer;
  transfer.peer_ = peer;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    transfer.buffer_ = links_->context->createUnboundBuffer(data, bytes);
    transfer.buffer_->recv(peer, slot);
  }));
  return transfer;
}

absl::StatusOr<Transfer> GlooMesh::ReceiveFromAny(uint64_t slot, void* data, size_t bytes) {
  Transfer transfer;
  MUSTER_RETURN_IF_ERROR(Guard([&] {
    transfer.buffer_ = links_->context->createUnboundBuffer(data, bytes);
    transfer.buffer_->recv(links_->peers, slot);
  }));
  return transfer;
}

absl::Status GlooMesh::Wait(Transfer& transfer, WaitPoint& point) {
  if (transfer.buffer_ == nullptr) return absl::OkStatus();
  gloo::transport::UnboundBuffer* buffer = transfer.buffer_.get();
  {
    base::MutexLock lock(point.mu_);
    if (point.interrupted_) return absl::AbortedError("the wait was interrupted");
    point.waited_for_ = buffer;
  }
  // What any peer may send is not watched for: the ranks that live on tell of one that is gone.
  const MonoTime no_check = MonoTime::InfiniteFuture();
  absl::Status status;
  bool done = false;
  for (bool interrupted = false; status.ok() && !done && !interrupted;) {
    const MonoTime check_at = transfer.peer_ < 0 ? no_check : MonoNow() + kPeerCheck;
    const DeadlineWatch::Entry check = device_->watch->Add(check_at, [&point] { point.Nudge(); });
    status = Guard([&] {
      done = transfer.sends_ ? buffer->waitSend(kNoTimeout) : buffer->waitRecv(kNoTimeout);
    });
    device_->watch->Remove(check);
    if (status.ok() && !done) status = CheckPeer(transfer.peer_);
    base::MutexLock lock(point.mu_);
    interrupted = point.interrupted_;
  }
  base::MutexLock lock(point.mu_);
  point.waited_for_ = nullptr;
  if (status.ok() && !done) status = absl::AbortedError("the wait was interrupted");
  if (status.ok()) transfer.buffer_.reset();
  return status;
}

}  // namespace muster::comm
