// The include edges of the tree: who may know whom. A missing CMake edge is a link error, but
// headers alone would slip through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Strings = std::vector<std::string>;

struct Room {
  std::string prefix;  // of the paths of its files
  // Prefixes of paths; "folder/*" is the folder's own files without those below.
  Strings may_include;
  bool pure = false;  // no thread, clock, socket, file, log or random number
};

// Headers of the public API by their names: what a room of the runtime may know of it.
Strings Public(const Strings& names, Strings others) {
  for (const std::string& name : names) {
    others.push_back(absl::StrCat("worker_runtime/include/muster/", name, ".h"));
  }
  return others;
}

// The same for a back end of communicators, or what they share.
Strings Backend(Strings others) {
  others.insert(others.end(), {"proto/base/", "proto/io/unique_fd.h", "worker_runtime/comm/*",
                               "worker_runtime/plan/staging.h"});
  return Public({"buffer", "communicator", "device", "dtype", "registration", "sixteen_bits",
                 "store", "sum_tree", "work"},
                std::move(others));
}

// The first room whose prefix fits a file is its room.
const std::vector<Room>& Rooms() {
  static const std::vector<Room> rooms = {
      // The one mutex, for shells, and what waits on it.
      {"proto/base/mutex.h", {"proto/base/"}},
      {"proto/base/condition.h", {"proto/base/"}},
      {"proto/base/", {"proto/base/"}, true},
      {"proto/spec/", {"proto/base/", "proto/spec/"}, true},
      {"proto/command_line/", {"proto/base/", "proto/command_line/"}, true},
      {"proto/config/", {"proto/base/", "proto/config/"}, true},
      {"proto/dialects/", {"proto/base/", "proto/dialects/"}, true},
      {"proto/io/", {"proto/"}},
      {"proto/portable/", {}},
      {"rendezvous/core/", {"proto/base/", "rendezvous/core/"}, true},
      {"rendezvous/hangs/evidence/", {"proto/base/", "rendezvous/hangs/evidence/"}, true},
      {"rendezvous/hangs/wire/watch_messages.",
       {"proto/base/", "rendezvous/hangs/evidence/", "rendezvous/hangs/wire/"},
       true},
      {"rendezvous/hangs/wire/",
       {"proto/", "rendezvous/hangs/evidence/", "rendezvous/hangs/wire/"}},
      {"rendezvous/hangs/judge/",
       {"proto/base/", "rendezvous/hangs/evidence/", "rendezvous/hangs/judge/",
        "rendezvous/hangs/wire/watch_messages.h"},
       true},
      {"rendezvous/status/",
       {"proto/base/", "rendezvous/core/", "rendezvous/hangs/", "rendezvous/status/"},
       true},
      {"rendezvous/link/", {"proto/", "rendezvous/link/", "rendezvous/hangs/"}},
      {"rendezvous/client/",
       {"proto/", "rendezvous/link/", "rendezvous/client/", "rendezvous/hangs/"}},
      {"rendezvous/server/", {"proto/", "rendezvous/"}},
      {"agent/core/",
       {"proto/base/", "proto/spec/", "agent/core/", "rendezvous/hangs/evidence/last_calls.h"},
       true},
      // What the agent acts with: its own process lowest, the guardian highest.
      {"agent/process/", {"proto/", "agent/process/"}},
      {"agent/machine/", {"proto/", "agent/machine/", "agent/process/"}},
      {"agent/console/", {"proto/", "agent/console/", "agent/process/"}},
      {"agent/guardian/", {"proto/", "agent/guardian/", "agent/machine/", "agent/process/"}},
      // PyTorch's store: the thread and what listens on it; else the core.
      {"agent/torch_store/store_thread.", {"agent/torch_store/store_thread.h"}},
      {"agent/torch_store/store_witness.", {"proto/base/", "agent/machine/", "agent/torch_store/"}},
      {"agent/torch_store/store_host.",
       {"proto/base/", "proto/spec/", "agent/torch_store/",
        "rendezvous/hangs/evidence/gatherings.h"}},
      {"agent/torch_store/torch_store_server.",
       {"proto/", "agent/machine/", "agent/torch_store/",
        "rendezvous/hangs/evidence/gatherings.h"}},
      {"agent/torch_store/",
       {"proto/base/", "proto/spec/", "agent/torch_store/",
        "rendezvous/hangs/evidence/gatherings.h"},
       true},
      // What leads from boards to evidence, and the report, are values. What reads /proc and the
      // boards: a shell.
      {"agent/watch/board_evidence.", {"proto/base/", "agent/watch/", "rendezvous/hangs/"}, true},
      {"agent/watch/incident.", {"proto/base/", "agent/watch/", "rendezvous/hangs/"}, true},
      {"agent/watch/",
       {"proto/", "agent/console/log_folder.h", "agent/machine/", "agent/process/", "agent/watch/",
        "rendezvous/hangs/"}},
      {"agent/network/network_choice.", {"proto/base/", "proto/spec/", "agent/network/"}, true},
      {"agent/network/pairs.", {"proto/base/", "agent/network/"}, true},
      {"agent/network/round_judgement.", {"proto/base/", "agent/network/"}, true},
      {"agent/network/", {"proto/", "agent/network/"}},
      {"agent/sight/", {"proto/", "agent/", "rendezvous/link/", "rendezvous/status/"}},
      {"agent/",
       {"proto/", "agent/", "rendezvous/link/", "rendezvous/status/", "rendezvous/hangs/"}},
      {"launcher/commands/export_command.",
       {"proto/base/", "proto/command_line/", "launcher/commands/",
        "worker_runtime/checkpoint/checkpoint.h", "worker_runtime/checkpoint/export.h",
        "worker_runtime/include/muster/dtype.h", "worker_runtime/models/export_model.h"}},
      {"launcher/commands/",
       {"proto/", "rendezvous/", "agent/", "launcher/", "worker_runtime/include/muster/",
        "worker_runtime/advice/", "worker_runtime/options/", "worker_runtime/plan/"}},
      {"launcher/main.", {"proto/", "rendezvous/", "agent/", "launcher/"}},
      {"launcher/doctor/look.", {"proto/", "agent/machine/", "agent/network/", "launcher/"}},
      {"launcher/doctor/measure.", {"proto/", "launcher/doctor/"}},
      {"launcher/node/exit_summary.", {"proto/base/", "proto/spec/", "launcher/"}, true},
      {"launcher/node/local_cache.", {"proto/spec/", "launcher/"}},
      {"launcher/node/node_facts.", {"proto/", "agent/machine/", "agent/network/", "launcher/"}},
      {"launcher/node/", {"proto/", "rendezvous/", "agent/", "launcher/"}},
      {"launcher/hosts/ssh_session.", {"proto/", "launcher/hosts/"}},
      {"launcher/sight/observer.", {"proto/", "rendezvous/", "agent/", "launcher/"}},
      {"launcher/sight/",
       {"proto/base/", "proto/command_line/", "proto/spec/", "rendezvous/status/", "launcher/"},
       true},
      {"launcher/schedulers/step_daemon.", {"proto/", "launcher/schedulers/"}},
      {"launcher/schedulers/task_gate.", {"proto/", "launcher/schedulers/"}},
      {"launcher/",
       {"proto/base/", "proto/command_line/", "proto/config/", "proto/dialects/", "proto/spec/",
        "launcher/"},
       true},
      // The runtime's layers, from the lowest: values, kernels, layers of a model and back ends of
      // communicators, the engine and the way into the job, the ready-made program. What a training
      // program may include is the public API; muster-train is one, apart from its command line,
      // which it shares with muster plan.
      {"worker_runtime/include/muster/", {"proto/base/", "worker_runtime/include/muster/"}},
      {"worker_runtime/plan/",
       Public({"cuda_attention", "dtype", "gather_plan", "decoder_config", "decoder_parts", "plan",
               "recompute", "sum_tree", "update"},
              {"proto/base/", "worker_runtime/kernels/logit_chunks.h", "worker_runtime/plan/"}),
       true},
      // What reads configuration files from disk.
      {"worker_runtime/options/config_disk.", {"proto/io/read_file.h", "worker_runtime/options/"}},
      {"worker_runtime/options/plan_arguments.",
       {"proto/base/", "proto/command_line/", "worker_runtime/include/muster/plan_arguments.h",
        "worker_runtime/options/", "worker_runtime/plan/"}},
      {"worker_runtime/options/",
       {"worker_runtime/include/muster/decoder_config.h", "proto/base/", "proto/command_line/",
        "proto/config/", "proto/dialects/", "worker_runtime/options/", "worker_runtime/plan/"},
       true},
      {"worker_runtime/advice/",
       {"proto/base/", "proto/io/sha256.h", "worker_runtime/include/muster/",
        "worker_runtime/advice/", "worker_runtime/engine/cut_model.h",
        "worker_runtime/engine/meta_run.h", "worker_runtime/plan/"},
       true},
      {"worker_runtime/kernels/", {"proto/base/", "worker_runtime/kernels/"}},
      {"worker_runtime/cuda/",
       {"proto/base/", "proto/io/optional_library.h", "worker_runtime/include/muster/",
        "worker_runtime/kernels/", "worker_runtime/nn/", "worker_runtime/cuda/"}},
      {"worker_runtime/nn/",
       {"proto/base/", "worker_runtime/include/muster/", "worker_runtime/kernels/",
        "worker_runtime/nn/"}},
      {"worker_runtime/comm/communicator_registry.", Backend({"worker_runtime/comm/"})},
      {"worker_runtime/comm/gloo/",
       Backend({"worker_runtime/comm/gloo/", "worker_runtime/comm/shm/"})},
      {"worker_runtime/comm/shm/", Backend({"worker_runtime/comm/shm/"})},
      {"worker_runtime/comm/loopback/", Backend({"worker_runtime/comm/loopback/"})},
      // NCCL's ranks tell each other of failures over Gloo's connections.
      {"worker_runtime/comm/nccl/",
       Backend({"proto/io/optional_library.h", "worker_runtime/comm/nccl/",
                "worker_runtime/comm/gloo/"})},
      {"worker_runtime/comm/", Backend({})},
      {"worker_runtime/checkpoint/",
       Public({"buffer", "dtype", "tensor_ranks"},
              {"proto/base/", "proto/io/random_bytes.h", "proto/io/read_file.h",
               "proto/io/sha256.h", "proto/io/unique_fd.h", "worker_runtime/checkpoint/"})},
      {"worker_runtime/data/",
       {"proto/base/", "proto/io/sha256.h", "proto/io/unique_fd.h",
        "worker_runtime/include/muster/", "worker_runtime/data/"}},
      {"worker_runtime/engine/",
       {"proto/base/", "proto/io/sha256.h", "worker_runtime/include/muster/",
        "worker_runtime/plan/", "worker_runtime/kernels/", "worker_runtime/nn/",
        "worker_runtime/checkpoint/", "worker_runtime/engine/"}},
      {"worker_runtime/models/",
       {"proto/base/", "proto/config/", "proto/io/read_file.h", "proto/io/sha256.h",
        "worker_runtime/include/muster/", "worker_runtime/checkpoint/",
        "worker_runtime/options/model_config.h", "worker_runtime/models/"}},
      {"worker_runtime/runtime/",
       {"proto/base/", "proto/spec/", "proto/io/stop_wire.h", "proto/io/store_wire.h",
        "proto/io/unique_fd.h", "proto/agent.pb.h", "proto/store.pb.h",
        "worker_runtime/include/muster/", "worker_runtime/comm/", "worker_runtime/runtime/"}},
      {"worker_runtime/train/",
       {"proto/base/", "proto/command_line/", "proto/io/read_file.h",
        "worker_runtime/include/muster/", "worker_runtime/advice/",
        "worker_runtime/comm/nccl/nccl_backend.h", "worker_runtime/options/",
        "worker_runtime/plan/batch_equation.h", "worker_runtime/plan/known_models.h",
        "worker_runtime/plan/plan_options.h", "worker_runtime/train/"}},
  };
  return rooms;
}

// What makes a file impure. Our own headers are judged by the edges above.
const Strings kImpure = {"thread",
                         "mutex",
                         "condition_variable",
                         "future",
                         "fstream",
                         "iostream",
                         "filesystem",
                         "random",
                         "unistd.h",
                         "fcntl.h",
                         "sys/socket.h",
                         "sys/stat.h",
                         "sys/epoll.h",
                         "asio",
                         "grpc",
                         "spdlog",
                         "absl/random",
                         "absl/time/clock.h",
                         "absl/synchronization",
                         "unordered_map",
                         "unordered_set",
                         "absl/container/flat_hash",
                         "absl/container/node_hash"};

// The includes as paths from the root of the repository, which the public API is included without.
Strings IncludesOf(const std::string& text) {
  Strings includes;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "#include")) continue;
    line = absl::StripAsciiWhitespace(line);
    if (line.size() <= 2) continue;
    const absl::string_view path = line.substr(1, line.find_first_of(">\"", 1) - 1);
    includes.push_back(absl::StartsWith(path, "muster/")
                           ? absl::StrCat("worker_runtime/include/", path)
                           : std::string(path));
  }
  return includes;
}

bool StartsWithAny(const std::string& text, const Strings& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return absl::StartsWith(text, prefix); });
}

bool MayInclude(const Room& room, const std::string& include) {
  return std::any_of(
      room.may_include.begin(), room.may_include.end(), [&](absl::string_view allowed) {
        const bool own_files_only = absl::ConsumeSuffix(&allowed, "*");
        return absl::StartsWith(include, allowed) &&
               !(own_files_only && absl::StrContains(include.substr(allowed.size()), '/'));
      });
}

bool IsOurs(const std::string& include) {
  return StartsWithAny(
      include, {"proto/", "rendezvous/", "agent/", "launcher/", "worker_runtime/", "tests/"});
}

// Generated messages are seen only where they are translated into plain values, and by the shells
// of the stream.
bool MayTranslateMessages(const std::string& path) {
  if (absl::StartsWith(path, "rendezvous/client/") && absl::EndsWith(path, ".cc")) return true;
  const Strings endings = {"wire.cc",           "_service.cc",  "_client.cc",
                           "agent_sessions.cc", "handshake.cc", "stream_writer.cc"};
  return std::any_of(endings.begin(), endings.end(),
                     [&](const std::string& ending) { return absl::EndsWith(path, ending); });
}

// One line per include that the file must not have.
Strings Violations(const std::string& path, const std::string& text) {
  const auto room = std::find_if(Rooms().begin(), Rooms().end(),
                                 [&](const Room& r) { return absl::StartsWith(path, r.prefix); });
  if (room == Rooms().end()) return {absl::StrCat(path, " is in no room")};
  Strings found;
  for (const std::string& include : IncludesOf(text)) {
    const auto say = [&](absl::string_view why) {
      found.push_back(absl::StrCat(path, ": ", include, ": ", why));
    };
    if (IsOurs(include) && !MayInclude(*room, include)) say("no such edge");
    if (room->pure && StartsWithAny(include, kImpure)) say("not in a pure room");
    if (absl::EndsWith(include, ".pb.h") && !MayTranslateMessages(path))
      say("only where messages are translated");
    if (absl::StartsWith(include, "spdlog") && path != "proto/io/log.cc" &&
        path != "proto/io/log.h") {
      say("logging has one home, proto/io/log.h");
    }
    if (StartsWithAny(include, {"gtest/", "gmock/"})) say("only in tests");
  }
  return found;
}

bool IsSource(const std::string& path) {
  return absl::EndsWith(path, ".h") || absl::EndsWith(path, ".cc") || absl::EndsWith(path, ".cu");
}

// Sources below the production folders, as paths from the root of the repository.
Strings ProductionSources() {
  Strings sources;
  for (const char* folder : {"proto", "rendezvous", "agent", "launcher", "worker_runtime"}) {
    for (const std::string& file : FilesBelow(absl::StrCat(kSourceDirectory, "/", folder))) {
      if (IsSource(file)) sources.push_back(absl::StrCat(folder, "/", file));
    }
  }
  return sources;
}

TEST(IncludeEdges, OfTheTreeAreTheAllowedOnes) {
  const Strings sources = ProductionSources();
  ASSERT_FALSE(sources.empty());
  Strings violations;
  for (const std::string& path : sources) {
    for (std::string& line :
         Violations(path, ReadFile(absl::StrCat(kSourceDirectory, "/", path)))) {
      violations.push_back(std::move(line));
    }
  }
  EXPECT_THAT(violations, IsEmpty());
}

TEST(IncludeEdges, ReportACoreThatKnowsAShell) {
  EXPECT_THAT(Violations("rendezvous/core/round_state.h", "#include \"proto/io/log.h\"\n"),
              ElementsAre(HasSubstr("no such edge")));
}

TEST(IncludeEdges, ReportARendezvousThatKnowsTheAgentAndAnyoneWhoKnowsTheLauncher) {
  EXPECT_THAT(Violations("rendezvous/server/x.cc", "#include \"agent/agent.h\"\n"), SizeIs(1));
  EXPECT_THAT(Violations("agent/agent.cc", "#include \"launcher/line/flags.h\"\n"), SizeIs(1));
}

TEST(IncludeEdges, ReportAnEngineThatKnowsABackEndAndAPublicHeaderThatKnowsTheInside) {
  EXPECT_THAT(Violations("worker_runtime/engine/x.cc",
                         "#include \"worker_runtime/comm/gloo/gloo_mesh.h\"\n"
                         "#include \"muster/communicator.h\"\n"),
              ElementsAre(HasSubstr("gloo_mesh.h: no such edge")));
  EXPECT_THAT(Violations("worker_runtime/include/muster/x.h",
                         "#include \"worker_runtime/nn/row_view.h\"\n#include \"muster/tape.h\"\n"),
              SizeIs(1));
}

TEST(IncludeEdges, ReportWhatBackEndsShareKnowingABackEnd) {
  EXPECT_THAT(Violations("worker_runtime/comm/x.cc",
                         "#include \"worker_runtime/comm/operation.h\"\n"
                         "#include \"worker_runtime/comm/gloo/gloo_mesh.h\"\n"),
              ElementsAre(HasSubstr("gloo_mesh.h: no such edge")));
}

TEST(IncludeEdges, ReportAThreadOrAClockInAPureRoom) {
  EXPECT_THAT(Violations("agent/core/agent_core.cc",
                         "#include <thread>\n"
                         "#include \"absl/time/clock.h\"\n"),
              SizeIs(2));
}

TEST(IncludeEdges, ReportMessagesOutsideOfTheirTranslation) {
  EXPECT_THAT(
      Violations("rendezvous/server/rendezvous_server.cc", "#include \"proto/rendezvous.pb.h\"\n"),
      ElementsAre(HasSubstr("translated")));
  EXPECT_THAT(Violations("rendezvous/link/wire.cc", "#include \"proto/rendezvous.pb.h\"\n"),
              IsEmpty());
}

TEST(IncludeEdges, ReportTestCodeInProduction) {
  EXPECT_THAT(Violations("agent/agent.cc",
                         "#include \"tests/support/files.h\"\n#include <gtest/gtest.h>\n"),
              SizeIs(2));
}

}  // namespace
}  // namespace muster::testing
