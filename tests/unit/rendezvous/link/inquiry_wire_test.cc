// Inquiries and answers survive the wire, and what is out of bounds is refused.
#include "rendezvous/link/inquiry_wire.h"

#include <gtest/gtest.h>

#include "proto/inquiry.pb.h"

namespace muster::rendezvous {
namespace {

TEST(InquiryWire, CarriesAnInquiry) {
  const Inquiry inquiry{.id = 7,
                        .kind = InquiryKind::kLogs,
                        .job = "j7",
                        .rank = 3,
                        .bytes_max = 4096,
                        .detail = "{}"};
  proto::Inquiry message;
  Encode(inquiry, &message);
  EXPECT_EQ(*Decode(message), inquiry);
}

TEST(InquiryWire, CarriesAnAnswer) {
  const InquiryAnswer answer{.id = 7,
                             .status = absl::NotFoundError("no such job"),
                             .page = "page",
                             .parts = {{.node = "node\xff",
                                        .first_rank = 4,
                                        .num_ranks = 2,
                                        .status = absl::UnavailableError("gone"),
                                        .body = "body"}}};
  proto::InquiryAnswer message;
  Encode(answer, &message);
  EXPECT_EQ(*Decode(message), answer);
  const InquiryReply reply{.id = 9, .part = answer.parts[0]};
  proto::InquiryReply of_agent;
  Encode(reply, &of_agent);
  EXPECT_EQ(*Decode(of_agent), reply);
}

TEST(InquiryWire, RefusesWhatIsOutOfBounds) {
  proto::Inquiry message;
  EXPECT_FALSE(Decode(message).ok()) << "a kind is missing";
  Encode(Inquiry{}, &message);
  EXPECT_TRUE(Decode(message).ok());
  message.set_kind(99);
  EXPECT_FALSE(Decode(message).ok());
  Encode(Inquiry{.detail = std::string(kInquiryDetailBytesMax + 1, 'x')}, &message);
  EXPECT_FALSE(Decode(message).ok());
  Encode(Inquiry{}, &message);
  message.clear_detail();
  message.set_rank(-1);
  EXPECT_FALSE(Decode(message).ok());
  EXPECT_FALSE(Decode(proto::InquiryReply()).ok()) << "a part is missing";
}

}  // namespace
}  // namespace muster::rendezvous
