#include "launcher/hosts/remote_start.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster::launcher {
namespace {

constexpr absl::string_view kFormat = "muster-start-1";

// Fields with blanks between them, each a letter for what it is and the text in hexadecimal, so
// that any byte may be in it.
void Append(std::string& line, char kind, absl::string_view text) {
  absl::StrAppend(&line, " ", absl::string_view(&kind, 1), absl::BytesToHexString(text));
}

bool ReadHex(absl::string_view hex, std::string& out) {
  if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdef") != absl::string_view::npos) {
    return false;
  }
  out = absl::HexStringToBytes(hex);
  return out.find('\0') == std::string::npos;
}

absl::Status Bad(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("standard input is not what `muster run --hostfile` sends: ", why,
                   "; install the same Muster on both hosts"));
}

absl::Status ReadField(absl::string_view field, RemoteStart& start) {
  std::string text;
  if (field.empty() || !ReadHex(field.substr(1), text)) return Bad("damaged field");
  switch (field.front()) {
    case 'd':
      start.directory = std::move(text);
      return absl::OkStatus();
    case 'a':
      start.arguments.push_back(std::move(text));
      return absl::OkStatus();
    case 'e': {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) return Bad("a variable has no name");
      start.environment[text.substr(0, equals)] = text.substr(equals + 1);
      return absl::OkStatus();
    }
    default:
      return Bad("unknown field");
  }
}

}  // namespace

std::string EncodeRemoteStart(const RemoteStart& start) {
  std::string line(kFormat);
  Append(line, 'd', start.directory);
  for (const std::string& argument : start.arguments) Append(line, 'a', argument);
  for (const auto& [name, value] : start.environment) {
    Append(line, 'e', absl::StrCat(name, "=", value));
  }
  return line + "\n";
}

absl::StatusOr<RemoteStart> DecodeRemoteStart(const std::string& line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(absl::StripSuffix(line, "\n"), ' ');
  if (fields.front() != kFormat) return Bad("unknown format");
  RemoteStart start;
  for (size_t i = 1; i < fields.size(); ++i) {
    const absl::Status status = ReadField(fields[i], start);
    if (!status.ok()) return status;
  }
  if (start.directory.empty()) return Bad("the working directory is missing");
  return start;
}

}  // namespace muster::launcher
