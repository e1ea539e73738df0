#include "rendezvous/server/stream_writer.h"

#include <utility>
#include <variant>

#include "proto/rendezvous.pb.h"
#include "rendezvous/hangs/wire/watch_wire.h"
#include "rendezvous/link/inquiry_wire.h"
#include "rendezvous/link/renewal.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

StreamWriter::StreamWriter(StreamSink& sink, EncodedParts& parts) : sink_(sink), parts_(parts) {}

StreamWriter::~StreamWriter() = default;

void StreamWriter::Greet(std::unique_ptr<proto::FromServer> greeting) {
  greeting_ = std::move(greeting);
}

void StreamWriter::Push(const Directive& directive) {
  told_end_ = std::holds_alternative<EndJob>(directive.body);
  outbox_.Push(directive);
}

void StreamWriter::OnWritten() {
  is_writing_ = false;
  Pump();
}

void StreamWriter::End(absl::Status status) {
  if (!ending_) ending_ = std::move(status);
}

void StreamWriter::Pump() {
  if (is_writing_ || is_finished_) return;
  if (std::optional<proto::FromServer> message = NextMessage()) {
    is_writing_ = true;
    sink_.Write(*std::move(message));
  } else if (ending_) {
    is_finished_ = true;
    sink_.Finish(*ending_);
  }
}

std::optional<proto::FromServer> StreamWriter::NextMessage() {
  if (greeting_ != nullptr && !ending_) return *std::exchange(greeting_, nullptr);
  if (ending_ && !drains_) return std::nullopt;
  std::optional<Outbox::Message> next = outbox_.Pop();
  if (!next) return std::nullopt;
  proto::FromServer message;
  if (auto* directive = std::get_if<Directive>(&*next)) {
    Say(std::move(*directive), message);
  } else if (const auto* order = std::get_if<hangs::WatchOrder>(&*next)) {
    Encode(*order, message.mutable_watch());
  } else if (const auto* inquiry = std::get_if<Inquiry>(&*next)) {
    Encode(*inquiry, message.mutable_inquiry());
  } else if (const auto* answer = std::get_if<InquiryAnswer>(&*next)) {
    Encode(*answer, message.mutable_inquiry_answer());
  } else {
    Encode(std::get<StoreReply>(*next), message.mutable_store());
  }
  return message;
}

void StreamWriter::Say(Directive directive, proto::FromServer& message) {
  message.set_renew_interval_us(EncodeDuration(sink_.RenewInterval()));
  if (last_directive_ && IsRepeatOf(directive, *last_directive_)) {
    message.mutable_repeat()->set_revision(directive.revision);
    message.mutable_repeat()->set_report_sequence(directive.report_sequence);
    return;
  }
  Encode(directive, parts_, message.mutable_directive());
  last_directive_ = std::move(directive);
}

}  // namespace muster::rendezvous
