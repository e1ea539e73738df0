// Products and sums for operations of a program's own, as the device of the tape computes them.
#include "muster/arithmetic.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/products.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

// "Times: [2, 5] and [6, 3] do not fit"; what was made of a refused tensor has no shape.
template <typename... Shapes>
void RefuseShapes(Tape& tape, absl::string_view what, const Shapes&... shapes) {
  std::string text(what);
  absl::string_view before = ": ";
  ((absl::StrAppend(&text, before, shapes.ToString()), before = " and "), ...);
  tape.Refuse(absl::StrCat(text, " do not fit"));
}

// Refuses factors of different types: "Times: bf16 and f32 are different types; ...".
bool AreOfOneType(Tape& tape, absl::string_view what, const Tensor& a, const Tensor& b) {
  if (a.empty() || b.empty() || a.dtype() == b.dtype()) return true;
  tape.Refuse(absl::StrCat(what, ": ", ToString(a.dtype()), " and ", ToString(b.dtype()),
                           " are different types; convert one of them by Cast"));
  return false;
}

bool AreRowsByMatrix(const Shape& x, const Shape& w) { return x.rank() > 0 && w.rank() == 2; }

}  // namespace

void Multiply(Tape& tape, const Product& product, const Tensor& a, const Tensor& b,
              const Tensor& c) {
  if (a.num_elements() != product.m * product.k || b.num_elements() != product.k * product.n ||
      c.num_elements() != product.m * product.n) {
    return RefuseShapes(
        tape, absl::StrCat("Multiply with m ", product.m, ", n ", product.n, ", k ", product.k),
        a.shape(), b.shape(), c.shape());
  }
  if (!AreOfOneType(tape, "Multiply", a, b)) return;
  tape.operations(c.dtype()).multiply(tape.queue(), product, a, b, c);
}

Tensor TimesTransposed(Tape& tape, const Tensor& x, const Tensor& w) {
  if (!AreRowsByMatrix(x.shape(), w.shape()) || RowsOf(x.shape()).width != w.shape()[1]) {
    RefuseShapes(tape, "TimesTransposed", x.shape(), w.shape());
    return {};
  }
  if (!AreOfOneType(tape, "TimesTransposed", x, w)) return {};
  const Tensor y = tape.pool().Allocate(x.dtype(), WithLast(x.shape(), w.shape()[0]));
  ProductWithTransposed(tape, x, w, y);
  return y;
}

Tensor Times(Tape& tape, const Tensor& x, const Tensor& w) {
  if (!AreRowsByMatrix(x.shape(), w.shape()) || RowsOf(x.shape()).width != w.shape()[0]) {
    RefuseShapes(tape, "Times", x.shape(), w.shape());
    return {};
  }
  if (!AreOfOneType(tape, "Times", x, w)) return {};
  const Tensor y = tape.pool().Allocate(x.dtype(), WithLast(x.shape(), w.shape()[1]));
  ProductWith(tape, x, w, y, /*accumulate=*/false);
  return y;
}

void AddProductGradient(Tape& tape, Parameter& weight, const Tensor& dy, const Tensor& x) {
  const bool are_rows = dy.shape().rank() > 0 && x.shape().rank() > 0;
  if (!are_rows || RowsOf(dy.shape()).rows != RowsOf(x.shape()).rows ||
      weight.shape() != (Shape{RowsOf(dy.shape()).width, RowsOf(x.shape()).width})) {
    return RefuseShapes(tape, absl::StrCat("AddProductGradient to ", weight.name()), weight.shape(),
                        dy.shape(), x.shape());
  }
  if (!AreOfOneType(tape, absl::StrCat("AddProductGradient to ", weight.name()), dy, x)) return;
  AddWeightGradient(tape, weight, dy, x);
}

Tensor Cast(Tape& tape, const Tensor& x, DType dtype) {
  if (x.empty() || x.dtype() == dtype) return x;
  const auto is_narrow = [](DType type) { return type == DType::kBf16 || type == DType::kF16; };
  const bool widens = is_narrow(x.dtype()) && dtype == DType::kF32;
  if (!widens && !(x.dtype() == DType::kF32 && is_narrow(dtype))) {
    tape.Refuse(absl::StrCat("Cast: from ", ToString(x.dtype()), " to ", ToString(dtype),
                             "; expected f32 and bf16 or f16"));
    return {};
  }
  const Tensor y = tape.pool().Allocate(dtype, x.shape());
  tape.operations(x.dtype()).cast(tape.queue(), x, y);
  return y;
}

void AddTensors(Tape& tape, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (a.num_elements() != out.num_elements() || b.num_elements() != out.num_elements()) {
    return RefuseShapes(tape, "AddTensors", a.shape(), b.shape(), out.shape());
  }
  if (!AreOfOneType(tape, "AddTensors", a, b)) return;
  tape.operations(out.dtype()).add(tape.queue(), a, b, out);
}

}  // namespace muster
