// The only translation between the values of proto/base/inquiry.h and proto/inquiry.proto.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/base/inquiry.h"

namespace muster::proto {
class Inquiry;
class InquiryAnswer;
class InquiryReply;
}  // namespace muster::proto

namespace muster::rendezvous {

// The most nodes that one answer names.
inline constexpr int kInquiryPartsMax = 20000;

void Encode(const Inquiry& in, proto::Inquiry* out);
void Encode(const InquiryReply& in, proto::InquiryReply* out);
void Encode(const InquiryAnswer& in, proto::InquiryAnswer* out);

// Errors: kInvalidArgument: an unknown kind, a negative number, a text or list over its bound.
absl::StatusOr<Inquiry> Decode(const proto::Inquiry& in);
absl::StatusOr<InquiryReply> Decode(const proto::InquiryReply& in);
absl::StatusOr<InquiryAnswer> Decode(const proto::InquiryAnswer& in);

// The same as bytes: at the socket of an agent, behind their length (agent/sight/sight_socket.h).
std::string BytesOf(const Inquiry& inquiry);
std::string BytesOf(const InquiryAnswer& answer);
absl::StatusOr<Inquiry> InquiryFrom(const std::string& bytes);
absl::StatusOr<InquiryAnswer> InquiryAnswerFrom(const std::string& bytes);

// `body` behind its length in four bytes, little endian.
std::string Framed(const std::string& body);

}  // namespace muster::rendezvous
