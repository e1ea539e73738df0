#include "tests/support/node_network.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

constexpr char kIp[] = "/usr/sbin/ip";

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

NodeNetwork::NodeNetwork(int num_nodes)
    : num_nodes_(num_nodes), prefix_(absl::StrCat("muster", getpid(), "-")) {
  MustIp("netns add " + NameOf(0));
  MustIp(absl::StrCat("-n ", NameOf(0), " link set lo up"));
  MustIp(absl::StrCat("-n ", NameOf(0), " link add hub type bridge"));
  MustIp(absl::StrCat("-n ", NameOf(0), " address add ", AddressOf(0), "/24 dev hub"));
  MustIp(absl::StrCat("-n ", NameOf(0), " link set hub up"));
  for (int node = 1; node <= num_nodes_; ++node) {
    const std::string name = NameOf(node), link = LinkOf(node);
    MustIp("netns add " + name);
    MustIp(absl::StrCat("-n ", name, " link set lo up"));
    MustIp(absl::StrCat("-n ", NameOf(0), " link add ", link, " type veth peer name eth0 netns ",
                        name));
    MustIp(absl::StrCat("-n ", name, " address add ", AddressOf(node), "/24 dev eth0"));
    MustIp(absl::StrCat("-n ", name, " link set eth0 up"));
    MustIp(absl::StrCat("-n ", NameOf(0), " link set ", link, " master hub up"));
  }
}

NodeNetwork::~NodeNetwork() {
  for (int node = 0; node <= num_nodes_; ++node) Ip("netns del " + NameOf(node));
}

std::string NodeNetwork::AddressOf(int node) const { return absl::StrCat("10.77.0.", node + 1); }

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

std::string NodeNetwork::LinkOf(int node) const { return absl::StrCat("node", node); }

}  // namespace muster::testing
