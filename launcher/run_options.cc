// The options of `muster run`. torchrun's are all here (reference launcher 1.2), with their
// defaults out of JobSpec.
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launcher/command_line.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {
namespace {

std::string Default(absl::string_view what) { return absl::StrCat(" [", what, "]"); }
std::string Default(int number) { return Default(absl::StrCat(number)); }
std::string Default(absl::Duration time) { return Default(absl::FormatDuration(time)); }

std::vector<Option> JobOptions(const JobSpec& spec) {
  constexpr char kGroup[] = "Job";
  return {
      {"nnodes", "N|MIN:MAX", kGroup,
       absl::StrCat("nodes of the job; a range makes it elastic", Default(spec.max_nodes))},
      {"nproc_per_node", "N|auto|cpu|gpu|gpu:1,3", kGroup,
       absl::StrCat("workers on this node; auto: one per GPU, else per CPU",
                    Default(spec.nproc_per_node.count))},
      {"standalone", "", kGroup, "a job on this node alone, apart from any other"},
      {"role", "NAME", kGroup, absl::StrCat("role of the workers", Default(spec.role))},
      {"node_rank", "N", kGroup, "number of this node; static back end, otherwise a wish"},
  };
}

std::vector<Option> RendezvousOptions(const JobSpec& spec) {
  constexpr char kGroup[] = "Rendezvous";
  return {
      {"rdzv_backend", "NAME", kGroup,
       absl::StrCat("static, c10d or muster", Default(ToString(spec.backend)))},
      {"rdzv_endpoint", "HOST[:PORT]", kGroup,
       absl::StrCat("where the nodes meet: one of them, or musterd\n", "[port ",
                    kDefaultRendezvousPort, "; static: none, give one]")},
      {"rdzv_id", "ID", kGroup, absl::StrCat("id of the job", Default(spec.run_id))},
      {"rdzv_conf", "K=V,...", kGroup,
       "join_timeout, last_call_timeout, close_timeout, read_timeout,\n"
       "lease, renew_interval, orphan_timeout, is_host"},
      {"master_addr", "HOST", kGroup, "several nodes: the host of the endpoint; one: MASTER_ADDR"},
      {"master_port", "PORT", kGroup, "several nodes: the port of the endpoint; one: MASTER_PORT"},
      {"local_addr", "HOST", kGroup, "address at which the other nodes reach this one [chosen]"},
      {"worker_ports", "A-B", kGroup, "ports for the workers, for firewalls [any]"},
      {"tls", "on|off", kGroup, absl::StrCat("encrypt", Default(spec.tls ? "on" : "off"))},
  };
}

std::vector<Option> FailureOptions(const JobSpec& spec) {
  constexpr char kGroup[] = "Failures and signals";
  return {
      {"max_restarts", "N", kGroup,
       absl::StrCat("restarts of the whole job after failures", Default(spec.max_restarts))},
      {"shutdown_timeout",
       "SECONDS",
       kGroup,
       absl::StrCat("grace between the first signal and SIGKILL", Default(spec.shutdown_timeout)),
       {"PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}},
      {"signals_to_handle", "SIG,...", kGroup,
       "signals that stop the job [SIGTERM,SIGINT,SIGHUP,SIGQUIT]"},
      {"monitor_interval", "SECONDS", kGroup, "accepted; a worker's end is seen at once"},
  };
}

std::vector<Option> ProgramOptions() {
  constexpr char kGroup[] = "Program";
  return {
      {"module", "", kGroup, "the script is a Python module", {}, 'm'},
      {"no_python", "", kGroup, "run the script itself, found by PATH"},
      {"run_path", "", kGroup, "the script is a file for Python; wins over --no_python"},
      {"virtual_local_rank", "", kGroup, "every worker sees LOCAL_RANK=0 and one GPU"},
      {"numa_binding", "NAME", kGroup, "node, socket, exclusive or core-complex [none]"},
      {"start_method", "NAME", kGroup, "accepted as spawn"},
      {"event_log_handler", "NAME", kGroup, "accepted as null"},
      {"logs_specs", "NAME", kGroup, "accepted as default"},
      {"use_env", "", kGroup, "accepted; it is always so"},
  };
}

std::vector<Option> OutputOptions() {
  constexpr char kGroup[] = "Output";
  return {
      {"log_dir", "DIR", kGroup, "folder for the workers' output [a fresh temporary one]"},
      {"redirects",
       "0-3|RANK:0-3,...",
       kGroup,
       "to files only: 1 stdout, 2 stderr, 3 both [0]",
       {},
       'r'},
      {"tee", "0-3|RANK:0-3,...", kGroup, "to files and to the console [0]", {}, 't'},
      {"local_ranks_filter", "RANK,...", kGroup, "local ranks that reach the console [all]"},
      {"duplicate_stdout_filters", "TEXT,...", kGroup,
       "copy lines of stdout with one of these to one file"},
      {"duplicate_stderr_filters", "TEXT,...", kGroup, "likewise stderr"},
      {"log_line_prefix_template",
       "TEXT",
       kGroup,
       "with ${role_name} ${local_rank} ${rank} [host and rank]",
       {"PET_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"}},
      {"console", "all|rank0|none", kGroup, "ranks whose output appears here [all]"},
      {"fold", "", kGroup, "print identical lines of several ranks once, with a count"},
      {"log_format", "text|json", kGroup, "of our own lines [text]"},
      {"log_level", "LEVEL", kGroup, "debug, info, warning or error [info]"},
      {"version", "", kGroup, "print the version"},
      {"help", "", kGroup, "print this text", {}, 'h'},
  };
}

// Options that torchrun does not read from the environment, and those that are only ours.
bool HasNoVariable(const std::string& name) {
  for (const char* known : {"worker_ports", "tls", "numa_binding", "logs_specs", "use_env",
                            "console", "fold", "log_format", "log_level", "version", "help"}) {
    if (name == known) return true;
  }
  return false;
}

std::vector<Option> MakeOptions() {
  const JobSpec spec;
  std::vector<Option> options;
  for (const std::vector<Option>& group :
       {JobOptions(spec), RendezvousOptions(spec), FailureOptions(spec), ProgramOptions(),
        OutputOptions()}) {
    options.insert(options.end(), group.begin(), group.end());
  }
  for (Option& option : options) {
    if (!option.environment.empty() || HasNoVariable(option.name)) continue;
    option.environment = {absl::StrCat("PET_", absl::AsciiStrToUpper(option.name))};
  }
  return options;
}

}  // namespace

const std::vector<Option>& RunOptions() {
  static const std::vector<Option>& options = *new std::vector<Option>(MakeOptions());
  return options;
}

}  // namespace muster::launcher
