// How near Save and Load come to what the same ranks write and read with plain large calls.
//
//   checkpoint_bench [--directory DIR] [--ranks N] [--rounds N] [--json FILE]
//
// Ranks are threads of one process under full-shard, of a model whose state takes some 300 MB. The
// floor writes and reads the same bytes of each rank in blocks of 4 MiB with a SHA-256 of each, and
// syncs. Both go to one disk in turn; files are in the page cache when they are read. To reach:
// 85 % of the floor, either way.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/plan.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"

namespace muster {
namespace {

constexpr int64_t kBlock = 4 << 20;
constexpr DecoderConfig kModel = {
    .layers = 6, .heads = 8, .hidden_size = 512, .context = 64, .vocabulary = 8192};

struct Options {
  std::string directory = ".";
  std::string json;
  int rounds = 5;
  int ranks = 0;  // 0: two and four
};

// One rank's engine, which has taken no step: what its arrays are is all the same here.
struct Trained {
  explicit Trained(Communicator& world) {
    model = *Decoder::Create(kModel, store);
    Plan plan = CompletePlan(*PlanPreset("full-shard"), world.size());
    auto made = Engine::Create(world, store, plan, [this](Tape& tape) {
      std::vector<int32_t> tokens(kModel.context);
      return model->ComputeLoss(tape, {.tokens = tokens, .batch = 1, .sequence = kModel.context},
                                tokens);
    });
    MUSTER_CHECK(made.ok());
    engine = *std::move(made);
  }

  ParameterStore store;
  std::unique_ptr<Decoder> model;
  std::unique_ptr<Engine> engine;
};

void OnRanks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

double SecondsOf(const std::function<void()>& body) {
  const MonoTime begin = MonoNow();
  body();
  return absl::ToDoubleSeconds(MonoNow() - begin);
}

void WritePlainly(const std::string& path, const std::vector<char>& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  MUSTER_CHECK(fd >= 0 && fallocate(fd, 0, 0, static_cast<off_t>(bytes.size())) == 0);
  for (size_t first = 0; first < bytes.size(); first += kBlock) {
    const size_t count = std::min<size_t>(kBlock, bytes.size() - first);
    Sha256().Add(bytes.data() + first, count).Finish();
    MUSTER_CHECK(write(fd, bytes.data() + first, count) == static_cast<ssize_t>(count));
  }
  MUSTER_CHECK(fsync(fd) == 0);
  close(fd);
}

void ReadPlainly(const std::string& path, std::vector<char>& bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  MUSTER_CHECK(fd >= 0);
  for (size_t first = 0; first < bytes.size(); first += kBlock) {
    const size_t count = std::min<size_t>(kBlock, bytes.size() - first);
    MUSTER_CHECK(read(fd, bytes.data() + first, count) == static_cast<ssize_t>(count));
    Sha256().Add(bytes.data() + first, count).Finish();
  }
  close(fd);
}

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

struct Samples {
  std::vector<double> save, plain_write, load, plain_read;  // seconds
};

Samples Measure(int ranks, const Options& options, int64_t bytes) {
  const std::string place = absl::StrCat(options.directory, "/checkpoint_bench.", getpid());
  std::filesystem::create_directories(place);
  auto worlds = comm::MakeLoopbackCommunicators({.size = ranks});
  std::vector<std::unique_ptr<Trained>> trained(ranks);
  OnRanks(ranks, [&](int rank) { trained[rank] = std::make_unique<Trained>(*worlds[rank]); });
  std::vector<std::vector<char>> parts(ranks, std::vector<char>(bytes / ranks, 1));
  const auto part = [&](int rank) { return absl::StrCat(place, "/plain.", rank); };
  const std::string saved = place + "/saved";
  Samples samples;
  for (int round = 0; round <= options.rounds; ++round) {
    const double times[] = {
        SecondsOf([&] {
          OnRanks(ranks, [&](int r) { MUSTER_CHECK(trained[r]->engine->Save(saved, {}).ok()); });
        }),
        SecondsOf([&] { OnRanks(ranks, [&](int r) { WritePlainly(part(r), parts[r]); }); }),
        SecondsOf([&] {
          OnRanks(ranks, [&](int r) { MUSTER_CHECK(trained[r]->engine->Load(saved).ok()); });
        }),
        SecondsOf([&] { OnRanks(ranks, [&](int r) { ReadPlainly(part(r), parts[r]); }); })};
    if (round == 0) continue;  // memory and files are made
    samples.save.push_back(times[0]);
    samples.plain_write.push_back(times[1]);
    samples.load.push_back(times[2]);
    samples.plain_read.push_back(times[3]);
  }
  OnRanks(ranks, [&](int rank) { trained[rank].reset(); });
  std::filesystem::remove_all(place);
  return samples;
}

void PrintRow(absl::string_view what, int ranks, int64_t bytes, const std::vector<double>& ours,
              const std::vector<double>& floor) {
  const double rate = static_cast<double>(bytes) / 1e6;
  absl::PrintF("%-5s %d ranks  %7.0f MB/s  plain %7.0f MB/s  %3.0f %%\n", what, ranks,
               rate / Median(ours), rate / Median(floor), 100 * Median(floor) / Median(ours));
}

int Run(const Options& options) {
  const int64_t bytes = kModel.num_parameters() * 12;  // values and two moments of f32
  std::vector<std::string> rows;
  for (const int ranks : {2, 4}) {
    if (options.ranks != 0 && options.ranks != ranks) continue;
    const Samples samples = Measure(ranks, options, bytes);
    PrintRow("save", ranks, bytes, samples.save, samples.plain_write);
    PrintRow("load", ranks, bytes, samples.load, samples.plain_read);
    const auto list = [](const std::vector<double>& s) { return absl::StrJoin(s, ","); };
    rows.push_back(absl::StrFormat(
        R"({"ranks":%d,"bytes":%d,"save":[%s],"plain_write":[%s],"load":[%s],"plain_read":[%s]})",
        ranks, bytes, list(samples.save), list(samples.plain_write), list(samples.load),
        list(samples.plain_read)));
  }
  if (!options.json.empty())
    std::ofstream(options.json) << "[" << absl::StrJoin(rows, ",") << "]\n";
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  muster::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const absl::string_view name = argv[i];
    if (name == "--directory") options.directory = argv[i + 1];
    if (name == "--ranks") options.ranks = std::atoi(argv[i + 1]);
    if (name == "--rounds") options.rounds = std::atoi(argv[i + 1]);
    if (name == "--json") options.json = argv[i + 1];
  }
  return muster::Run(options);
}
