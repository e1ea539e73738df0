#include "launcher/line/metrics_option.h"

#include "launcher/line/run_options.h"
#include "proto/command_line/listen_address.h"

namespace muster::launcher {

std::optional<Endpoint> MetricsAddress(const std::vector<std::string>& args,
                                       const EnvironmentMap& environment) {
  RunChoices choices;
  const auto line = command_line::Split(RunGrammar(choices), args, environment);
  const command_line::Given* const given = line.ok() ? line->Find("metrics") : nullptr;
  if (given == nullptr) return std::nullopt;
  const absl::StatusOr<Endpoint> address = command_line::ParseListenAddress(given->text());
  return address.ok() ? std::optional(*address) : std::nullopt;
}

}  // namespace muster::launcher
