#include "proto/base/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr char kFieldUrl[] = "muster/field";

absl::Status WithField(absl::Status status, absl::string_view field) {
  if (!field.empty()) status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  return WithField(absl::Status(status.code(), message), FieldOf(status));
}

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view rest, absl::StatusCode code) {
  return WithField(absl::Status(code, absl::StrCat(field, rest)), field);
}

std::string FieldOf(const absl::Status& status) {
  const auto field = status.GetPayload(kFieldUrl);
  return field ? std::string(*field) : "";
}

absl::Status WithBeginning(absl::string_view beginning, const absl::Status& status) {
  return WithMessage(status, absl::StrCat(beginning, status.message()));
}

absl::Status WithoutBeginning(absl::string_view beginning, const absl::Status& status) {
  return WithMessage(status, absl::StripPrefix(status.message(), beginning));
}

}  // namespace muster
