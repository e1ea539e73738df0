#include "tests/support/node_network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

std::string HubOf(int network) { return network == 0 ? "hub" : absl::StrCat("hub", network); }

constexpr char kIp[] = "/usr/sbin/ip";

// Whose files `ip netns exec` puts over those of /etc.
std::filesystem::path FolderOf(const std::string& name) { return "/etc/netns/" + name; }

bool Ip(const std::string& arguments) {
  const int status = std::system(absl::StrCat(kIp, " ", arguments, " 2> /dev/null").c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void MustIp(const std::string& arguments) { MUSTER_CHECK(Ip(arguments)); }

}  // namespace

bool NodeNetwork::IsPossible() {
  if (geteuid() != 0 || access(kIp, X_OK) != 0) return false;
  const std::string name = absl::StrCat("muster-probe-", getpid());
  return Ip("netns add " + name) && Ip("netns del " + name);
}

NodeNetwork::NodeNetwork(int num_nodes, int num_networks)
    : num_nodes_(num_nodes), prefix_(absl::StrCat("muster", getpid(), "-")) {
  MustIp("netns add " + NameOf(0));
  Configure(0, "link set lo up");
  for (int node = 1; node <= num_nodes_; ++node) {
    MustIp("netns add " + NameOf(node));
    Configure(node, "link set lo up");
  }
  for (int network = 0; network < num_networks; ++network) {
    const std::string hub = HubOf(network);
    Configure(0, absl::StrCat("link add ", hub, " type bridge"));
    Configure(0, absl::StrCat("address add ", AddressOf(0, network), "/24 dev ", hub));
    Configure(0, absl::StrCat("link set ", hub, " up"));
    for (int node = 1; node <= num_nodes_; ++node) {
      const std::string link = LinkOf(node, network), end = absl::StrCat("eth", network);
      Configure(0, absl::StrCat("link add ", link, " type veth peer name ", end, " netns ",
                                NameOf(node)));
      Configure(node, absl::StrCat("address add ", AddressOf(node, network), "/24 dev ", end));
      Configure(node, absl::StrCat("link set ", end, " up"));
      Configure(0, absl::StrCat("link set ", link, " master ", hub, " up"));
    }
  }
}

NodeNetwork::~NodeNetwork() {
  for (int node = 0; node <= num_nodes_; ++node) {
    Ip("netns del " + NameOf(node));
    std::error_code ignored;
    std::filesystem::remove_all(FolderOf(NameOf(node)), ignored);
  }
}

std::string NodeNetwork::AddressOf(int node, int network) const {
  return absl::StrCat("10.", 77 + network, ".0.", node + 1);
}

void NodeNetwork::Configure(int node, const std::string& arguments) const {
  MustIp(absl::StrCat("-n ", NameOf(node), " ", arguments));
}

void NodeNetwork::SetHosts(int node, const std::string& text) const {
  const std::filesystem::path folder = FolderOf(NameOf(node));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "hosts") << text;
}

void NodeNetwork::Narrow(int node, int network, int bytes) const {
  Configure(0, absl::StrCat("link set ", LinkOf(node, network), " mtu ", bytes));
}

std::vector<std::string> NodeNetwork::On(int node, const std::vector<std::string>& argv) const {
  std::vector<std::string> all = {kIp, "netns", "exec", NameOf(node)};
  all.insert(all.end(), argv.begin(), argv.end());
  return all;
}

void NodeNetwork::Cut(int node) const {
  MustIp(absl::StrCat("-n ", NameOf(0), " link set ", LinkOf(node), " nomaster"));
}

void NodeNetwork::Heal(int node) const {
  MustIp(absl::StrCat("-n ", NameOf(0), " link set ", LinkOf(node), " master hub"));
}

// Frames of the one to the other have an address that nobody has, and are silently lost.
void NodeNetwork::CutBetween(int a, int b) const {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    MustIp(absl::StrCat("-n ", NameOf(from), " neigh replace ", AddressOf(to),
                        " lladdr 02:00:00:00:00:fe dev eth0 nud permanent"));
  }
}

void NodeNetwork::HealBetween(int a, int b) const {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    MustIp(absl::StrCat("-n ", NameOf(from), " neigh del ", AddressOf(to), " dev eth0"));
  }
}

std::string NodeNetwork::NameOf(int node) const { return absl::StrCat(prefix_, node); }

std::string NodeNetwork::LinkOf(int node, int network) const {
  return absl::StrCat("node", node, network == 0 ? "" : absl::StrCat("-", network));
}

}  // namespace muster::testing
