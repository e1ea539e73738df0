#include "rendezvous/client/directive_inbox.h"

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {

absl::Status DirectiveInbox::BeginStream(ServerTerm term, absl::string_view endpoint) {
  if (term < term_) {
    return absl::UnavailableError(absl::StrCat("the server at ", endpoint, " is of term ",
                                               ToString(term), ", older than term ",
                                               ToString(term_), " heard before"));
  }
  term_ = term;
  last_.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Directive>> DirectiveInbox::Take(const proto::Directive& message) {
  MUSTER_ASSIGN_OR_RETURN(Directive directive, Decode(message));
  if (directive.term < term_) return std::optional<Directive>();
  term_ = directive.term;
  last_ = std::move(directive);
  return last_;
}

std::optional<Directive> DirectiveInbox::Take(const proto::Repeat& message) {
  if (!last_) return std::nullopt;
  last_->revision = message.revision();
  last_->report_sequence = message.report_sequence();
  return last_;
}

}  // namespace muster::rendezvous
