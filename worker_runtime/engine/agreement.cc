// Compares hashes in one collective, and texts only where a hash differs.
#include "muster/agreement.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"

namespace muster {
namespace {

// A rank may have been reading or writing for hours. If it died, that is noticed; if its disk
// hangs, the phase that it has marked says so.
constexpr absl::Duration kAsLongAsItTakes = absl::InfiniteDuration();

constexpr size_t kHashDigits = 64;
constexpr char kOwnFailureUrl[] = "muster/own_failure";

// Words for a line "key=value", or for one without a key: a parameter.
std::string Phrase(const std::vector<absl::string_view>& lines, size_t i) {
  if (i >= lines.size() || lines[i].empty()) return "nothing follows";
  const size_t equals = lines[i].find('=');
  if (equals == absl::string_view::npos) return absl::StrCat("the next parameter is ", lines[i]);
  return absl::StrCat(lines[i].substr(0, equals), " is ", lines[i].substr(equals + 1));
}

// Every rank's text, in the order of ranks.
absl::StatusOr<std::vector<std::string>> GatherTexts(Communicator& world, absl::string_view text) {
  const std::vector<int64_t> own = {static_cast<int64_t>(text.size())};
  std::vector<int64_t> sizes(world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(own), BufferOf(sizes)).Wait());
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<uint8_t> padded(longest);
  std::copy(text.begin(), text.end(), padded.begin());
  std::vector<uint8_t> all(longest * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(padded), BufferOf(all)).Wait());
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) {
    const char* begin = reinterpret_cast<const char*>(all.data()) + rank * longest;
    texts.emplace_back(begin, sizes[rank]);
  }
  return texts;
}

// The first rank whose hash is not that of rank 0; 0 if all are alike.
absl::StatusOr<int> FirstThatDiffers(Communicator& world, const std::string& hash) {
  const std::vector<uint8_t> own(hash.begin(), hash.end());
  std::vector<uint8_t> all(kHashDigits * world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(own), BufferOf(all)).Wait());
  for (int rank = 1; rank < world.size(); ++rank) {
    if (!std::equal(all.begin(), all.begin() + kHashDigits, all.begin() + rank * kHashDigits)) {
      return rank;
    }
  }
  return 0;
}

}  // namespace

std::string DescribeDifference(absl::string_view text_of_0, absl::string_view text_of_rank,
                               int rank) {
  const std::vector<absl::string_view> first = absl::StrSplit(text_of_0, '\n');
  const std::vector<absl::string_view> other = absl::StrSplit(text_of_rank, '\n');
  size_t i = 0;
  while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
  return absl::StrCat(Phrase(first, i), " on rank 0 and ", Phrase(other, i), " on rank ", rank);
}

absl::Status CheckAgreement(Communicator& world, absl::string_view text) {
  MUSTER_ASSIGN_OR_RETURN(const int rank, FirstThatDiffers(world, Sha256().Add(text).Finish()));
  if (rank == 0) return absl::OkStatus();
  // All ranks come here with the same `rank`.
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(world, text));
  return absl::InvalidArgumentError(absl::StrCat("the ranks were started with different settings: ",
                                                 DescribeDifference(texts[0], texts[rank], rank)));
}

absl::Status CheckSameState(Communicator& world, const std::string& hash, absl::string_view when) {
  MUSTER_ASSIGN_OR_RETURN(const int rank, FirstThatDiffers(world, hash));
  if (rank == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the parameters of rank ", rank, " differ from those of rank 0 ", when,
      "; memory or network of one of them corrupts data, and training would go on differently"));
}

absl::Status AsOwnFailure(absl::Status failure) {
  failure.SetPayload(kOwnFailureUrl, absl::Cord());
  return failure;
}

bool IsOwnFailure(const absl::Status& failure) {
  return failure.GetPayload(kOwnFailureUrl).has_value();
}

absl::StatusOr<std::string> FromRankZero(Communicator& world, absl::StatusOr<std::string> result) {
  return FromRank(world, 0, std::move(result));
}

absl::StatusOr<std::string> FromRank(Communicator& world, int root,
                                     absl::StatusOr<std::string> result) {
  if (world.size() == 1) {
    if (!result.ok()) return AsOwnFailure(result.status());
    return result;
  }
  std::string text;
  if (world.rank() == root) text = result.ok() ? *result : std::string(result.status().message());
  std::vector<int64_t> head = {static_cast<int64_t>(result.status().code()),
                               static_cast<int64_t>(text.size())};
  MUSTER_RETURN_IF_ERROR(
      world.Broadcast(BufferOf(head), root, {.timeout = kAsLongAsItTakes}).Wait());
  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(head[1]);
  if (head[1] > 0) MUSTER_RETURN_IF_ERROR(world.Broadcast(BufferOf(bytes), root).Wait());
  text.assign(bytes.begin(), bytes.end());
  if (head[0] != 0) {
    return AsOwnFailure(absl::Status(static_cast<absl::StatusCode>(head[0]), text));
  }
  return text;
}

absl::Status AllOrNone(Communicator& world, const absl::Status& own,
                       std::optional<absl::Duration> timeout) {
  std::vector<int64_t> first = {own.ok() ? world.size() : world.rank()};
  MUSTER_RETURN_IF_ERROR(
      world.AllReduce(BufferOf(first), {.op = ReduceOp::kMin, .timeout = timeout}).Wait());
  const int failed = static_cast<int>(first[0]);
  if (failed == world.size()) return absl::OkStatus();
  absl::StatusOr<std::string> words = std::string();
  if (world.rank() == failed) words = own;
  const absl::Status error = FromRank(world, failed, std::move(words)).status();
  if (failed == 0 || !IsOwnFailure(error)) return error;
  return AsOwnFailure(
      absl::Status(error.code(), absl::StrCat("rank ", failed, ": ", error.message())));
}

}  // namespace muster
