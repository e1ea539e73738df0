#include "rendezvous/link/inquiry_wire.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "proto/inquiry.pb.h"
#include "proto/io/wire_fields.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kFirstKind = 1;  // 0 is "unspecified"
constexpr NumberBounds kKinds{kFirstKind, static_cast<int>(InquiryKind::kWay) + kFirstKind};
constexpr TextBounds kNodeName{1024};
constexpr TextBounds kWords{kMaxTextBytes, kMaxTextBytes};
constexpr TextBounds kBody{kInquiryAnswerBytesMax};

template <typename P>
void StatusFields(Wire<P> wire, absl::Status& status) {
  absl::StatusCode code = status.code();
  std::string text(status.message());
  wire.Number("inquiry.code", kStatusCodes, &P::code, &P::set_code, code);
  wire.Text("inquiry.text", kWords, &P::text, &P::mutable_text, text);
  if (wire.decodes()) status = absl::Status(code, text);
}

void PartFields(Wire<proto::InquiryPart> wire, InquiryPart& part) {
  using P = proto::InquiryPart;
  wire.Text("inquiry.node", kNodeName, &P::node, &P::mutable_node, part.node);
  wire.Number("inquiry.first_rank", kCount, &P::first_rank, &P::set_first_rank, part.first_rank);
  wire.Number("inquiry.num_ranks", kCount, &P::num_ranks, &P::set_num_ranks, part.num_ranks);
  StatusFields(wire, part.status);
  wire.Text("inquiry.body", kBody, &P::body, &P::mutable_body, part.body);
}

void InquiryFields(Wire<proto::Inquiry> wire, Inquiry& inquiry) {
  using P = proto::Inquiry;
  int kind = static_cast<int>(inquiry.kind) + kFirstKind;
  int64_t bytes_max = static_cast<int64_t>(inquiry.bytes_max);
  wire.Plain(&P::id, &P::set_id, inquiry.id);
  wire.Number("inquiry.kind", kKinds, &P::kind, &P::set_kind, kind);
  wire.Text("inquiry.job", {kMaxRunIdBytes}, &P::job, &P::mutable_job, inquiry.job);
  wire.Text("inquiry.detail", {kInquiryDetailBytesMax}, &P::detail, &P::mutable_detail,
            inquiry.detail);
  if (wire.Has(&P::has_rank, inquiry.rank)) {
    wire.Number("inquiry.rank", kCount, &P::rank, &P::set_rank, *inquiry.rank);
  }
  wire.Number("inquiry.bytes_max", kCount, &P::bytes_max, &P::set_bytes_max, bytes_max);
  if (!wire.decodes()) return;
  inquiry.kind = static_cast<InquiryKind>(kind - kFirstKind);
  inquiry.bytes_max = std::min(static_cast<size_t>(bytes_max), kInquiryPartBytesMax);
}

void ReplyFields(Wire<proto::InquiryReply> wire, InquiryReply& reply) {
  using P = proto::InquiryReply;
  wire.Require(wire.Has(&P::has_part, true), "inquiry.part", "is missing");
  wire.Plain(&P::id, &P::set_id, reply.id);
  wire.Inner(&P::part, &P::mutable_part, reply.part, PartFields);
}

void AnswerFields(Wire<proto::InquiryAnswer> wire, InquiryAnswer& answer) {
  using P = proto::InquiryAnswer;
  wire.Plain(&P::id, &P::set_id, answer.id);
  StatusFields(wire, answer.status);
  wire.Text("inquiry.page", kBody, &P::page, &P::mutable_page, answer.page);
  wire.List("inquiry.parts", {kInquiryPartsMax, kInquiryPartsMax}, &P::parts, &P::mutable_parts,
            answer.parts, PartFields);
}

}  // namespace

void Encode(const Inquiry& in, proto::Inquiry* out) { EncodeFields(in, out, InquiryFields); }
void Encode(const InquiryReply& in, proto::InquiryReply* out) {
  EncodeFields(in, out, ReplyFields);
}
void Encode(const InquiryAnswer& in, proto::InquiryAnswer* out) {
  EncodeFields(in, out, AnswerFields);
}

absl::StatusOr<Inquiry> Decode(const proto::Inquiry& in) {
  return DecodeFields<Inquiry>(in, InquiryFields);
}
absl::StatusOr<InquiryReply> Decode(const proto::InquiryReply& in) {
  return DecodeFields<InquiryReply>(in, ReplyFields);
}
absl::StatusOr<InquiryAnswer> Decode(const proto::InquiryAnswer& in) {
  return DecodeFields<InquiryAnswer>(in, AnswerFields);
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
