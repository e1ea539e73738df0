// What a Prometheus shows to be told the metrics of a user's jobs: a bearer token that is derived
// from the user's secret. It opens /metrics and nothing else, and the secret cannot be computed
// from it, so that it may lie on the machine of a Prometheus.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// 64 hexadecimal digits.
std::string DeriveMetricsToken(absl::string_view secret);

// Whether `authorization`, the value of that header, is "Bearer <token>". Takes as long for every
// wrong token of that length.
bool IsBearerOf(absl::string_view authorization, absl::string_view token);

}  // namespace muster
