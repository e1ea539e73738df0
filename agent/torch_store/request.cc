#include "agent/torch_store/request.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr uint8_t kValidateByte = 0;
constexpr size_t kShownBytes = 24;

// What follows the byte of a command: k a key, v a value, n a number of 8 bytes, u one of 4. After
// a * comes a count first, then the rest that many times.
struct Layout {
  StoreCommand command;
  absl::string_view name;
  absl::string_view fields;
};

using C = StoreCommand;
// Indexed by StoreCommand.
constexpr Layout kLayouts[] = {
    {C::kSet, "SET", "kv"},
    {C::kCompareSet, "COMPARE_SET", "kvv"},
    {C::kGet, "GET", "k"},
    {C::kAdd, "ADD", "kn"},
    {C::kCheck, "CHECK", "*k"},
    {C::kWait, "WAIT", "*k"},
    {C::kGetNumKeys, "GETNUMKEYS", ""},
    {C::kDeleteKey, "DELETE_KEY", "k"},
    {C::kAppend, "APPEND", "kv"},
    {C::kMultiGet, "MULTI_GET", "*k"},
    {C::kMultiSet, "MULTI_SET", "*kv"},
    {C::kCancelWait, "CANCEL_WAIT", ""},
    {C::kPing, "PING", "u"},
    {C::kQueuePush, "QUEUE_PUSH", "kv"},
    {C::kQueuePop, "QUEUE_POP", "k"},
    {C::kQueueLen, "QUEUE_LEN", "k"},
    {C::kListKeys, "LIST_KEYS", ""},
    {C::kBarrier, "BARRIER", "kn"},
    {C::kIdentify, "IDENTIFY", "*nn"},
};

const Layout& LayoutOf(StoreCommand command) { return kLayouts[static_cast<size_t>(command)]; }

template <typename T>
T Load(absl::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);  // both ends are little-endian, as PyTorch's are
  return value;
}

void AppendNumber(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads the fields of one request. What is missing is not an error: `wanted` says how many bytes
// are needed to get further.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t wanted() const { return wanted_; }

  template <typename T>
  bool Read(T& value) {
    absl::string_view field;
    if (!Take(sizeof(T), field)) return false;
    value = Load<T>(field);
    return true;
  }
  bool Take(size_t size, absl::string_view& field) {
    if (bytes_.size() - position_ < size) {
      wanted_ = position_ + size;
      return false;
    }
    field = bytes_.substr(position_, size);
    position_ += size;
    return true;
  }

 private:
  absl::string_view bytes_;
  size_t position_ = 0;
  size_t wanted_ = 0;
};

absl::Status TooLarge(absl::string_view what, uint64_t size, size_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of ", size, " bytes; the limit is ", limit));
}

// A string behind its length; false while bytes are missing. Without `out` it is only passed over.
absl::StatusOr<bool> ReadString(Cursor& cursor, absl::string_view what, size_t limit,
                                std::vector<std::string>* out) {
  uint64_t size = 0;
  if (!cursor.Read(size)) return false;
  if (size > limit) return TooLarge(what, size, limit);
  absl::string_view text;
  if (!cursor.Take(size, text)) return false;
  if (out != nullptr) out->emplace_back(text);
  return true;
}

template <typename T>
bool ReadNumber(Cursor& cursor, std::vector<int64_t>* out) {
  T value = 0;
  if (!cursor.Read(value)) return false;
  if (out != nullptr) out->push_back(value);
  return true;
}

absl::StatusOr<bool> ReadField(Cursor& cursor, char field, TorchRequest* out) {
  switch (field) {
    case 'k':
      return ReadString(cursor, "a key", kMaxTorchKeyBytes, out ? &out->keys : nullptr);
    case 'v':
      return ReadString(cursor, "a value", kMaxTorchValueBytes, out ? &out->values : nullptr);
    case 'u':
      return ReadNumber<uint32_t>(cursor, out ? &out->numbers : nullptr);
    default:
      return ReadNumber<int64_t>(cursor, out ? &out->numbers : nullptr);
  }
}

absl::StatusOr<bool> ReadFields(Cursor& cursor, absl::string_view fields, TorchRequest* out) {
  uint64_t times = 1;
  if (!fields.empty() && fields.front() == '*') {
    fields.remove_prefix(1);
    if (!cursor.Read(times)) return false;
    if (times > kMaxTorchKeysPerRequest) {
      return absl::InvalidArgumentError(
          absl::StrCat(times, " keys in one request; the limit is ", kMaxTorchKeysPerRequest));
    }
  }
  for (uint64_t i = 0; i < times; ++i) {
    for (const char field : fields) {
      MUSTER_ASSIGN_OR_RETURN(const bool whole, ReadField(cursor, field, out));
      if (!whole) return false;
    }
  }
  return true;
}

uint8_t ByteOf21(StoreCommand command) { return static_cast<uint8_t>(command); }

std::optional<StoreCommand> ValidatedCommand(uint8_t byte) {
  if (byte == kIdentifyByte) return C::kIdentify;
  if (byte == kValidateByte || byte > ByteOf21(C::kBarrier) + 1) return std::nullopt;
  return static_cast<C>(byte - 1);
}

}  // namespace

absl::string_view NameOf(StoreCommand command) { return LayoutOf(command).name; }

std::string EncodeIdentify(const std::vector<std::pair<int, int>>& port_ranks) {
  std::string out(1, static_cast<char>(kValidateByte));
  out.append(reinterpret_cast<const char*>(&kTorchValidateMagic), sizeof kTorchValidateMagic);
  out.push_back(static_cast<char>(kIdentifyByte));
  AppendNumber(out, port_ranks.size());
  for (const auto& [port, rank] : port_ranks) {
    AppendNumber(out, port);
    AppendNumber(out, rank);
  }
  return out;
}

void RequestReader::Append(absl::string_view bytes) {
  if (start_ > 0 && start_ >= buffer_.size() / 2) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<TorchRequest>> RequestReader::Next() {
  if (buffered_bytes() < wanted_) return std::nullopt;
  if (framing_ == Framing::kUnknown) {
    MUSTER_ASSIGN_OR_RETURN(const bool known, ReadOpening());
    if (!known || buffered_bytes() < wanted_) return std::nullopt;
  }
  const std::optional<StoreCommand> command = NextCommand();
  if (!command) return Unexpected();
  const absl::string_view fields = LayoutOf(*command).fields;
  Cursor cursor(Unread().substr(1));
  MUSTER_ASSIGN_OR_RETURN(const bool whole, ReadFields(cursor, fields, nullptr));
  if (!whole) {
    wanted_ = 1 + cursor.wanted();
    if (wanted_ > kMaxTorchRequestBytes) {
      return TooLarge(absl::StrCat("a request (", NameOf(*command), ")"), wanted_,
                      kMaxTorchRequestBytes);
    }
    return std::nullopt;
  }
  // Copied only once it is whole: a large one comes in many pieces.
  TorchRequest request{.command = *command};
  Cursor again(Unread().substr(1));
  MUSTER_RETURN_IF_ERROR(ReadFields(again, fields, &request).status());
  Consume(1 + cursor.position());
  return request;
}

std::optional<StoreCommand> RequestReader::NextCommand() {
  return framing_ == Framing::kValidated ? ValidatedCommand(Unread()[0]) : NextBareCommand();
}

// Up to PyTorch 2.0, DELETE_KEY has the number of 2.1's APPEND. A client that deletes a key waits
// for the reply, so bytes behind the key are a value to append. Source: README.md, "PyTorch 1 to
// 2.1".
std::optional<StoreCommand> RequestReader::NextBareCommand() {
  const uint8_t byte = Unread()[0];
  if (byte > ByteOf21(C::kCancelWait)) return std::nullopt;
  if (byte == ByteOf21(C::kAppend) && !is_of_2_1_) {
    Cursor cursor(Unread().substr(1));
    const auto key = ReadField(cursor, 'k', nullptr);
    is_of_2_1_ = key.ok() && *key && 1 + cursor.position() < Unread().size();
    return is_of_2_1_ ? C::kAppend : C::kDeleteKey;
  }
  is_of_2_1_ = is_of_2_1_ || byte > ByteOf21(C::kGetNumKeys);
  return static_cast<C>(byte);
}

// A key so long that its length reads as the magic number is refused anyway, so the two framings
// cannot be taken for each other.
absl::StatusOr<bool> RequestReader::ReadOpening() {
  constexpr size_t kOpeningBytes = 1 + sizeof kTorchValidateMagic;
  const absl::string_view unread = Unread();
  if (static_cast<uint8_t>(unread[0]) != kValidateByte) {
    if (!NextBareCommand()) return Unexpected();
    framing_ = Framing::kBare;
    return true;
  }
  if (unread.size() < kOpeningBytes) {
    wanted_ = kOpeningBytes;
    return false;
  }
  if (Load<uint32_t>(unread.substr(1)) == kTorchValidateMagic) {
    framing_ = Framing::kValidated;
    Consume(kOpeningBytes);
  } else {
    framing_ = Framing::kBare;
  }
  return true;
}

void RequestReader::Consume(size_t bytes) {
  start_ += bytes;
  wanted_ = 1;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  }
}

absl::Status RequestReader::Unexpected() const {
  const absl::string_view seen = Unread().substr(0, kShownBytes);
  return absl::InvalidArgumentError(absl::StrCat(
      framing_ == Framing::kUnknown ? "it does not speak the protocol of PyTorch's store"
                                    : "it sent a command that is not known here",
      ": \"", absl::CHexEscape(seen), Unread().size() > seen.size() ? "…" : "", "\""));
}

}  // namespace muster::agent
