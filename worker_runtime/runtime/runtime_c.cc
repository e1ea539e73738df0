// The runtime as C sees it.
#include "muster/runtime_c.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/runtime.h"

struct muster_runtime {
  std::unique_ptr<muster::Runtime> runtime;
};

namespace {

void Say(absl::string_view what, char* text, size_t text_bytes) {
  if (text == nullptr || text_bytes == 0) return;
  const size_t size = std::min(what.size(), text_bytes - 1);
  std::copy_n(what.data(), size, text);
  text[size] = '\0';
}

}  // namespace

muster_runtime* muster_open(char* text, size_t text_bytes) {
  absl::StatusOr<std::unique_ptr<muster::Runtime>> runtime = muster::Runtime::FromEnvironment();
  Say(runtime.status().message(), text, text_bytes);
  if (!runtime.ok()) return nullptr;
  return new muster_runtime{*std::move(runtime)};
}

void muster_close(muster_runtime* runtime) { delete runtime; }

int muster_rank(const muster_runtime* runtime) { return runtime->runtime->rank(); }
int muster_size(const muster_runtime* runtime) { return runtime->runtime->size(); }

int muster_should_stop(muster_runtime* runtime, int64_t step, char* text, size_t text_bytes) {
  if (!runtime->runtime->ShouldStop(step)) return 0;
  Say(runtime->runtime->stop_reason(), text, text_bytes);
  return 1;
}

enum muster_commit muster_commit_checkpoint(muster_runtime* runtime, int64_t step, char* text,
                                            size_t text_bytes) {
  const absl::Status status = runtime->runtime->CommitCheckpoint(step);
  Say(status.message(), text, text_bytes);
  if (status.ok()) return MUSTER_COMMIT_YES;
  return absl::IsAborted(status) ? MUSTER_COMMIT_NEVER : MUSTER_COMMIT_NOT_NOW;
}

void muster_survive_rounds(muster_runtime* runtime, void (*on_round_over)(void* data), void* data) {
  if (on_round_over == nullptr) return runtime->runtime->SurviveRounds();
  runtime->runtime->SurviveRounds([on_round_over, data] { on_round_over(data); });
}

enum muster_round muster_next_round(muster_runtime* runtime, double seconds, char* text,
                                    size_t text_bytes) {
  absl::StatusOr<std::unique_ptr<muster::Runtime>> next =
      runtime->runtime->NextRound(absl::Seconds(seconds));
  Say(next.status().message(), text, text_bytes);
  if (!next.ok()) {
    return absl::IsDeadlineExceeded(next.status()) ? MUSTER_ROUND_NOT_OVER : MUSTER_ROUND_NONE;
  }
  runtime->runtime = *std::move(next);
  return MUSTER_ROUND_TAKEN;
}

const char* muster_variable(const muster_runtime* runtime, const char* name) {
  const std::string* const value = runtime->runtime->variable(name);
  return value == nullptr ? nullptr : value->c_str();
}

int muster_finish(muster_runtime* runtime, int64_t step) {
  return runtime->runtime->Finish(step).ok() ? 0 : -1;
}
