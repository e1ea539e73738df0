// PTX, the text that nvcc compiles kernels to, as a list of decoded instructions: those that our
// kernels use, and no others.
//
// Source: PTX ISA 9.0, chapters 5 (state spaces and types) and 9 (instruction set)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::testing {

enum class PtxOp {
  kAdd,
  kSub,
  kMul,
  kMulWide,
  kMulHigh,
  kMulAdd,
  kFma,
  kFmaDown,
  kDiv,
  kRem,
  kMin,
  kMax,
  kNeg,
  kAbs,
  kSqrt,
  kReciprocal,
  kRoughReciprocal,
  kExp2,
  kAnd,
  kOr,
  kXor,
  kNot,
  kShiftLeft,
  kShiftRight,
  kFunnelLeft,
  kCountBits,
  kPermute,
  kMove,
  kJoin,
  kSplit,
  kSelect,
  kCompare,
  kConvert,
  kConvertPair,
  kSaturate,
  kLoad,
  kStore,
  kLoadParameter,
  kBranch,
  kReturn,
  kBarrier,
  kBarrierOr,
  kWarpBarrier,
  kShuffle,
  kBallot,
  kMultiplyTile,
  kLoadMatrices,
  kStartCopy,
  kCommitCopies,
  kFinishCopies,
};
enum class PtxType { kPred, kU8, kS8, kU16, kS16, kU32, kS32, kU64, kS64, kF16, kBf16, kF32, kF64 };
enum class PtxCompare { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
enum class PtxSpecial { kTidX, kCtaidX, kCtaidY, kNtidX, kNctaidX, kNctaidY, kLane };

struct PtxOperand {
  enum class Kind { kNone, kRegister, kNumber, kSpecial };
  Kind kind = Kind::kNone;
  bool negated = false;  // a predicate
  uint32_t index = 0;    // of a register, or a PtxSpecial
  uint64_t bits = 0;     // of a number
};

// Operands in the order of the text, those of vectors one by one.
struct PtxInstruction {
  static constexpr int kOperandsMax = 16;
  PtxOp op = PtxOp::kReturn;
  PtxType type = PtxType::kU32;
  PtxType from = PtxType::kU32;  // of a conversion
  PtxCompare compare = PtxCompare::kEqual;
  bool unordered = false;  // a comparison that holds where a side is not a number
  bool is_shared = false;  // of a load or store; else global
  bool transposed = false;
  int vector = 1;    // numbers of a load or store, matrices of kLoadMatrices
  PtxOperand guard;  // a predicate, where there is one
  std::array<PtxOperand, kOperandsMax> operands;
  int num_operands = 0;
  int64_t offset = 0;  // beside the address; of a parameter within all of them
  int target = -1;     // of a branch: the index of an instruction
  std::string text;
};

struct PtxEntry {
  struct Parameter {
    std::string name;
    size_t offset = 0;
    size_t bytes = 0;
  };
  std::string name;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  std::vector<PtxInstruction> code;
  int num_registers = 0;
};

// Shared memory, of which our kernels have one array, begins at this address.
inline constexpr uint64_t kPtxSharedBase = 4096;

constexpr size_t BytesOf(PtxType type) {
  switch (type) {
    case PtxType::kPred:
    case PtxType::kU8:
    case PtxType::kS8:
      return 1;
    case PtxType::kU16:
    case PtxType::kS16:
    case PtxType::kF16:
    case PtxType::kBf16:
      return 2;
    case PtxType::kU32:
    case PtxType::kS32:
    case PtxType::kF32:
      return 4;
    case PtxType::kU64:
    case PtxType::kS64:
    case PtxType::kF64:
      return 8;
  }
  return 8;
}

// The entry of that name in the text of a module.
//
// Errors: kNotFound: it has none. kUnimplemented: an instruction that this does not know.
absl::StatusOr<PtxEntry> ParsePtx(absl::string_view module, absl::string_view entry);

}  // namespace muster::testing
