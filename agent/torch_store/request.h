// The protocol of PyTorch's TCPStore, read: bytes of one client in, its requests out. Which
// commands there are, what they carry and in which versions: README.md of this folder.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::agent {

// The commands in the order of the protocol's bytes, which begin at 0 in PyTorch 2.1, and at 1
// behind VALIDATE.
enum class StoreCommand : uint8_t {
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
  kIdentify,  // ours: which ranks the connections of one node belong to
};

// The name in PyTorch's own list of commands: "COMPARE_SET".
absl::string_view NameOf(StoreCommand command);

struct TorchRequest {
  StoreCommand command = StoreCommand::kPing;
  std::vector<std::string> keys;
  std::vector<std::string> values;  // those of COMPARE_SET: what is expected, what is wanted
  // ADD: the amount; BARRIER: how many take part; PING: the nonce; IDENTIFY: a port and the rank
  // that is connected from it, again and again.
  std::vector<int64_t> numbers;
  friend bool operator==(const TorchRequest&, const TorchRequest&) = default;
};

// Bounds of one request; PyTorch's own server has the first two, and 8 MiB for a value.
inline constexpr size_t kMaxTorchKeyBytes = 8 * 1024;
inline constexpr size_t kMaxTorchKeysPerRequest = 128 * 1024;
inline constexpr size_t kMaxTorchValueBytes = size_t{64} << 20;
inline constexpr size_t kMaxTorchRequestBytes = size_t{128} << 20;

// The commands of the framing that opens with VALIDATE.
inline constexpr uint32_t kTorchValidateMagic = 0x3C85F7CE;
inline constexpr uint8_t kIdentifyByte = 0xE0;

// What a witness says of its node's connections (see StoreCommand::kIdentify), ready to be sent as
// the only bytes of a connection. `port_ranks` are pairs of a local port and a rank.
std::string EncodeIdentify(const std::vector<std::pair<int, int>>& port_ranks);

// Takes apart what one client sends. The framing shows in the first bytes: VALIDATE with its magic
// number, or, as in PyTorch 1 to 2.1, a command at once.
class RequestReader {
 public:
  void Append(absl::string_view bytes);

  // The next whole request; nothing while bytes are missing.
  //
  // Errors: kInvalidArgument with what was seen: another protocol, an unknown command, a bound
  // exceeded. The connection is of no use then.
  absl::StatusOr<std::optional<TorchRequest>> Next();

  // Whether it began without VALIDATE.
  bool is_bare() const { return framing_ == Framing::kBare; }
  size_t buffered_bytes() const { return buffer_.size() - start_; }

 private:
  enum class Framing { kUnknown, kValidated, kBare };

  absl::string_view Unread() const { return absl::string_view(buffer_).substr(start_); }
  void Consume(size_t bytes);
  // Decides the framing; false while bytes are missing.
  absl::StatusOr<bool> ReadOpening();
  // The command of the next byte; nothing if it stands for none.
  std::optional<StoreCommand> NextCommand();
  std::optional<StoreCommand> NextBareCommand();
  absl::Status Unexpected() const;

  std::string buffer_;
  size_t start_ = 0;   // of what has not been consumed
  size_t wanted_ = 1;  // no whole request before that many bytes are unread
  Framing framing_ = Framing::kUnknown;
  bool is_of_2_1_ = false;  // a bare command came that PyTorch 2.1 alone has
};

}  // namespace muster::agent
