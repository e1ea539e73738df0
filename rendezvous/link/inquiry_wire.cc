#include "rendezvous/link/inquiry_wire.h"

#include <algorithm>
#include <cstdint>

#include "proto/inquiry.pb.h"
#include "proto/io/wire_check.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kFirstKind = 1;  // 0 is "unspecified"
constexpr int kLastKind = static_cast<int>(InquiryKind::kLogs) + kFirstKind;
constexpr size_t kNodeNameBytesMax = 1024;

std::string Words(const absl::Status& status) {
  return std::string(status.message().substr(0, kMaxTextBytes));
}

absl::Status TakeStatus(WireCheck& check, int code, const std::string& text) {
  const absl::StatusCode taken = check.Code("inquiry.code", code);
  return absl::Status(taken, check.Text("inquiry.text", text, kMaxTextBytes));
}

void Encode(const InquiryPart& in, proto::InquiryPart* out) {
  out->set_node(in.node);
  out->set_first_rank(in.first_rank);
  out->set_num_ranks(in.num_ranks);
  out->set_code(static_cast<int>(in.status.code()));
  out->set_text(Words(in.status));
  out->set_body(in.body);
}

InquiryPart TakePart(const proto::InquiryPart& in, WireCheck& check) {
  return {.node = check.Text("inquiry.node", in.node(), kNodeNameBytesMax),
          .first_rank = check.Count("inquiry.first_rank", in.first_rank()),
          .num_ranks = check.Count("inquiry.num_ranks", in.num_ranks()),
          .status = TakeStatus(check, in.code(), in.text()),
          .body = check.Text("inquiry.body", in.body(), kInquiryAnswerBytesMax)};
}

}  // namespace

void Encode(const Inquiry& in, proto::Inquiry* out) {
  out->set_id(in.id);
  out->set_kind(static_cast<int>(in.kind) + kFirstKind);
  out->set_job(in.job);
  if (in.rank.has_value()) out->set_rank(*in.rank);
  out->set_bytes_max(static_cast<int64_t>(in.bytes_max));
  out->set_detail(in.detail);
}

absl::StatusOr<Inquiry> Decode(const proto::Inquiry& in) {
  WireCheck check;
  const int kind = check.Range("inquiry.kind", in.kind(), kFirstKind, kLastKind);
  Inquiry out{.id = in.id(),
              .job = check.Text("inquiry.job", in.job(), kMaxRunIdBytes),
              .detail = check.Text("inquiry.detail", in.detail(), kInquiryDetailBytesMax)};
  if (in.has_rank()) out.rank = check.Count("inquiry.rank", in.rank());
  const auto most = static_cast<int64_t>(kInquiryPartBytesMax);
  out.bytes_max = std::min(check.Count("inquiry.bytes_max", in.bytes_max()), most);
  if (!check.status().ok()) return check.status();
  out.kind = static_cast<InquiryKind>(kind - kFirstKind);
  return out;
}

void Encode(const InquiryReply& in, proto::InquiryReply* out) {
  out->set_id(in.id);
  Encode(in.part, out->mutable_part());
}

absl::StatusOr<InquiryReply> Decode(const proto::InquiryReply& in) {
  WireCheck check;
  check.Require(in.has_part(), "inquiry.part", "is missing");
  InquiryReply out{.id = in.id(), .part = TakePart(in.part(), check)};
  if (!check.status().ok()) return check.status();
  return out;
}

void Encode(const InquiryAnswer& in, proto::InquiryAnswer* out) {
  out->set_id(in.id);
  out->set_code(static_cast<int>(in.status.code()));
  out->set_text(Words(in.status));
  out->set_page(in.page);
  for (const InquiryPart& part : in.parts) {
    if (out->parts_size() == kInquiryPartsMax) break;
    Encode(part, out->add_parts());
  }
}

absl::StatusOr<InquiryAnswer> Decode(const proto::InquiryAnswer& in) {
  WireCheck check;
  InquiryAnswer out{.id = in.id(),
                    .status = TakeStatus(check, in.code(), in.text()),
                    .page = check.Text("inquiry.page", in.page(), kInquiryAnswerBytesMax)};
  if (check.List("inquiry.parts", in.parts_size(), kInquiryPartsMax)) {
    for (const proto::InquiryPart& part : in.parts()) out.parts.push_back(TakePart(part, check));
  }
  if (!check.status().ok()) return check.status();
  return out;
}

std::string BytesOf(const Inquiry& inquiry) {
  proto::Inquiry message;
  Encode(inquiry, &message);
  return message.SerializeAsString();
}

std::string BytesOf(const InquiryAnswer& answer) {
  proto::InquiryAnswer message;
  Encode(answer, &message);
  return message.SerializeAsString();
}

absl::StatusOr<Inquiry> InquiryFrom(const std::string& bytes) {
  proto::Inquiry message;
  if (message.ParseFromString(bytes)) return Decode(message);
  return absl::InvalidArgumentError("malformed inquiry");
}

absl::StatusOr<InquiryAnswer> InquiryAnswerFrom(const std::string& bytes) {
  proto::InquiryAnswer message;
  if (message.ParseFromString(bytes)) return Decode(message);
  return absl::InvalidArgumentError("malformed answer to an inquiry");
}

std::string Framed(const std::string& body) {
  std::string frame(4, '\0');
  for (int i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
  return frame + body;
}

}  // namespace muster::rendezvous
