// The directives of a server, whole or as repeats of the last, fenced by its term.
//
// Threads: one at a time.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/ids.h"
#include "proto/base/membership.h"

namespace muster::proto {
class Directive;
class Repeat;
}  // namespace muster::proto

namespace muster::rendezvous {

class DirectiveInbox {
 public:
  // The newest that was heard; 0: none yet.
  ServerTerm term() const { return term_; }

  // A stream is accepted by the server of this term at `endpoint`.
  //
  // Errors: kUnavailable: an older server than has been heard.
  absl::Status BeginStream(ServerTerm term, absl::string_view endpoint);
  // Nothing: it is an older server's.
  //
  // Errors: those of the wire.
  absl::StatusOr<std::optional<Directive>> Take(const proto::Directive& message);
  // Nothing: this stream has had none to repeat.
  std::optional<Directive> Take(const proto::Repeat& message);

 private:
  ServerTerm term_;
  std::optional<Directive> last_;  // of this stream
};

}  // namespace muster::rendezvous
