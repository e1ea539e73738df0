#include "launcher/node/log_setup.h"

#include <utility>

#include "proto/base/exit_codes.h"
#include "proto/io/log.h"

namespace muster::launcher {

void ConfigureLog(const OutputFlags& flags, std::function<void(const std::string&)> sink) {
  log::Options options;
  options.sink = std::move(sink);
  options.format = flags.log_format == "json" ? log::Format::kJson : log::Format::kText;
  options.level = flags.log_level == "debug"     ? log::Level::kDebug
                  : flags.log_level == "warning" ? log::Level::kWarning
                  : flags.log_level == "error"   ? log::Level::kError
                                                 : log::Level::kInfo;
  log::Configure(std::move(options));
}

int Refuse(const absl::Status& status) {
  log::Write(log::Level::kError, "refused", status.message());
  return ExitCodeOf(status);
}

}  // namespace muster::launcher
