// The record of a forward pass, and its replay backwards.
//
//   Tape tape(pool);
//   Loss loss = model.ComputeLoss(tape, batch, targets);
//   tape.Backward(loss.output);                        // all gradients
//   // or, for pipelines that fill bubbles with weight gradients:
//   tape.BackwardInputs(loss.output); ... tape.BackwardWeights();
//
// Every operation pushes one record with two separate functions: the gradient of its inputs and the
// gradient of its weights. Both see the same upstream gradient, so they may run at different times
// with the same result, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/recompute.h"
#include "muster/tensor.h"

namespace muster {

// A value on its way through the model, and the place on the tape where its gradient is collected.
struct Activation {
  static constexpr int kNoGradient = -1;

  Tensor value;
  int slot = kNoGradient;

  bool needs_gradient() const { return slot != kNoGradient; }
};

class Tape;

namespace internal {

// Token ids where the kernels of a tape's device read them: those of the host, or a copy.
class DeviceIds {
 public:
  explicit DeviceIds(absl::Span<const int32_t> on_host) : on_host_(on_host.data()) {}
  explicit DeviceIds(Tensor copy) : copy_(std::move(copy)) {}
  bool are_copied() const { return !copy_.empty(); }
  const int32_t* data() const {
    return are_copied() ? static_cast<const int32_t*>(copy_.raw_data()) : on_host_;
  }

 private:
  const int32_t* on_host_ = nullptr;
  Tensor copy_;
};

// Host memory for objects that are dropped together: steps after the first allocate nothing.
class FunctionMemory {
 public:
  void* Take(size_t bytes);
  // Frees all of it for reuse.
  void Reset();

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // the one in use
  size_t used_ = 0;   // bytes of it
};

// A function object in such memory.
class PlacedFunction {
 public:
  PlacedFunction() = default;
  ~PlacedFunction() { Reset(); }
  PlacedFunction(PlacedFunction&& other) noexcept { *this = std::move(other); }
  PlacedFunction& operator=(PlacedFunction&& other) noexcept;

  template <typename F>
  PlacedFunction(FunctionMemory& memory, F function);

  explicit operator bool() const { return call_ != nullptr; }
  void operator()(Tape& tape, const Tensor& dy) { call_(object_, tape, dy); }
  void Reset();

 private:
  void* object_ = nullptr;
  void (*call_)(void*, Tape&, const Tensor&) = nullptr;
  void (*destroy_)(void*) = nullptr;
};

// The weights of a tape's records, and how many records with each are left.
class WeightUses {
 public:
  // A record's weights.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  // Those that are not frozen are used once more.
  Range Add(absl::Span<Parameter* const> weights);
  absl::Span<Parameter* const> weights(Range range) const {
    return absl::MakeConstSpan(weights_).subspan(range.begin, range.end - range.begin);
  }
  // Ends a use of a weight that is not frozen.
  void Release(Parameter& weight);
  // Called when the last use of a weight ends.
  void OnLast(std::function<void(Parameter&)> callback) { on_last_ = std::move(callback); }
  // Drops all weights and uses.
  void Clear();

 private:
  std::vector<Parameter*> weights_;  // those of the model, which outlives its tapes
  std::vector<int> uses_left_;       // by Parameter::index
  std::function<void(Parameter&)> on_last_;
};

}  // namespace internal

// Marks an operation without inputs that need a gradient, or without weights.
struct NoGradientFunction {
  void operator()(Tape&, const Tensor&) const {}
};

// A tape holds one micro-batch from its forward pass until its weight gradients are written;
// several micro-batches in flight need several tapes. Calls that would lose a gradient end the
// process: a forward or backward pass while weight gradients are due, or a second backward pass of
// the same forward pass.
//
// Threads: thread-compatible. Two tapes of one model may be recorded in turn (micro-batches of a
// pipeline), but weight gradients of one parameter must not be written at the same time.
class Tape {
 public:
  enum class Mode { kTrain, kInference };  // kInference records nothing

  // `pool` outlives the tape.
  explicit Tape(TensorPool& pool, Mode mode = Mode::kTrain);
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  TensorPool& pool() { return pool_; }
  // The queue on which the pool's device computes, and its kernels.
  Queue& queue() { return queue_; }
  const Operations& operations(DType dtype) const { return queue_.device().operations(dtype); }
  bool recording() const { return mode_ == Mode::kTrain; }

  // --- for operations

  // Enters the parameter's unit and returns its value, which stays whole until another unit is
  // used; a sharded plan holds only a shard of it otherwise. Operations read parameters through
  // this in forward passes. Gradient functions find the weights that were recorded.
  const Tensor& Use(Parameter& parameter) {
    parameter.Enter();
    return parameter.value();
  }

  // Token ids for a kernel. Ids that are not copied must outlive their readers.
  internal::DeviceIds Bring(absl::Span<const int32_t> ids);
  // Ids whose copies will be in place before the queue's next work runs, so that Bring does nothing
  // for them.
  struct BroughtIds {
    absl::Span<const int32_t> on_host;
    Tensor copy;
  };
  void AreBrought(std::vector<BroughtIds> ids) { brought_ = std::move(ids); }

  // Records the operation that made `output` and returns it as an activation.
  //
  // input_gradient(tape, dy) hands on the gradients of the operation's inputs (AddGradient,
  // BeginGradient); weight_gradient(tape, dy) adds to the gradients of `weights`. `dy` has the
  // shape of `output` and must not be written to. Both may be called at most once, in this order.
  // An operation leaves out the gradients of frozen weights.
  template <typename InputGradient, typename WeightGradient>
  Activation Record(Tensor output, absl::Span<Parameter* const> weights,
                    InputGradient input_gradient, WeightGradient weight_gradient);

  // Tells a gradient function whether each weight gradient of this replay follows its input
  // gradient at once; then a kernel that makes both in one pass may do so with the input gradient.
  bool replays_whole() const { return stage_ == Stage::kReplaysWhole; }

  // Adds `gradient` to the gradient of the activation of `slot`. The tensor is shared, not copied,
  // and may be added to several activations. Does nothing for kNoGradient.
  void AddGradient(int slot, const Tensor& gradient);

  // The target of kernels that compute `out = addend + contribution` in one pass. `addend` is the
  // gradient so far: empty, or `out` itself, or another tensor that must not change. `slot` must
  // not be kNoGradient.
  struct InputTarget {
    Tensor out;
    Tensor addend;
  };
  InputTarget BeginGradient(int slot, DType dtype, Shape shape);

  // Whether `gradient` is known to be the number 1, with which the backward pass of a loss begins.
  bool IsOne(const Tensor& gradient) const {
    return !gradient.empty() && gradient.raw_data() == one_;
  }

  // Runs region(tape, x) and keeps only x: the backward pass computes the region again. The region
  // must compute the same each time, from x and parameters alone. Gradients are the same, to the
  // bit; those of the region's weights are written with its input gradient, and are ready once the
  // whole region has been replayed.
  template <typename Region>
  Activation Recomputed(const Activation& x, Region region);

  // Which activations a model should recompute: the plan's choice, set by the engine.
  const Recompute& recompute() const { return recompute_; }
  void set_recompute(const Recompute& recompute) { recompute_ = recompute; }

  // Marks the forward pass, or its replay, as failed because an input does not fit. The first `why`
  // becomes status(). Returns an activation without a value; operations on it return the same.
  Activation Refuse(absl::string_view why);

  // --- for models and engines

  // The status of the forward pass since the tape was empty, and of its replay. The engine checks
  // it. A failed forward pass can be dropped (Clear), not replayed.
  const absl::Status& status() const { return status_; }

  // Makes an activation of a value that no operation on this tape computed but whose gradient is
  // wanted, such as the input of a pipeline stage.
  Activation Watch(Tensor value);
  // Takes the gradient of a watched activation, after Backward or BackwardInputs and before the
  // next forward pass; empty if none arrived.
  Tensor TakeGradient(const Activation& watched);

  // A beginning of a backward pass.
  struct Seed {
    Activation output;
    Tensor gradient;  // its shape is the output's
  };
  // Replays the tape from its end: for every record its input gradient, then its weight gradient.
  // `output` receives `gradient`, or, if it is one number (a loss), `scale`; of several outputs
  // each that needs a gradient receives its own, which is taken. Afterwards the tape is empty.
  void Backward(const Activation& output, double scale = 1);
  void Backward(const Activation& output, Tensor gradient);
  void Backward(absl::Span<Seed> seeds);

  // The same in two halves: input gradients now, weight gradients later. Between them the tape
  // keeps what the second needs.
  void BackwardInputs(const Activation& output, double scale = 1);
  void BackwardInputs(absl::Span<Seed> seeds);
  void BackwardWeights();

  // Called when the last record that uses a parameter has written its weight gradient; parameters
  // come in the reverse order of their first use. Runs inside Backward or BackwardWeights, which
  // waits for it, so it should only hand the work on.
  void OnGradientReady(std::function<void(Parameter&)> callback) {
    uses_.OnLast(std::move(callback));
  }

  // Drops all records.
  void Clear();
  int num_records() const { return static_cast<int>(records_.size()); }

 private:
  struct RecordedOperation {
    internal::PlacedFunction input_gradient;
    internal::PlacedFunction weight_gradient;
    Tensor dy;
    int output_slot = Activation::kNoGradient;
    // Frozen weights are among them, since the backward pass reads those; of a recomputed region
    // they are not.
    internal::WeightUses::Range weights;
    bool is_region = false;
  };

  enum class Stage { kEmpty, kForward, kReplaysWhole, kWeightsAreDue, kReplayed };

  // Begins a forward pass; the first one after a replay starts afresh.
  void BeginForward();
  void BeginBackward(absl::Span<Seed> seeds);
  RecordedOperation& NewRecord(absl::Span<Parameter* const> weights);
  int NewSlot();
  Seed SeedOf(const Activation& output, double scale);
  void EndReplay();
  void EnterWeights(const RecordedOperation& record);
  void ReplayInput(RecordedOperation& record);
  void ReplayWeight(RecordedOperation& record);

  // Recomputed regions. `inner` is made when it is first needed.
  Tape& Inner(std::unique_ptr<Tape>& inner, Mode mode);
  void Observe(absl::Span<Parameter* const> weights);
  RecordedOperation& NewRegion();
  template <typename Region>
  void ReplayRegion(const Activation& x, const Region& region, const Tensor& dy);

  // Constant after construction.
  TensorPool& pool_;
  const Mode mode_;

  Queue queue_;
  internal::FunctionMemory memory_;  // of the records, which go first
  std::vector<RecordedOperation> records_;
  internal::WeightUses uses_;
  std::vector<Tensor> gradients_;  // by slot
  Stage stage_ = Stage::kEmpty;
  const void* one_ = nullptr;
  absl::Status status_;

  std::vector<BroughtIds> brought_;
  Recompute recompute_;
  std::unique_ptr<Tape> observer_;  // runs regions forward, and sees what they use
  std::unique_ptr<Tape> replayer_;  // runs them again
  // What was used since the observer began, each once; nothing on other tapes.
  std::optional<std::vector<Parameter*>> observed_;
};

template <typename F>
internal::PlacedFunction::PlacedFunction(FunctionMemory& memory, F function)
    : object_(memory.Take(sizeof(F))) {
  static_assert(alignof(F) <= alignof(std::max_align_t));
  new (object_) F(std::move(function));
  call_ = [](void* object, Tape& tape, const Tensor& dy) { (*static_cast<F*>(object))(tape, dy); };
  destroy_ = [](void* object) { static_cast<F*>(object)->~F(); };
}

template <typename InputGradient, typename WeightGradient>
Activation Tape::Record(Tensor output, absl::Span<Parameter* const> weights,
                        InputGradient input_gradient, WeightGradient weight_gradient) {
  if (!recording()) {
    if (observed_) Observe(weights);
    return {.value = std::move(output)};
  }
  RecordedOperation& record = NewRecord(weights);
  record.output_slot = NewSlot();
  if constexpr (!std::is_same_v<InputGradient, NoGradientFunction>) {
    record.input_gradient = {memory_, std::move(input_gradient)};
  }
  if constexpr (!std::is_same_v<WeightGradient, NoGradientFunction>) {
    record.weight_gradient = {memory_, std::move(weight_gradient)};
  }
  return {.value = std::move(output), .slot = record.output_slot};
}

template <typename Region>
Activation Tape::Recomputed(const Activation& x, Region region) {
  if (!recording()) return region(*this, x);
  Tape& observer = Inner(observer_, Mode::kInference);
  observer.observed_->clear();
  observer.status_ = absl::OkStatus();
  Tensor output = region(observer, Activation{.value = x.value}).value;
  if (!observer.status_.ok()) return Refuse(observer.status_.message());
  RecordedOperation& record = NewRegion();
  record.output_slot = NewSlot();
  record.input_gradient = {
      memory_, [x, region](Tape& tape, const Tensor& dy) { tape.ReplayRegion(x, region, dy); }};
  return {.value = std::move(output), .slot = record.output_slot};
}

template <typename Region>
void Tape::ReplayRegion(const Activation& x, const Region& region, const Tensor& dy) {
  Tape& inner = Inner(replayer_, Mode::kTrain);
  const Activation input = inner.Watch(x.value);
  inner.Backward(region(inner, input), dy);
  if (!inner.status().ok()) Refuse(inner.status().message());
  const Tensor gradient = inner.TakeGradient(input);
  if (!gradient.empty()) AddGradient(x.slot, gradient);
}

}  // namespace muster
