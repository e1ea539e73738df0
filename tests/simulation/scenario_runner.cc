#include "tests/simulation/scenario_runner.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rendezvous/core/rendezvous_core.h"

namespace muster::simulation {
namespace {

using rendezvous::RendezvousCore;

// "join n1 workers=2 ends_job": the verb, the node, and options.
struct Command {
  std::string verb;
  std::string node;
  std::map<std::string, std::string> options;

  int Int(const std::string& name, int otherwise) const {
    const auto found = options.find(name);
    int value = otherwise;
    if (found != options.end() && !absl::SimpleAtoi(found->second, &value)) return otherwise;
    return value;
  }
  absl::Duration Time(const std::string& name, absl::Duration otherwise) const {
    const auto found = options.find(name);
    absl::Duration value = otherwise;
    if (found != options.end()) absl::ParseDuration(found->second, &value);
    return value;
  }
  bool Has(const std::string& name) const { return options.count(name) > 0; }
};

Command ParseCommand(absl::string_view line) {
  Command command;
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (command.verb.empty()) {
      command.verb = std::string(word);
    } else if (command.node.empty() && command.verb != "start") {
      command.node = std::string(word);
    } else {
      command.options.insert(parts);
    }
  }
  return command;
}

class Scenario {
 public:
  // The lines that a command causes.
  std::string Do(const Command& command) {
    out_.clear();
    if (command.verb == "start") {
      Start(command);
    } else if (!core_) {
      Say("error: the first command is start");
    } else if (command.verb == "advance") {
      Advance(command.node);
    } else if (command.verb == "silent") {
      agents_[command.node].is_silent = true;
    } else if (command.verb == "heard") {
      agents_[command.node].is_silent = false;
    } else if (command.verb == "disconnect") {
      Step(rendezvous::AgentDisconnected{agents_[command.node].incarnation});
    } else {
      Report(command);
    }
    return out_;
  }

 private:
  struct Agent {
    Incarnation incarnation;
    AgentReport report;
    std::string last_directive;
    bool is_silent = false;
  };

  void Say(absl::string_view line) { absl::StrAppend(&out_, line, "\n"); }

  void Start(const Command& command) {
    const int min_nodes = command.Int("min", 1);
    settings_ = {.min_nodes = min_nodes,
                 .max_nodes = command.Int("max", min_nodes),
                 .max_restarts = command.Int("restarts", 0),
                 .is_static = command.Has("static"),
                 .join_timeout = command.Time("join_timeout", absl::Seconds(600)),
                 .last_call_timeout = command.Time("last_call", absl::Seconds(30)),
                 .close_timeout = absl::Seconds(30),
                 .shutdown_timeout = absl::Seconds(30)};
    core_.emplace(
        rendezvous::CoreOptions{.term = ServerTerm(1), .instance = Instance(1), .lease = {}});
  }

  void Advance(const std::string& text) {
    absl::Duration length;
    if (!absl::ParseDuration(text, &length)) Say("error: not a duration");
    const MonoTime end = now_ + length;
    MonoTime renewal = now_ + absl::Seconds(2);
    while (true) {
      const MonoTime next = Min(Min(core_->NextDeadline(), renewal), end);
      now_ = next;
      if (next == renewal) {
        Renew();
        renewal = renewal + absl::Seconds(2);
      }
      Step(rendezvous::Tick{});
      if (next == end) return;
    }
  }

  void Renew() {
    for (auto& [unused, agent] : agents_) {
      if (!agent.is_silent) Send(agent);
    }
  }

  void Report(const Command& command) {
    Agent& agent = agents_[command.node];
    AgentReport& report = agent.report;
    if (agent.incarnation.value() == 0) Introduce(agent, command);
    if (core_->state().assignments.contains(agent.incarnation)) report.round = core_->state().round;
    report.failures.clear();
    report.failed_pairs.clear();
    if (command.verb == "join") {
      report.phase = AgentPhase::kJoining;
    } else if (command.verb == "run") {
      report.phase = AgentPhase::kRunning;
    } else if (command.verb == "succeed") {
      report.phase = AgentPhase::kSucceeded;
    } else if (command.verb == "stopped") {
      report.phase = AgentPhase::kStopped;
    } else if (command.verb == "apart") {
      report.phase = AgentPhase::kRunning;
      report.failed_pairs = {{.from = command.Int("from", 0), .to = command.Int("to", 0)}};
    } else if (command.verb == "fail") {
      Fail(agent, command);
    } else if (command.verb == "leave") {
      report.phase = AgentPhase::kLeaving;
      report.departure = Departure{.signal = command.Int("signal", 15),
                                   .ends_job = command.Has("ends_job"),
                                   .reason = absl::StrCat(command.node, " left")};
      agent.is_silent = true;
    } else {
      Say(absl::StrCat("error: unknown command ", command.verb));
      return;
    }
    Send(agent);
  }

  void Introduce(Agent& agent, const Command& command) {
    agent.incarnation = Incarnation(agents_.size());
    names_[agent.incarnation] = command.node;
    agent.report.settings = settings_;
    agent.report.node = {.name = command.node,
                         .address = command.node,
                         .local_world_size = command.Int("workers", 2)};
    if (command.Has("rank")) agent.report.node.node_rank = command.Int("rank", 0);
  }

  void Fail(Agent& agent, const Command& command) {
    const auto assignment = core_->state().assignments.find(agent.incarnation);
    if (assignment == core_->state().assignments.end()) {
      Say("error: it runs no round");
      return;
    }
    const int local_rank = command.Int("local_rank", 0);
    agent.report.phase = AgentPhase::kFailed;
    agent.report.failures = {{.rank = Rank(assignment->second.first_rank.value() + local_rank),
                              .local_rank = LocalRank(local_rank),
                              .node_rank = assignment->second.node_rank,
                              .node_name = agent.report.node.name,
                              .exit_code = command.Int("exit", 1),
                              .signal = command.Int("signal", 0),
                              .age = command.Time("age", absl::ZeroDuration())}};
  }

  void Send(Agent& agent) {
    ++agent.report.sequence;
    Step(rendezvous::AgentReported{agent.incarnation, agent.report});
  }

  void Step(const rendezvous::Event& event) {
    const rendezvous::JobPhase before = core_->state().phase;
    for (const rendezvous::Effect& effect : core_->Step(event, now_)) Show(effect);
    const rendezvous::JobPhase after = core_->state().phase;
    if (before != after) {
      Say(absl::StrCat("phase ", ToString(before), " -> ", ToString(after)));
    }
    const std::string broken = core_->CheckInvariants();
    if (!broken.empty()) Say(absl::StrCat("BROKEN ", broken));
  }

  void Show(const rendezvous::Effect& effect) {
    if (std::holds_alternative<rendezvous::KeepRecord>(effect)) return;
    const auto* send = std::get_if<rendezvous::SendDirective>(&effect);
    if (send == nullptr) {
      Say(rendezvous::ToString(effect));
      return;
    }
    const std::string& name = names_[send->to];
    if (!std::holds_alternative<Refuse>(send->directive.body)) {
      agents_[name].report.instance = send->directive.instance;
    }
    std::string text = muster::ToString(send->directive.body);
    if (agents_[name].last_directive == text) return;
    Say(absl::StrCat("to ", name, ": ", text));
    agents_[name].last_directive = std::move(text);
  }

  RendezvousSettings settings_;
  std::optional<RendezvousCore> core_;
  MonoTime now_ = MonoTime::At(absl::ZeroDuration());
  std::map<std::string, Agent> agents_;
  std::map<Incarnation, std::string> names_;
  std::string out_;
};

}  // namespace

std::string RunScenario(absl::string_view text) {
  Scenario scenario;
  std::string result;
  std::string happened;
  bool is_expectation = false;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    if (line == "----") {
      absl::StrAppend(&result, line, "\n", happened);
      happened.clear();
      is_expectation = true;
    } else if (line.empty()) {
      absl::StrAppend(&result, "\n");
      is_expectation = false;
    } else if (!is_expectation) {
      absl::StrAppend(&result, line, "\n");
      if (!absl::StartsWith(line, "#")) {
        absl::StrAppend(&happened, scenario.Do(ParseCommand(line)));
      }
    }
  }
  return result;
}

}  // namespace muster::simulation
