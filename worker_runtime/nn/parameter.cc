// What layers learn: declaration, memory, initial values.
#include "muster/parameter.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "muster/rng.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/float_dispatch.h"
#include "worker_runtime/nn/operations.h"

namespace muster {

Parameter::Parameter(ParameterStore& store, ParameterSpec spec, int index, int unit)
    : store_(store),
      spec_(std::move(spec)),
      part_(spec_.shape.sizes(), spec_.cut, store.tensor_ranks()),
      shape_(part_.is_cut() ? spec_.shape.With(spec_.cut->axis, spec_.shape[spec_.cut->axis] /
                                                                    store.tensor_ranks().size)
                            : spec_.shape),
      dtype_(spec_.dtype.value_or(store.dtype())),
      index_(index),
      unit_(unit) {}

void Parameter::Enter() {
  if (store_.on_use_) store_.on_use_(*this);
}

void Parameter::UnbindGradient() {
  gradient_ = Tensor();
  has_gradient_ = false;
}

void Parameter::BindValue(Tensor value) {
  MUSTER_CHECK(value.shape() == shape() && value.dtype() == dtype_);
  value_ = std::move(value);
}

void Parameter::BindGradient(Tensor gradient) {
  MUSTER_CHECK(gradient.shape() == shape());
  gradient_ = std::move(gradient);
  has_gradient_ = false;
}

void Parameter::Unbind() {
  value_ = Tensor();
  gradient_ = Tensor();
  has_gradient_ = false;
}

Parameter::GradientTarget Parameter::BeginGradient() {
  MUSTER_CHECK(!frozen_ && !gradient_.empty());
  return {.gradient = gradient_, .accumulate = std::exchange(has_gradient_, true)};
}

Tensor Parameter::BeginSparseGradient(Queue& queue) {
  const GradientTarget target = BeginGradient();
  if (!target.accumulate) queue.device().operations(gradient_.dtype()).clear(queue, gradient_);
  return gradient_;
}

Parameter& ParameterStore::Declare(ParameterSpec spec) {
  MUSTER_CHECK(Find(spec.name) == nullptr);
  if (spec.cut.has_value()) {
    const absl::Status fits =
        ParameterPart::Check(spec.shape.sizes(), *spec.cut, tensor_ranks_.size);
    if (!fits.ok()) {
      status_.Update(absl::Status(fits.code(), absl::StrCat(spec.name, ": ", fits.message())));
      spec.cut.reset();
    }
  }
  const int index = static_cast<int>(parameters_.size());
  const int unit = std::max(0, static_cast<int>(unit_names_.size()) - 1);
  parameters_.push_back(
      std::unique_ptr<Parameter>(new Parameter(*this, std::move(spec), index, unit)));
  by_name_[parameters_.back()->name()] = parameters_.back().get();
  return *parameters_.back();
}

int ParameterStore::BeginUnit(absl::string_view name) {
  unit_names_.emplace_back(name);
  return static_cast<int>(unit_names_.size()) - 1;
}

Parameter* ParameterStore::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

int64_t ParameterStore::num_elements() const {
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter->num_elements();
  return total;
}

void ParameterStore::Initialize(uint64_t seed) {
  for (const auto& parameter : parameters_) {
    if (parameter->value().empty()) continue;
    InitializeElements(*parameter, seed, 0,
                       parameter->value().Reshaped({parameter->num_elements()}));
  }
}

void ParameterStore::AddUp(const Tensor& part) {
  if (tensor_ranks_.size == 1 || part.empty()) return;
  if (adder_) return adder_(part);
  MUSTER_CHECK(!part.has_elements());  // the sum would be a part of it
}

void ParameterStore::ForgetGradients() {
  for (const auto& parameter : parameters_) parameter->ForgetGradient();
}

void ParameterStore::ZeroUnwritten(Queue& queue) {
  for (const auto& parameter : parameters_) {
    if (parameter->frozen()) continue;
    if (!parameter->gradient().empty() && !parameter->has_gradient()) {
      parameter->BeginSparseGradient(queue);
    }
  }
}

namespace {

// Below it a thread costs more than it saves.
constexpr int64_t kElementsPerThread = 1 << 19;

// Calls `fill(begin, end)` for parts of [0, n), side by side on the machine's processors.
void InParts(int64_t n, absl::FunctionRef<void(int64_t begin, int64_t end)> fill) {
  const int64_t processors = std::max(1u, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(n / kElementsPerThread, 1, processors);
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < parts; ++part) {
    threads.emplace_back([=] { fill(n * part / parts, n * (part + 1) / parts); });
  }
  fill(0, n / parts);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void InitializeElements(const Parameter& parameter, uint64_t seed, int64_t first, Tensor out) {
  const Initializer init = parameter.spec().initializer;
  const Rng rng(seed, absl::StrCat("initial value of ", parameter.name()));
  WithElements(out, [&](auto, auto write) {
    if (init.kind != Initializer::Kind::kNormal) {
      for (int64_t i = 0; i < out.num_elements(); ++i) write(i, init.value);
      return;
    }
    InParts(out.num_elements(), [&](int64_t begin, int64_t end) {
      double normal[256];
      parameter.part().ForEachRun(first + begin, end - begin, [&](const ElementRun& run) {
        for (int64_t i = 0; i < run.count; i += std::ssize(normal)) {
          const auto count =
              static_cast<size_t>(std::min<int64_t>(std::ssize(normal), run.count - i));
          rng.FillNormal(0, run.first_in_whole + i, absl::MakeSpan(normal, count));
          const int64_t at = run.first - first + i;
          for (size_t k = 0; k < count; ++k) write(at + k, init.value * normal[k]);
        }
      });
    });
  });
}

Scope Scope::operator/(absl::string_view name) const {
  Scope inner = *this;
  inner.prefix_ = prefix_.empty() ? std::string(name) : absl::StrCat(prefix_, ".", name);
  return inner;
}

Scope Scope::operator/(int number) const { return *this / absl::StrCat(number); }

Parameter& Scope::Declare(ParameterSpec spec) const {
  spec.name = (*this / spec.name).prefix_;
  return store_->Declare(std::move(spec));
}

}  // namespace muster
