#include "launcher/line/rendezvous_conf.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/base/nearest_name.h"
#include "proto/base/status_macros.h"
#include "proto/command_line/values.h"

namespace muster::launcher {
namespace {

using command_line::Into;
using command_line::ParseBool;
using command_line::ParseDuration;
using command_line::ParseInteger;
using command_line::ParseNumber;

struct Key {
  std::string name;
  std::function<absl::Status(const std::string& text)> read;
  bool is_shown = true;  // in the help: one that has an effect
};

// A key that torchrun's own back ends have and ours needs not.
Key WithoutEffect(std::string name, bool is_number, std::string why, RendezvousConf& conf) {
  return {
      .name = name,
      .read =
          [name, is_number, why, &conf](const std::string& text) {
            if (is_number) MUSTER_RETURN_IF_ERROR(ParseNumber(text).status());
            conf.warnings.push_back(absl::StrCat("--rdzv_conf ", name, " has no effect: ", why));
            return absl::OkStatus();
          },
      .is_shown = false};
}

absl::Status ReadStoreType(const std::string& text, RendezvousConf& conf) {
  if (text == "file") {
    conf.warnings.push_back(
        "--rdzv_conf store_type=file has no effect: the nodes meet over the network");
    return absl::OkStatus();
  }
  if (text == "tcp") return absl::OkStatus();
  return absl::InvalidArgumentError("expected tcp or file");
}

// Source: torch 2.15, torch/distributed/elastic/rendezvous/{c10d_rendezvous_backend,
// dynamic_rendezvous,static_tcp_rendezvous,etcd_rendezvous,etcd_rendezvous_backend}.py.
std::vector<Key> Keys(RendezvousConf& conf) {
  constexpr bool kNumber = true;
  constexpr char kLeases[] = "leases detect lost nodes; see lease and renew_interval";
  constexpr char kServer[] = "the rendezvous is Muster's own server";
  constexpr char kNoEtcd[] = "it is a setting of etcd, which is not used";
  std::vector<Key> keys = {
      {"join_timeout", Into(ParseDuration, conf.join_timeout)},
      {"last_call_timeout", Into(ParseDuration, conf.last_call_timeout)},
      {"close_timeout", Into(ParseDuration, conf.close_timeout)},
      {"read_timeout", Into(ParseDuration, conf.read_timeout)},
      {"orphan_timeout", Into(ParseDuration, conf.orphan_timeout)},
      {"lease", Into(ParseDuration, conf.lease)},
      {"renew_interval", Into(ParseDuration, conf.renew_interval)},
      {"is_host", Into(ParseBool, conf.is_host)},
      {"timeout", Into(ParseDuration, conf.timeout), false},
      {"rank", Into(ParseInteger, conf.rank), false},
      {"store_type", [&conf](const std::string& text) { return ReadStoreType(text, conf); }, false},
      WithoutEffect("use_libuv", !kNumber, kServer, conf),
  };
  for (const char* name : {"heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt"}) {
    keys.push_back(WithoutEffect(name, kNumber, kLeases, conf));
  }
  keys.push_back(WithoutEffect("cas_backoff_max_seconds", kNumber, kServer, conf));
  for (const char* name : {"etcd_prefix", "protocol", "cert", "key", "cacert", "ssl_cert",
                           "ssl_cert_key", "ca_cert"}) {
    keys.push_back(WithoutEffect(name, !kNumber, kNoEtcd, conf));
  }
  return keys;
}

std::string Unquote(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.front() == text.back();
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

// Takes off quotes around the whole text; those of `"a=1",b="2"` stay, since they do not belong
// together.
std::string UnquoteWhole(const std::string& text) {
  const std::string inner = Unquote(text);
  const bool one_pair = inner == text || inner.find(text.front()) == std::string::npos;
  return one_pair ? inner : text;
}

absl::Status UnknownKey(const std::string& name, const std::vector<Key>& keys) {
  std::vector<std::string> known;
  known.reserve(keys.size());
  for (const Key& key : keys) known.push_back(key.name);
  const std::string nearest = DidYouMean(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown key '", name, "'",
                   nearest.empty() ? absl::StrCat("; expected ", RendezvousConfKeys()) : nearest));
}

}  // namespace

absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text) {
  RendezvousConf conf;
  const std::vector<Key> keys = Keys(conf);
  const std::string items = UnquoteWhole(text);
  if (absl::StripAsciiWhitespace(items).empty()) return conf;
  for (absl::string_view item : absl::StrSplit(items, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parts.first));
    const std::string value = Unquote(parts.second);
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const Key& known) { return known.name == name; });
    if (!name.empty() && key == keys.end()) return UnknownKey(name, keys);
    if (name.empty() || value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' is not of the form KEY=VALUE, such as join_timeout=600"));
    }
    if (absl::Status status = key->read(value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, "=", value, ": ", status.message()));
    }
  }
  return conf;
}

std::string RendezvousConfKeys() {
  RendezvousConf unused;
  std::vector<std::string> shown;
  for (const Key& key : Keys(unused)) {
    if (key.is_shown) shown.push_back(key.name);
  }
  return absl::StrJoin(shown, ", ");
}

}  // namespace muster::launcher
