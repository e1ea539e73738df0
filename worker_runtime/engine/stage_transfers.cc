#include "worker_runtime/engine/stage_transfers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/engine/tensor_buffer.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {

using plan::Handed;
using plan::Payload;
using plan::Transfer;

std::vector<Parameter*> StageTransfers::TiedTo(int lender) const {
  std::vector<Parameter*> tied;
  for (const plan::StageInfo& stage : set_up_.stages) {
    for (const int p : stage.borrowed) {
      Parameter& parameter = *store_.parameters()[p];
      if (parameter.frozen() || set_up_.StageOfParameter(p) != lender) continue;
      tied.push_back(&parameter);
    }
  }
  return tied;
}

int StageTransfers::LenderTo(int borrower) const {
  for (const int p : set_up_.stages[borrower].borrowed) {
    if (!store_.parameters()[p]->frozen()) return set_up_.StageOfParameter(p);
  }
  return plan::kNone;
}

int64_t StageTransfers::CountOf(const std::vector<Parameter*>& parameters) const {
  int64_t count = 0;
  for (const Parameter* parameter : parameters) count += parameter->num_elements();
  return count;
}

Tensor StageTransfers::Gather(const std::vector<Parameter*>& parameters, Payload payload) {
  const bool is_tied = payload == Payload::kTied;
  const Tensor all =
      pool_.Allocate(is_tied ? types_.gradients : types_.parameters, {CountOf(parameters)});
  int64_t first = 0;
  for (const Parameter* parameter : parameters) {
    const Tensor& from = is_tied ? parameter->gradient() : parameter->value();
    queue_.device().operations(from.dtype()).copy(queue_, from, all.Slice(first, from.shape()));
    first += from.num_elements();
  }
  return all;
}

std::vector<Tensor> StageTransfers::MemoryOf(const Transfer& transfer) {
  const auto [payload, stage, micro_batch] = transfer.what;
  if (!transfer.is_send) return MemoryToReceive(transfer);
  switch (payload) {
    case Payload::kActivation:
      return ValuesOf(passes_.At(stage, micro_batch).output.passed_on);
    case Payload::kGradient:
      return std::exchange(passes_.At(stage, micro_batch).input_gradients, {});
    case Payload::kTied:
      return {Gather(TiedTo(LenderTo(stage)), payload)};
    default:
      return {Gather(TiedTo(stage), payload)};
  }
}

std::vector<Tensor> StageTransfers::MemoryToReceive(const Transfer& transfer) {
  const auto [payload, stage, micro_batch] = transfer.what;
  switch (payload) {
    case Payload::kActivation:
      return Allocate(pool_, store_.dtype(), set_up_.received[stage + 1]);
    case Payload::kGradient:
      return Allocate(pool_, store_.dtype(), set_up_.received[stage]);
    default: {
      const DType dtype = payload == Payload::kTied ? types_.gradients : types_.parameters;
      return {pool_.Allocate(dtype, {transfer.bytes / plan::BytesOf(dtype)})};
    }
  }
}

std::vector<Work> StageTransfers::Start(const Transfer& transfer, absl::Span<const Tensor> memory) {
  const CallOptions options = {.queue = &queue_};
  const int peer = PeerOf(transfer);
  std::vector<Work> works;
  for (const Tensor& tensor : memory) {
    const Buffer buffer = BufferOfTensor(tensor);
    works.push_back(transfer.is_send ? world_.Send(buffer, peer, options)
                                     : world_.Recv(buffer, peer, options));
  }
  return works;
}

void StageTransfers::Finish(const Transfer& transfer, std::vector<Tensor> memory) {
  if (transfer.is_send) return;
  const auto [payload, stage, micro_batch] = transfer.what;
  switch (payload) {
    case Payload::kActivation:
      passes_.At(stage + 1, micro_batch).came = std::move(memory);
      break;
    case Payload::kGradient:
      passes_.At(stage - 1, micro_batch).gradients = std::move(memory);
      break;
    case Payload::kTied:
      passes_.At(LenderTo(stage), micro_batch).tied_gradient = memory[0];
      break;
    default: {
      int64_t first = 0;
      for (const Parameter* parameter : TiedTo(stage)) {
        const Tensor& value = parameter->value();
        queue_.device()
            .operations(value.dtype())
            .copy(queue_, memory[0].Slice(first, value.shape()), value);
        first += value.num_elements();
      }
    }
  }
}

int StageTransfers::PeerOf(const Transfer& transfer) const {
  return set_up_.mesh.Moved(world_.rank(), plan::Dimension::kPipeline, transfer.place);
}

std::string StageTransfers::NameOf(const Transfer& transfer) const {
  const Handed& what = transfer.what;
  std::string name = absl::StrCat("the ", plan::ToString(what.payload), " of stage ", what.stage);
  if (what.micro_batch != plan::kNone) {
    absl::StrAppend(&name, " and micro-batch ", what.micro_batch);
  }
  return absl::StrCat(name, transfer.is_send ? ", to rank " : ", from rank ", PeerOf(transfer));
}

void StageTransfers::Keep(const plan::StagePass& pass) {
  const bool is_forward = pass.kind == plan::PassKind::kForward;
  const int other = pass.stage + (is_forward ? 1 : -1);
  if (other < 0 || other == set_up_.num_stages()) return;
  if (set_up_.PlaceOf(other) != set_up_.PlaceOf(pass.stage)) return;
  PassInFlight& from = passes_.At(pass.stage, pass.micro_batch);
  PassInFlight& to = passes_.At(other, pass.micro_batch);
  if (is_forward) {
    to.came = ValuesOf(from.output.passed_on);
  } else {
    to.gradients = std::exchange(from.input_gradients, {});
  }
}

bool StageTransfers::IsTiedWithin(int borrower) const {
  const int lender = LenderTo(borrower);
  return lender != plan::kNone && set_up_.PlaceOf(lender) == set_up_.PlaceOf(borrower);
}

void StageTransfers::BindTied(int stage, bool adds) {
  if (!IsTiedWithin(stage)) return;
  for (Parameter* parameter : TiedTo(LenderTo(stage))) {
    Tensor& memory = tied_gradients_[parameter];
    if (memory.empty()) memory = pool_.Allocate(types_.gradients, parameter->shape());
    parameter->BindGradient(memory);
    if (adds) parameter->BeginGradient();
  }
}

void StageTransfers::KeepTied(int stage, int64_t micro_batch) {
  if (!IsTiedWithin(stage)) return;
  const int lender = LenderTo(stage);
  passes_.At(lender, micro_batch).tied_gradient = Gather(TiedTo(lender), Payload::kTied);
}

void StageTransfers::AddTiedGradient(int stage, PassInFlight& pass) {
  if (pass.tied_gradient.empty()) return;
  const Operations& operations = queue_.device().operations(pass.tied_gradient.dtype());
  int64_t first = 0;
  for (Parameter* parameter : TiedTo(stage)) {
    parameter->Enter();
    const Tensor part = pass.tied_gradient.Slice(first, parameter->shape());
    first += parameter->num_elements();
    const Parameter::GradientTarget to = parameter->BeginGradient();
    if (to.accumulate) {
      operations.add(queue_, to.gradient, part, to.gradient);
    } else {
      operations.copy(queue_, part, to.gradient);
    }
  }
  pass.tied_gradient = Tensor();
}

}  // namespace muster::engine
