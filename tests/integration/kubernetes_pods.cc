#include "tests/integration/kubernetes_pods.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <initializer_list>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

constexpr char kToken[] = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";
constexpr char kUid[] = "c0ffee00-0000-4000-8000-000000000000";

using Labels = std::map<std::string, std::string>;

std::vector<YAML::Node> DocumentsOf(const std::string& file) {
  return YAML::LoadAllFromFile(absl::StrCat(kSourceDirectory, "/deploy/k8s/", file));
}

YAML::Node Find(const std::vector<YAML::Node>& documents, const std::string& kind) {
  for (const YAML::Node& document : documents) {
    if (document["kind"].as<std::string>() == kind) return document;
  }
  return YAML::Node();
}

// The part at `path`; null where there is no such part.
YAML::Node At(const YAML::Node& node, std::initializer_list<const char*> path) {
  YAML::Node found = node;
  for (const char* key : path) {
    const YAML::Node here = found;
    if (!here.IsMap() || !here[key]) return YAML::Node();
    found.reset(here[key]);
  }
  return found;
}

std::string Text(const YAML::Node& node, std::initializer_list<const char*> path) {
  const YAML::Node found = At(node, path);
  return found.IsScalar() ? found.as<std::string>() : "";
}

bool Contains(const YAML::Node& list, int number) {
  for (const YAML::Node& one : list) {
    if (one.as<int>() == number) return true;
  }
  return false;
}

// Names of a pod by a headless service that selects it: nodes start when nobody is ready yet.
void NameByService(const YAML::Node& service, const std::string& subdomain, const Labels& labels,
                   Pod& pod) {
  if (Text(service, {"spec", "clusterIP"}) != "None") return;
  for (const auto& wanted : service["spec"]["selector"]) {
    const auto label = labels.find(wanted.first.as<std::string>());
    if (label == labels.end() || label->second != wanted.second.as<std::string>()) return;
  }
  const std::string name = Text(service, {"metadata", "name"});
  if (subdomain == name && Text(service, {"spec", "publishNotReadyAddresses"}) == "true") {
    const std::string full = absl::StrCat(pod.name, ".", name, ".default.svc.cluster.local");
    pod.hosts.insert(pod.hosts.begin(), full);
  }
  pod.hosts.push_back(name);
}

std::string FieldOf(const std::string& path, const Pod& pod, const Labels& labels) {
  if (path == "metadata.name") return pod.name;
  for (const char* kind : {"metadata.labels['", "metadata.annotations['"}) {
    if (!absl::StartsWith(path, kind)) continue;
    const std::string key = path.substr(std::string(kind).size());
    const auto label = labels.find(key.substr(0, key.find('\'')));
    if (label != labels.end()) return label->second;
  }
  ADD_FAILURE() << "a pod has no field " << path;
  return "";
}

void ReadEnvironment(const YAML::Node& container, const Labels& labels, Pod& pod) {
  for (const YAML::Node& variable : At(container, {"env"})) {
    const std::string value =
        variable["value"]
            ? variable["value"].as<std::string>()
            : FieldOf(variable["valueFrom"]["fieldRef"]["fieldPath"].as<std::string>(), pod,
                      labels);
    pod.environment.emplace_back(variable["name"].as<std::string>(), value);
  }
}

// $(NAME) stands for a variable of the container in its command line.
void ReadCommand(const YAML::Node& container, Pod& pod) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [name, value] : pod.environment) {
    values.emplace_back(absl::StrCat("$(", name, ")"), value);
  }
  for (const char* part : {"command", "args"}) {
    for (const YAML::Node& word : At(container, {part})) {
      pod.command.push_back(absl::StrReplaceAll(word.as<std::string>(), values));
    }
  }
}

void ReadMounts(const YAML::Node& spec, const YAML::Node& claims, const YAML::Node& container,
                Pod& pod) {
  for (const YAML::Node& mount : At(container, {"volumeMounts"})) {
    const std::string name = mount["name"].as<std::string>();
    PodMount& made = pod.mounts.emplace_back();
    made.path = mount["mountPath"].as<std::string>();
    bool is_known = false;
    for (const YAML::Node& volume : At(spec, {"volumes"})) {
      if (volume["name"].as<std::string>() != name) continue;
      is_known = true;
      made.secret = Text(volume, {"secret", "secretName"});
      made.mode = Text(volume, {"secret", "defaultMode"});
    }
    for (const YAML::Node& claim : claims) {
      if (Text(claim, {"metadata", "name"}) == name) is_known = made.outlives_pod = true;
    }
    EXPECT_TRUE(is_known) << "no volume is called " << name;
  }
}

struct Template {
  YAML::Node spec;    // of the pod
  YAML::Node claims;  // volumes that outlive it
  Labels labels;      // and annotations, of its controllers too
  std::string subdomain;
};

Pod MakePod(const std::string& name, const Template& made_of, const YAML::Node& service) {
  const YAML::Node& spec = made_of.spec;
  EXPECT_EQ(spec["containers"].size(), 1u);
  const YAML::Node container = spec["containers"][0];
  Pod pod{.name = name};
  NameByService(service, made_of.subdomain, made_of.labels, pod);
  // Every container of a cluster has these.
  pod.environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"},
                     {"HOSTNAME", name},
                     {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                     {"KUBERNETES_SERVICE_PORT", "443"}};
  ReadEnvironment(container, made_of.labels, pod);
  ReadCommand(container, pod);
  ReadMounts(spec, made_of.claims, container, pod);
  pod.working_directory = Text(container, {"workingDir"});
  pod.probe_port = Text(container, {"readinessProbe", "httpGet", "port"});
  pod.probe_path = Text(container, {"readinessProbe", "httpGet", "path"});
  EXPECT_EQ(!pod.probe_port.empty(), At(container, {"readinessProbe"}).IsMap());
  pod.user = Text(spec, {"securityContext", "runAsUser"});
  EXPECT_EQ(pod.user, Text(spec, {"securityContext", "fsGroup"}));
  EXPECT_EQ(pod.user, Text(spec, {"securityContext", "runAsGroup"}));
  return pod;
}

std::vector<Pod> PodsOfJob(const std::string& name, const YAML::Node& job, Template made_of,
                           const YAML::Node& service) {
  const YAML::Node& spec = job["spec"];
  EXPECT_EQ(Text(spec, {"completionMode"}), "Indexed");
  EXPECT_EQ(Text(spec, {"completions"}), Text(spec, {"parallelism"})) << "all nodes start together";
  made_of.spec = spec["template"]["spec"];
  if (made_of.subdomain.empty()) made_of.subdomain = Text(made_of.spec, {"subdomain"});
  made_of.labels["batch.kubernetes.io/job-name"] = name;
  made_of.labels["batch.kubernetes.io/controller-uid"] = kUid;
  std::vector<Pod> pods;
  for (int index = 0; index < spec["completions"].as<int>(); ++index) {
    pods.push_back(MakePod(absl::StrCat(name, "-", index), made_of, service));
    pods.back().environment.emplace_back("JOB_COMPLETION_INDEX", absl::StrCat(index));
  }
  return pods;
}

// JobSet's controller makes the headless service, by the name of the set.
std::vector<Pod> PodsOfSet(const YAML::Node& set) {
  const std::string name = Text(set, {"metadata", "name"});
  YAML::Node service;
  service["metadata"]["name"] = name;
  service["spec"]["clusterIP"] = "None";
  service["spec"]["publishNotReadyAddresses"] = "true";
  service["spec"]["selector"]["jobset.sigs.k8s.io/jobset-name"] = name;
  std::vector<Pod> pods;
  for (const YAML::Node& jobs : set["spec"]["replicatedJobs"]) {
    for (int index = 0; index < jobs["replicas"].as<int>(); ++index) {
      Template made_of{.labels = {{"jobset.sigs.k8s.io/jobset-name", name},
                                  {"jobset.sigs.k8s.io/jobset-uid", kUid},
                                  {"jobset.sigs.k8s.io/job-index", absl::StrCat(index)}},
                       .subdomain = name};
      for (Pod& pod : PodsOfJob(absl::StrCat(name, "-", Text(jobs, {"name"}), "-", index),
                                jobs["template"], made_of, service)) {
        pods.push_back(std::move(pod));
      }
    }
  }
  return pods;
}

std::vector<Pod> PodsOfStatefulSet(const YAML::Node& set, const YAML::Node& service) {
  Template made_of{.spec = set["spec"]["template"]["spec"],
                   .claims = At(set, {"spec", "volumeClaimTemplates"}),
                   .subdomain = Text(set, {"spec", "serviceName"})};
  for (const auto& label : set["spec"]["template"]["metadata"]["labels"]) {
    made_of.labels[label.first.as<std::string>()] = label.second.as<std::string>();
  }
  return {MakePod(Text(set, {"metadata", "name"}) + "-0", made_of, service)};
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The only CPU of a pod: workers are counted by CPUs.
int FirstCpu() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &allowed)) ++cpu;
  return cpu;
}

}  // namespace

std::vector<Pod> PodsOf(const std::string& file) {
  const std::vector<YAML::Node> documents = DocumentsOf(file);
  const YAML::Node service = Find(documents, "Service");
  if (const YAML::Node set = Find(documents, "JobSet"); set.IsMap()) return PodsOfSet(set);
  if (const YAML::Node set = Find(documents, "StatefulSet"); set.IsMap()) {
    return PodsOfStatefulSet(set, service);
  }
  const YAML::Node job = Find(documents, "Job");
  return PodsOfJob(Text(job, {"metadata", "name"}), job, {}, service);
}

bool RestartsAllContainers(const std::string& file, int code) {
  const YAML::Node set = Find(DocumentsOf(file), "JobSet");
  const YAML::Node job = set["spec"]["replicatedJobs"][0]["template"]["spec"];
  for (const YAML::Node& rule : job["template"]["spec"]["containers"][0]["restartPolicyRules"]) {
    const YAML::Node codes = rule["exitCodes"];
    const bool is_listed = Contains(codes["values"], code);
    if (is_listed == (codes["operator"].as<std::string>() == "In")) {
      return Text(rule, {"action"}) == "RestartAllContainers";
    }
  }
  return false;
}

bool EndsJob(const std::string& file, int code) {
  const std::vector<YAML::Node> documents = DocumentsOf(file);
  const YAML::Node set = Find(documents, "JobSet");
  const YAML::Node job =
      set.IsMap() ? set["spec"]["replicatedJobs"][0]["template"] : Find(documents, "Job");
  if (code == 0) {
    return Text(set.IsMap() ? set : job, {"spec", "successPolicy", "operator"}) == "Any" ||
           job["spec"]["successPolicy"]["rules"][0]["succeededCount"].as<int>() == 1;
  }
  for (const YAML::Node& rule : job["spec"]["podFailurePolicy"]["rules"]) {
    const YAML::Node codes = rule["onExitCodes"];
    if (!codes) continue;
    EXPECT_EQ(codes["operator"].as<std::string>(), "In");
    if (Contains(codes["values"], code)) return Text(rule, {"action"}) == "FailJob";
  }
  return false;
}

void PodsInNamespaces::SetUp() {
  JobTest::SetUp();
  if (!NodeNetwork::IsPossible()) GTEST_SKIP() << "network namespaces need root and iproute2";
}

void PodsInNamespaces::TearDown() {
  network_.reset();
  JobTest::TearDown();
}

void PodsInNamespaces::Place(std::vector<Pod> pods, const std::string& program) {
  pods_ = std::move(pods);
  WriteFile(directory() + "/train.py", program);
  std::filesystem::create_directories(directory() + "/claim");
  network_ = std::make_unique<NodeNetwork>(static_cast<int>(pods_.size()));
  std::string names = "127.0.0.1 localhost\n";
  for (size_t pod = 0; pod < pods_.size(); ++pod) {
    absl::StrAppend(&names, network_->AddressOf(static_cast<int>(pod) + 1), "\t",
                    absl::StrJoin(pods_[pod].hosts, "\t"), "\t", pods_[pod].name, "\n");
  }
  for (size_t pod = 0; pod < pods_.size(); ++pod) {
    network_->SetHosts(static_cast<int>(pod) + 1, names);
  }
}

std::string PodsInNamespaces::ScriptOf(size_t pod_index) const {
  const Pod& pod = pods_[pod_index];
  std::string script =
      absl::StrCat(R"(set -eu
root=$1
mount -t tmpfs -o mode=0755 tmpfs "$root"
cd "$root"
for folder in bin etc lib lib32 lib64 sbin usr; do
  if [ -L "/$folder" ]; then
    cp -a "/$folder" .
  elif [ -d "/$folder" ]; then
    mkdir "$folder"
    mount --rbind "/$folder" "$folder"
  fi
done
mkdir dev proc root run sys
mkdir -m 1777 tmp
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
)",
                   "mount --bind ", kBinaryDirectory, " usr/local/bin\n", "mkdir -p .", out(),
                   "\nmount --bind ", out(), " .", out(), "\nhostname ", pod.name, "\n");
  for (const PodMount& mount : pod.mounts) {
    const std::string path = "." + mount.path;
    absl::StrAppend(&script, "mkdir -p ", path, "\n");
    if (mount.outlives_pod) {
      absl::StrAppend(&script, "mount --bind ", directory(), "/claim ", path, "\n");
    } else {
      absl::StrAppend(&script, "mount -t tmpfs -o mode=01777 tmpfs ", path, "\n");
    }
    if (!pod.user.empty()) absl::StrAppend(&script, "chgrp ", pod.user, " ", path, "\n");
    if (mount.outlives_pod) absl::StrAppend(&script, "chmod 2775 ", path, "\n");
    if (mount.secret.empty()) continue;
    // The kubelet lays a secret out so that its files can be exchanged at once.
    absl::StrAppend(&script, "mkdir ", path, "/..2026\nprintf %s ", Quoted(kToken), " > ", path,
                    "/..2026/token\nchmod ", mount.mode, " ", path, "/..2026/token\n");
    if (!pod.user.empty()) {
      absl::StrAppend(&script, "chgrp ", pod.user, " ", path, "/..2026/token\n");
    }
    absl::StrAppend(&script, "ln -s ..2026 ", path, "/..data\nln -s ..data/token ", path,
                    "/token\n");
  }
  const std::string folder = pod.working_directory.empty() ? "/" : pod.working_directory;
  absl::StrAppend(&script, "mkdir -p .", folder, "\n");
  if (folder != "/") absl::StrAppend(&script, "cp ", directory(), "/train.py .", folder, "\n");
  absl::StrAppend(&script, "exec taskset -c ", FirstCpu(), " env -i");
  for (const auto& [name, value] : pod.environment) {
    absl::StrAppend(&script, " ", Quoted(absl::StrCat(name, "=", value)));
  }
  // The test finds what is left behind by its mark, and its program finds the test's directory.
  absl::StrAppend(&script, " ", Quoted(mark()), " ", Quoted("OUT=" + out()),
                  " /usr/sbin/chroot . /usr/bin/env -C ", folder);
  if (!pod.user.empty()) {
    absl::StrAppend(&script, " setpriv --reuid=", pod.user, " --regid=", pod.user,
                    " --clear-groups --inh-caps=-all --no-new-privs");
  }
  for (const std::string& word : pod.command) absl::StrAppend(&script, " ", Quoted(word));
  return script + "\n";
}

Subprocess PodsInNamespaces::StartContainer(size_t pod) const {
  const std::string root = absl::StrCat(directory(), "/", pods_[pod].name);
  std::filesystem::create_directories(root);
  return StartProgram(
      network_->On(static_cast<int>(pod) + 1,
                   {"/usr/bin/unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
                    "/bin/sh", "-c", ScriptOf(pod), "container", root}));
}

SubprocessResult PodsInNamespaces::RunInPod(size_t pod, const Arguments& arguments) const {
  return StartProgram(network_->On(static_cast<int>(pod) + 1,
                                   Arguments{"/usr/bin/env", absl::StrCat("MUSTER_TOKEN=", kToken),
                                             MusterBinary()} +
                                       arguments))
      .Wait(kPodPatience);
}

// The kubelet of a node asks from outside its pods, here from node 0.
bool PodsInNamespaces::IsReady(size_t pod) const {
  constexpr char kAsks[] =
      "import http.client, sys\n"
      "asked = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))\n"
      "asked.request('GET', sys.argv[3])\n"
      "sys.exit(asked.getresponse().status != 200)\n";
  return StartProgram(network_->On(0, {"/usr/bin/python3", "-c", kAsks,
                                       network_->AddressOf(static_cast<int>(pod) + 1),
                                       pods_[pod].probe_port, pods_[pod].probe_path}))
             .Wait(kPodPatience)
             .exit_code == 0;
}

// The first process of its process namespace: all others end with it.
void PodsInNamespaces::KillContainer(Subprocess& container) {
  const std::string children =
      ReadFile(absl::StrCat("/proc/", container.pid(), "/task/", container.pid(), "/children"));
  int first = 0;
  EXPECT_TRUE(absl::SimpleAtoi(children, &first)) << children;
  if (first > 1) kill(first, SIGKILL);
  EXPECT_TRUE(container.Wait(kPodPatience).ended);
}

}  // namespace muster::testing
