// What a model learns: declared first, given memory later.
//
//   ParameterStore store;  // of floats; ParameterStore(DType::kF64) for checks
//   auto model = Decoder::Create(config, store);  // layers declare their parameters
//   store.BindToOwnBuffers();  // or an engine binds each to its place in its flat buffers
//   store.Initialize(/*seed=*/1);
//
// Declaring takes no memory for elements, so a plan can be made for a model that would not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/parameter_spec.h"
#include "muster/tensor.h"
#include "muster/tensor_ranks.h"

namespace muster {

class ParameterStore;

// One named array of the model, with its gradient. A layer that shares a parameter with another
// (the tied head) holds a reference to the same one.
//
// Threads: thread-compatible.
class Parameter {
 public:
  // Constant after declaration.
  const std::string& name() const { return spec_.name; }
  const ParameterSpec& spec() const { return spec_; }
  // What this rank holds of it, and all memory below is of.
  const Shape& shape() const { return shape_; }
  int64_t num_elements() const { return shape().num_elements(); }
  const ParameterPart& part() const { return part_; }
  DType dtype() const { return dtype_; }
  int index() const { return index_; }  // in the order of declaration
  int unit() const { return unit_; }    // see ParameterStore::BeginUnit
  // Called by operations before they read its value or write its gradient: see
  // ParameterStore::OnUse.
  void Enter();
  ParameterStore& store() const { return store_; }

  // Memory of shape(), which stays valid while the parameter is used; the value's of dtype(). The
  // gradient may be bound later, or not at all for inference.
  void BindValue(Tensor value);
  void BindGradient(Tensor gradient);

  // Forgets both.
  void Unbind();
  void UnbindValue() { value_ = Tensor(); }
  void UnbindGradient();

  // It keeps its value for good, and no gradient of it is wanted: operations leave it out. Before
  // an engine is made; a plan's groups freeze by name (muster/update.h).
  void Freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }

  // Its value is that of another file: an engine's checkpoints and snapshots leave it out, and
  // Engine::LoadBase or LoadModel fills it. Of a frozen one, before an engine is made.
  void KeepElsewhere() { kept_elsewhere_ = true; }
  bool kept_elsewhere() const { return kept_elsewhere_; }

  const Tensor& value() const { return value_; }
  const Tensor& gradient() const { return gradient_; }

  // The memory that a kernel of weight gradients writes, of a parameter that is not frozen, and
  // whether it adds to what is there. The first writer after ForgetGradient() overwrites, which
  // saves clearing the gradient and reading it back.
  struct GradientTarget {
    Tensor gradient;
    bool accumulate = false;
  };
  GradientTarget BeginGradient();

  // BeginGradient for writers that touch only some elements: clears the gradient, on the writer's
  // queue, if it has not been written since ForgetGradient().
  Tensor BeginSparseGradient(Queue& queue);

  // The gradient counts as zero again, whatever its memory holds.
  void ForgetGradient() { has_gradient_ = false; }
  // Whether something was written since then; if not, the memory is meaningless (see
  // ParameterStore::ZeroUnwritten).
  bool has_gradient() const { return has_gradient_; }

 private:
  friend class ParameterStore;
  Parameter(ParameterStore& store, ParameterSpec spec, int index, int unit);

  ParameterStore& store_;  // owns it
  const ParameterSpec spec_;
  const ParameterPart part_;
  const Shape shape_;
  const DType dtype_;
  const int index_;
  const int unit_;
  Tensor value_;
  Tensor gradient_;
  bool has_gradient_ = false;
  bool frozen_ = false;
  bool kept_elsewhere_ = false;
};

// The parameters of a model in the order of declaration, which is the order of the forward pass.
//
// Threads: thread-compatible.
class ParameterStore {
 public:
  // `dtype`: of activations, and of parameters that name none.
  // `tensor_ranks`: those that the layers declared in it are cut over.
  explicit ParameterStore(DType dtype = DType::kF32, TensorRanks tensor_ranks = {})
      : dtype_(dtype), tensor_ranks_(tensor_ranks) {}
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // The reference stays valid as long as the store. A name used twice ends the process: it is a
  // mistake in the model.
  Parameter& Declare(ParameterSpec spec);

  // Parameters declared from here on belong together: they are gathered, reduced and offloaded as
  // one (an embedding, a block). Returns the unit's number; without any call everything is unit 0.
  int BeginUnit(absl::string_view name);
  const std::vector<std::string>& unit_names() const { return unit_names_; }

  DType dtype() const { return dtype_; }
  const TensorRanks& tensor_ranks() const { return tensor_ranks_; }
  // Whether tensor ranks divide what was declared: kInvalidArgument names the first parameter that
  // they do not. An engine refuses such a store.
  const absl::Status& status() const { return status_; }
  absl::Span<const std::unique_ptr<Parameter>> parameters() const { return parameters_; }
  // The parameter of that name; null if there is none.
  Parameter* Find(absl::string_view name) const;
  int64_t num_elements() const;

  // Calls `listener` whenever an operation is about to use a parameter; it may bind it. One at a
  // time; null: nobody.
  void OnUse(std::function<void(Parameter&)> listener) { on_use_ = std::move(listener); }
  bool is_listened_to() const { return on_use_ != nullptr || adder_ != nullptr; }

  // Makes `part` the sum of what the tensor ranks bring, which call this alike; layers that are cut
  // do. Nothing happens where there is one rank, or where nobody adds and elements are sizes alone;
  // with elements the process ends, for part of a sum would count as all of it.
  void AddUp(const Tensor& part);
  // `adder` adds up over the tensor ranks, behind what is on the queue of the tensor's device: an
  // engine, or a program without one. One at a time; null: nobody.
  void OnAddUp(std::function<void(const Tensor& part)> adder) { adder_ = std::move(adder); }

  // One flat buffer of values and one of gradients, parameters side by side in order of
  // declaration; those of another type than the store's have memory of their own. For programs
  // without an engine, and tests.
  void BindToOwnBuffers();
  const Tensor& flat_values() const { return flat_values_; }
  const Tensor& flat_gradients() const { return flat_gradients_; }

  // Fills every bound value, in memory that the host reads. Each element depends on (seed,
  // parameter name, element index in the whole) alone.
  void Initialize(uint64_t seed);

  void ForgetGradients();
  // Clears the gradients that nothing was written to, so that all memory is meaningful.
  void ZeroUnwritten(Queue& queue);

  // The device on which an engine gives parameters their memory; it outlives the store. Null: the
  // host.
  void PlaceOn(const Device* device) { device_ = device; }
  const Device* device() const { return device_; }

 private:
  const DType dtype_;
  const TensorRanks tensor_ranks_;
  absl::Status status_;
  const Device* device_ = nullptr;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::map<absl::string_view, Parameter*> by_name_;
  friend class Parameter;
  std::vector<std::string> unit_names_;
  std::function<void(Parameter&)> on_use_;
  std::function<void(const Tensor&)> adder_;
  std::unique_ptr<TensorPool> pool_;  // of BindToOwnBuffers
  Tensor flat_values_;
  Tensor flat_gradients_;
};

// Writes elements [first, first + out.num_elements()) of this rank's part of the initial value of a
// parameter, for owners of a shard. Threads: pure.
void InitializeElements(const Parameter& parameter, uint64_t seed, int64_t first, Tensor out);

// A prefix for names: Scope(store) / "h" / 0 / "ln_1" declares "h.0.ln_1.weight".
class Scope {
 public:
  explicit Scope(ParameterStore& store) : store_(&store) {}

  Scope operator/(absl::string_view name) const;
  Scope operator/(int number) const;

  // Declares `spec` with its name below this prefix.
  Parameter& Declare(ParameterSpec spec) const;
  ParameterStore& store() const { return *store_; }
  const std::string& prefix() const { return prefix_; }

 private:
  ParameterStore* store_;  // outlives every scope: the caller's
  std::string prefix_;
};

}  // namespace muster
