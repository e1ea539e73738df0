#include "agent/sight/sight_desk.h"

#include <utility>

namespace muster::agent {
namespace {

bool IsAnsweredByAgents(InquiryKind kind) {
  return kind != InquiryKind::kStatus && kind != InquiryKind::kJobs && kind != InquiryKind::kWay;
}

absl::Duration PatienceFor(InquiryKind kind) {
  return kServerPatience + (IsAnsweredByAgents(kind) ? TimeFor(kind) : absl::ZeroDuration());
}

}  // namespace

SightDesk::SightDesk(asio::io_context& loop, SightSources sources)
    : sources_(std::move(sources)),
      mailbox_(loop),
      loop_(loop),
      socket_(loop, [this](uint64_t connection, Inquiry inquiry) {
        OnAsked(connection, std::move(inquiry));
      }) {}

SightDesk::~SightDesk() { mailbox_.Close(); }

void SightDesk::Close() {
  socket_.Close();
  open_.clear();
}

void SightDesk::OnAsked(uint64_t connection, Inquiry inquiry) {
  if (inquiry.kind == InquiryKind::kJobs) {
    socket_.Answer(connection, {.status = absl::InvalidArgumentError("an agent has one job")});
    return;
  }
  if (inquiry.kind == InquiryKind::kWay) {
    socket_.Answer(connection, {.page = sources_.way()});
    return;
  }
  const uint64_t id = next_id_++;
  inquiry.id = id;
  auto open = std::make_unique<Open>(Open{connection, inquiry, asio::steady_timer(loop_)});
  open->patience.expires_after(absl::ToChronoNanoseconds(PatienceFor(inquiry.kind)));
  open->patience.async_wait([this, mailbox = mailbox_, id](const asio::error_code& error) {
    if (error) return;
    mailbox.Post(
        [this, id] { AnswerHere(id, absl::UnavailableError("the rendezvous does not answer")); });
  });
  open_[id] = std::move(open);
  sources_.ask_server(inquiry);
}

void SightDesk::OnAnswer(InquiryAnswer answer) {
  const auto open = open_.find(answer.id);
  if (open == open_.end()) return;
  if (absl::IsUnavailable(answer.status)) return AnswerHere(answer.id, answer.status);
  const uint64_t connection = open->second->connection;
  open_.erase(open);
  socket_.Answer(connection, answer);
}

void SightDesk::AnswerHere(uint64_t id, const absl::Status& why) {
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  const std::unique_ptr<Open> open = std::move(found->second);
  open_.erase(found);
  const std::string words(why.message());
  if (!IsAnsweredByAgents(open->inquiry.kind)) {
    socket_.Answer(open->connection, {.page = sources_.own_page(words)});
    return;
  }
  sources_.look(open->inquiry, [this, mailbox = mailbox_, connection = open->connection,
                                words](InquiryPart part) {
    InquiryAnswer answer;
    answer.parts.push_back(std::move(part));
    answer.parts.push_back({.node = "the other nodes", .status = absl::UnavailableError(words)});
    mailbox.Post(
        [this, connection, answer = std::move(answer)] { socket_.Answer(connection, answer); });
  });
}

void SightDesk::OnInquiry(const Inquiry& inquiry) {
  if (!IsAnsweredByAgents(inquiry.kind)) return;
  sources_.look(inquiry, [this, mailbox = mailbox_, id = inquiry.id](InquiryPart part) {
    mailbox.Post(
        [this, reply = InquiryReply{id, std::move(part)}] { sources_.tell_server(reply); });
  });
}

}  // namespace muster::agent
