#include "tests/unit/worker_runtime/cuda/ptx/ptx_interpreter.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/sixteen_bits.h"

namespace muster::testing {
namespace {

constexpr unsigned kWarp = 32;
constexpr int kCopyBytes = 16;

template <typename T>
T As(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// Calls `run` with a number of the type, for arithmetic.
template <typename Run>
auto WithType(PtxType type, Run run) {
  switch (type) {
    case PtxType::kPred:
    case PtxType::kU8:
      return run(uint8_t{});
    case PtxType::kS8:
      return run(int8_t{});
    case PtxType::kU16:
    case PtxType::kF16:
    case PtxType::kBf16:
      return run(uint16_t{});
    case PtxType::kS16:
      return run(int16_t{});
    case PtxType::kU32:
      return run(uint32_t{});
    case PtxType::kS32:
      return run(int32_t{});
    case PtxType::kU64:
      return run(uint64_t{});
    case PtxType::kS64:
      return run(int64_t{});
    case PtxType::kF32:
      return run(float{});
    case PtxType::kF64:
      break;
  }
  return run(double{});
}

float FlushedToZero(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// a * b + c, rounded towards minus infinity.
float FusedDown(float a, float b, float c) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr((before & ~static_cast<unsigned>(_MM_ROUND_MASK)) | _MM_ROUND_DOWN);
  volatile float va = a, vb = b, vc = c;
  const volatile float result = std::fma(va, vb, vc);
  _mm_setcsr(before);
  return result;
}

template <typename T>
uint64_t Arithmetic(PtxOp op, T a, T b, T c) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case PtxOp::kAdd:
        return Bits<T>(a + b);
      case PtxOp::kSub:
        return Bits<T>(a - b);
      case PtxOp::kMul:
        return Bits<T>(a * b);
      case PtxOp::kDiv:
        return Bits<T>(a / b);
      case PtxOp::kFma:
        return Bits<T>(std::fma(a, b, c));
      case PtxOp::kFmaDown:
        return Bits(FusedDown(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)));
      case PtxOp::kMin:
        return Bits<T>(std::fmin(a, b));
      case PtxOp::kMax:
        return Bits<T>(std::fmax(a, b));
      case PtxOp::kNeg:
        return Bits<T>(-a);
      case PtxOp::kAbs:
        return Bits<T>(std::fabs(a));
      case PtxOp::kSqrt:
        return Bits<T>(std::sqrt(a));
      case PtxOp::kReciprocal:
        return Bits<T>(1 / a);
      case PtxOp::kRoughReciprocal:
        // The instruction gives only the upper half of a double.
        if constexpr (sizeof(T) == 8) return Bits<T>(1 / a) & 0xffffffff00000000u;
        return Bits<T>(1 / a);
      case PtxOp::kExp2:
        return Bits(FlushedToZero(std::exp2(FlushedToZero(static_cast<float>(a)))));
      case PtxOp::kSaturate:
        return Bits<T>(a > 0 ? std::min<T>(a, 1) : 0);  // not a number: 0
      default:
        return Bits<T>(a);
    }
  } else {
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(a), y = static_cast<U>(b), z = static_cast<U>(c);
    constexpr uint64_t kBits = sizeof(T) * 8;
    switch (op) {
      case PtxOp::kAdd:
        return Bits<U>(static_cast<U>(x + y));
      case PtxOp::kSub:
        return Bits<U>(static_cast<U>(x - y));
      case PtxOp::kMul:
        return Bits<U>(static_cast<U>(uint64_t{x} * uint64_t{y}));
      case PtxOp::kMulAdd:
        return Bits<U>(static_cast<U>(uint64_t{x} * uint64_t{y} + z));
      case PtxOp::kMulHigh:
        if constexpr (std::is_signed_v<T>)
          return Bits<T>(static_cast<T>((static_cast<__int128>(a) * b) >> kBits));
        return Bits<U>(static_cast<U>((static_cast<unsigned __int128>(x) * y) >> kBits));
      case PtxOp::kMulWide:
        if constexpr (std::is_signed_v<T>) return static_cast<uint64_t>(int64_t{a} * int64_t{b});
        return uint64_t{x} * uint64_t{y};
      case PtxOp::kDiv:
        return b == 0 ? ~uint64_t{0} : Bits<T>(static_cast<T>(a / b));
      case PtxOp::kRem:
        return b == 0 ? Bits<T>(a) : Bits<T>(static_cast<T>(a % b));
      case PtxOp::kMin:
        return Bits<T>(std::min(a, b));
      case PtxOp::kMax:
        return Bits<T>(std::max(a, b));
      case PtxOp::kNeg:
        return Bits<U>(static_cast<U>(0 - x));
      case PtxOp::kAbs:
        return Bits<T>(static_cast<T>(a < 0 ? 0 - x : x));
      case PtxOp::kAnd:
        return Bits<U>(x & y);
      case PtxOp::kOr:
        return Bits<U>(x | y);
      case PtxOp::kXor:
        return Bits<U>(x ^ y);
      case PtxOp::kNot:
        return Bits<U>(static_cast<U>(~x));
      case PtxOp::kCountBits:
        return static_cast<uint64_t>(__builtin_popcountll(x));
      default:
        return Bits<T>(a);
    }
  }
}

template <typename T>
bool Compare(const PtxInstruction& in, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return in.unordered;
  }
  switch (in.compare) {
    case PtxCompare::kEqual:
      return a == b;
    case PtxCompare::kNotEqual:
      return a != b;
    case PtxCompare::kLess:
      return a < b;
    case PtxCompare::kLessEqual:
      return a <= b;
    case PtxCompare::kGreater:
      return a > b;
    case PtxCompare::kGreaterEqual:
      return a >= b;
  }
  return false;
}

// Types of which at least one is narrow go through float.
float WidenedFrom(PtxType type, uint64_t bits) {
  const auto low = static_cast<uint16_t>(bits);
  return type == PtxType::kF16 ? FromF16(low) : FromBf16(low);
}
uint64_t NarrowedTo(PtxType type, float x) {
  if (std::isnan(x)) return 0x7fff;
  return type == PtxType::kF16 ? ToF16(x) : ToBf16(x);
}

uint64_t Converted(PtxType to, PtxType from, uint64_t bits) {
  if (to == PtxType::kF16 || to == PtxType::kBf16) return NarrowedTo(to, As<float>(bits));
  if (from == PtxType::kF16 || from == PtxType::kBf16) return Bits(WidenedFrom(from, bits));
  return WithType(from, [&](auto source) {
    const auto value = As<decltype(source)>(bits);
    return WithType(to, [&](auto target) { return Bits(static_cast<decltype(target)>(value)); });
  });
}

// The last use of two bytes of shared memory: by whom, and between which meetings.
struct Use {
  static constexpr int kNobody = -1, kManyOfWarp = -2, kMany = -3;
  int thread = kNobody;
  unsigned warp = 0;
  unsigned block_meeting = 0;
  unsigned warp_meeting = 0;
};
struct SharedPair {
  unsigned char value[2] = {};
  bool written = false;
  Use write, read;
};

struct Copy {
  uint64_t to = 0;  // of shared memory
  unsigned char bytes[kCopyBytes] = {};
};

struct Lane {
  unsigned thread = 0;
  int pc = 0;
  bool waits = false;  // at code[pc], for others
  bool ended = false;
  std::vector<uint64_t> value;
  std::vector<char> has_value;
  std::vector<Copy> copies;
};

class Run {
 public:
  Run(const PtxEntry& entry, PtxLaunch launch, const std::vector<unsigned char>& arguments,
      PtxMemory& memory, uint64_t seed, PtxTraffic* traffic)
      : entry_(entry),
        launch_(launch),
        arguments_(arguments),
        memory_(memory),
        traffic_(*traffic),
        number_(memory.CountLaunch()),
        draws_(seed),
        nearest_(entry.code.size()) {}

  std::string AllBlocks() {
    if (launch_.threads == 0 || launch_.threads % kWarp != 0 || launch_.threads > 1024) {
      return absl::StrCat("blocks of ", launch_.threads, " threads");
    }
    ++traffic_.launches;
    std::vector<unsigned> order(size_t{launch_.blocks_x} * launch_.blocks_y);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), draws_);
    for (const unsigned block : order) {
      block_x_ = block % launch_.blocks_x;
      block_y_ = block / launch_.blocks_x;
      OneBlock();
      if (!fault_.empty()) return fault_;
    }
    return "";
  }

 private:
  void OneBlock() {
    shared_.assign((launch_.shared_bytes + 1) / 2, SharedPair());
    warp_meetings_.assign(launch_.threads / kWarp, 0);
    block_meeting_ = 0;
    lanes_.resize(launch_.threads);
    for (unsigned thread = 0; thread < launch_.threads; ++thread) {
      Lane& lane = lanes_[thread];
      lane.thread = thread;
      lane.pc = 0;
      lane.waits = lane.ended = false;
      lane.value.assign(entry_.num_registers, 0);
      lane.has_value.assign(entry_.num_registers, 0);
      lane.copies.clear();
    }
    std::vector<unsigned> warps(launch_.threads / kWarp);
    std::iota(warps.begin(), warps.end(), 0u);
    while (fault_.empty()) {
      std::shuffle(warps.begin(), warps.end(), draws_);
      for (const unsigned warp : warps) OneWarp(warp);
      if (!fault_.empty() || !MeetInBlock()) return;
    }
  }

  // Runs a warp until its lanes have ended or wait for the block.
  void OneWarp(unsigned warp) {
    std::array<unsigned, kWarp> order;
    std::iota(order.begin(), order.end(), warp * kWarp);
    while (fault_.empty()) {
      std::shuffle(order.begin(), order.end(), draws_);
      for (const unsigned thread : order) {
        if (!lanes_[thread].ended && !lanes_[thread].waits) RunLane(lanes_[thread]);
        if (!fault_.empty()) return;
      }
      const Lane* first = nullptr;
      bool some_ended = false;
      for (unsigned i = 0; i < kWarp; ++i) {
        const Lane& lane = lanes_[warp * kWarp + i];
        if (lane.ended) {
          some_ended = true;
        } else if (first == nullptr) {
          first = &lane;
        } else if (lane.pc != first->pc) {
          return Fault(lane, absl::StrCat("lanes of a warp meet at different places, also at: ",
                                          entry_.code[first->pc].text));
        }
      }
      if (first == nullptr) return;
      const PtxOp op = entry_.code[first->pc].op;
      if (op == PtxOp::kBarrier || op == PtxOp::kBarrierOr) return;
      if (some_ended) return Fault(*first, "other lanes of the warp have ended");
      MeetInWarp(warp, entry_.code[first->pc]);
    }
  }

  // Whether there was one: else the block has ended.
  bool MeetInBlock() {
    const Lane* first = nullptr;
    bool some_ended = false, any = false;
    for (const Lane& lane : lanes_) {
      if (lane.ended) {
        some_ended = true;
      } else if (first == nullptr) {
        first = &lane;
      } else if (lane.pc != first->pc) {
        Fault(lane, absl::StrCat("threads of a block meet at different places, also at: ",
                                 entry_.code[first->pc].text));
        return false;
      }
    }
    if (first == nullptr) return false;
    if (some_ended) {
      Fault(*first, "other threads of the block have ended");
      return false;
    }
    const PtxInstruction& in = entry_.code[first->pc];
    if (in.op == PtxOp::kBarrierOr) {
      for (Lane& lane : lanes_) any = any || Predicate(lane, in.operands[2]);
    }
    for (Lane& lane : lanes_) {
      if (in.op == PtxOp::kBarrierOr) Write(lane, in.operands[0], any ? 1 : 0);
      GoOn(lane);
    }
    ++block_meeting_;
    return fault_.empty();
  }

  static void GoOn(Lane& lane) {
    lane.waits = false;
    ++lane.pc;
  }

  void Fault(const Lane& lane, absl::string_view what) {
    if (!fault_.empty()) return;
    fault_ = absl::StrCat(entry_.name, ", block (", block_x_, ", ", block_y_, "), thread ",
                          lane.thread, ", at \"", entry_.code[lane.pc].text, "\": ", what);
  }

  // --- Registers

  uint64_t Read(const Lane& lane, const PtxOperand& operand) {
    switch (operand.kind) {
      case PtxOperand::Kind::kNumber:
        return operand.bits;
      case PtxOperand::Kind::kRegister:
        if (lane.has_value[operand.index] == 0) Fault(lane, "a register has no value");
        return lane.value[operand.index];
      case PtxOperand::Kind::kSpecial:
        switch (static_cast<PtxSpecial>(operand.index)) {
          case PtxSpecial::kTidX:
            return lane.thread;
          case PtxSpecial::kCtaidX:
            return block_x_;
          case PtxSpecial::kCtaidY:
            return block_y_;
          case PtxSpecial::kNtidX:
            return launch_.threads;
          case PtxSpecial::kNctaidX:
            return launch_.blocks_x;
          case PtxSpecial::kNctaidY:
            return launch_.blocks_y;
          case PtxSpecial::kLane:
            return lane.thread % kWarp;
        }
        return 0;
      case PtxOperand::Kind::kNone:
        break;
    }
    return 0;
  }
  bool Predicate(const Lane& lane, const PtxOperand& operand) {
    return (Read(lane, operand) != 0) != operand.negated;
  }
  static void Write(Lane& lane, const PtxOperand& to, uint64_t bits) {
    if (to.kind != PtxOperand::Kind::kRegister) return;  // nobody wants it
    lane.value[to.index] = bits;
    lane.has_value[to.index] = 1;
  }

  // --- Memory

  bool IsAligned(const Lane& lane, uint64_t address, size_t bytes) {
    if (address % bytes == 0) return true;
    Fault(lane, absl::StrCat("address ", absl::Hex(address), " is no multiple of ", bytes));
    return false;
  }

  PtxMemory::Array* ArrayAt(const Lane& lane, uint64_t address, size_t bytes) {
    PtxMemory::Array*& near = nearest_[lane.pc];
    if (near == nullptr || address < near->begin() ||
        address + bytes > near->begin() + near->size) {
      near = memory_.Find(address);
    }
    if (near != nullptr && address >= near->begin() &&
        address + bytes <= near->begin() + near->size) {
      return near;
    }
    Fault(lane, near == nullptr
                    ? absl::StrCat(bytes, " bytes at ", absl::Hex(address), " are in no array")
                    : absl::StrCat(bytes, " bytes at byte ",
                                   static_cast<int64_t>(address - near->begin()),
                                   " of an array of ", near->size));
    near = nullptr;
    return nullptr;
  }

  void ReadGlobal(const Lane& lane, uint64_t address, unsigned char* to, size_t bytes) {
    PtxMemory::Array* const array = ArrayAt(lane, address, bytes);
    if (array == nullptr) return;
    const size_t at = address - array->begin();
    for (size_t i = 0; i < bytes; ++i) {
      if (!array->written[at + i])
        return Fault(lane, absl::StrCat("nobody wrote byte ", at + i, " of an array"));
    }
    std::memcpy(to, &array->bytes[at], bytes);
    traffic_.bytes_read += static_cast<int64_t>(bytes);
    // What the launch has written is in the cache.
    const size_t sector = at / PtxMemory::kSectorBytes;
    if (array->written_by[sector] != number_) {
      CountSector(array->read_by[sector], traffic_.sector_bytes_read);
    }
  }
  void WriteGlobal(const Lane& lane, uint64_t address, const unsigned char* from, size_t bytes) {
    PtxMemory::Array* const array = ArrayAt(lane, address, bytes);
    if (array == nullptr) return;
    const size_t at = address - array->begin();
    std::memcpy(&array->bytes[at], from, bytes);
    std::fill_n(array->written.begin() + static_cast<int64_t>(at), bytes, true);
    traffic_.bytes_written += static_cast<int64_t>(bytes);
    CountSector(array->written_by[at / PtxMemory::kSectorBytes], traffic_.sector_bytes_written);
  }

  void CountSector(int64_t& last, int64_t& bytes) const {
    if (std::exchange(last, number_) != number_) bytes += PtxMemory::kSectorBytes;
  }

  SharedPair* SharedAt(const Lane& lane, uint64_t address, size_t bytes) {
    if (bytes % 2 == 0 && address >= kPtxSharedBase &&
        address + bytes <= kPtxSharedBase + launch_.shared_bytes) {
      return &shared_[(address - kPtxSharedBase) / 2];
    }
    Fault(lane,
          absl::StrCat(bytes, " bytes at byte ", static_cast<int64_t>(address - kPtxSharedBase),
                       " of ", launch_.shared_bytes, " of shared memory"));
    return nullptr;
  }
  // Whether that use and the one of `lane` now have met in between, or are one thread's.
  bool InOrder(const Use& use, const Lane& lane) const {
    const unsigned warp = lane.thread / kWarp;
    if (use.thread == Use::kNobody || use.thread == static_cast<int>(lane.thread)) return true;
    if (use.block_meeting != block_meeting_) return true;
    return use.thread != Use::kMany && use.warp == warp && use.warp_meeting != warp_meetings_[warp];
  }
  Use UseBy(const Lane& lane) const {
    const unsigned warp = lane.thread / kWarp;
    return {static_cast<int>(lane.thread), warp, block_meeting_, warp_meetings_[warp]};
  }
  void ReadShared(const Lane& lane, uint64_t address, unsigned char* to, size_t bytes) {
    SharedPair* const from = SharedAt(lane, address, bytes);
    if (from == nullptr) return;
    const Use use = UseBy(lane);
    for (size_t i = 0; i < bytes / 2; ++i) {
      if (!from[i].written)
        return Fault(lane, "nobody wrote that shared memory, or its copy was not waited for");
      if (!InOrder(from[i].write, lane))
        return Fault(lane, "another thread wrote that shared memory since they last met");
      std::memcpy(to + 2 * i, from[i].value, 2);
      Use& last = from[i].read;
      const bool is_same_time =
          last.thread != Use::kNobody && last.block_meeting == use.block_meeting;
      if (!is_same_time || last.thread == use.thread ||
          (last.thread != Use::kMany && last.warp == use.warp &&
           last.warp_meeting != use.warp_meeting)) {
        last = use;
      } else {
        last.thread =
            last.thread != Use::kMany && last.warp == use.warp ? Use::kManyOfWarp : Use::kMany;
      }
    }
  }
  void WriteShared(const Lane& lane, uint64_t address, const unsigned char* from, size_t bytes) {
    SharedPair* const to = SharedAt(lane, address, bytes);
    if (to == nullptr) return;
    for (size_t i = 0; i < bytes / 2; ++i) {
      if (!InOrder(to[i].write, lane))
        return Fault(lane, "another thread wrote that shared memory since they last met");
      if (!InOrder(to[i].read, lane))
        return Fault(lane, "another thread read that shared memory since they last met");
      std::memcpy(to[i].value, from + 2 * i, 2);
      to[i].written = true;
      to[i].write = UseBy(lane);
      to[i].read = Use();
    }
  }

  void LoadOrStore(Lane& lane, const PtxInstruction& in) {
    const size_t width = BytesOf(in.type);
    const size_t bytes = width * static_cast<size_t>(in.vector);
    const PtxOperand& base = in.operands[in.op == PtxOp::kStore ? 0 : in.vector];
    uint64_t address = Read(lane, base);
    if (in.is_shared) address = static_cast<uint32_t>(address);
    address += static_cast<uint64_t>(in.offset);
    if (!fault_.empty() || !IsAligned(lane, address, bytes)) return;
    unsigned char buffer[16] = {};
    if (in.op == PtxOp::kLoad) {
      in.is_shared ? ReadShared(lane, address, buffer, bytes)
                   : ReadGlobal(lane, address, buffer, bytes);
      if (fault_.empty()) Spread(lane, in, buffer);
      return;
    }
    for (int i = 0; i < in.vector; ++i) {
      const uint64_t bits = Read(lane, in.operands[1 + i]);
      std::memcpy(buffer + static_cast<size_t>(i) * width, &bits, width);
    }
    in.is_shared ? WriteShared(lane, address, buffer, bytes)
                 : WriteGlobal(lane, address, buffer, bytes);
  }

  // Numbers of a load, wider registers with their sign.
  void Spread(Lane& lane, const PtxInstruction& in, const unsigned char* from) {
    const size_t width = BytesOf(in.type);
    for (int i = 0; i < in.vector; ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, from + static_cast<size_t>(i) * width, width);
      if (in.type == PtxType::kS8) bits = static_cast<uint64_t>(int64_t{As<int8_t>(bits)});
      if (in.type == PtxType::kS16) bits = static_cast<uint64_t>(int64_t{As<int16_t>(bits)});
      if (in.type == PtxType::kS32) bits = static_cast<uint64_t>(int64_t{As<int32_t>(bits)});
      Write(lane, in.operands[i], bits);
    }
  }

  // --- Instructions of a lane

  // Runs a lane until it meets others or ends.
  void RunLane(Lane& lane) {
    while (fault_.empty()) {
      if (lane.pc >= static_cast<int>(entry_.code.size())) {
        lane.ended = true;
        return;
      }
      const PtxInstruction& in = entry_.code[lane.pc];
      ++traffic_.instructions;
      if (in.guard.kind != PtxOperand::Kind::kNone && !Predicate(lane, in.guard)) {
        ++lane.pc;
        continue;
      }
      switch (in.op) {
        case PtxOp::kReturn:
          lane.ended = true;
          if (!lane.copies.empty()) Fault(lane, "a copy was never waited for");
          return;
        case PtxOp::kBranch:
          lane.pc = in.target;
          continue;
        case PtxOp::kBarrier:
        case PtxOp::kBarrierOr:
        case PtxOp::kWarpBarrier:
        case PtxOp::kShuffle:
        case PtxOp::kBallot:
        case PtxOp::kMultiplyTile:
        case PtxOp::kLoadMatrices:
          lane.waits = true;
          return;
        default:
          Step(lane, in);
          if (!fault_.empty()) return;
          ++lane.pc;
      }
    }
  }

  void Step(Lane& lane, const PtxInstruction& in) {
    const auto& operands = in.operands;
    // What most instructions of our kernels are goes first.
    if (in.op == PtxOp::kFma && in.type == PtxType::kF32) {
      const auto a = As<float>(Read(lane, operands[1])), b = As<float>(Read(lane, operands[2]));
      const auto c = As<float>(Read(lane, operands[3]));
      return Write(lane, operands[0], Bits(std::fma(a, b, c)));
    }
    switch (in.op) {
      case PtxOp::kLoad:
      case PtxOp::kStore:
        return LoadOrStore(lane, in);
      case PtxOp::kLoadParameter: {
        const size_t bytes = BytesOf(in.type) * static_cast<size_t>(in.vector);
        // The place is a parameter's, or one within it that was computed.
        uint64_t place = static_cast<uint64_t>(in.offset);
        if (in.num_operands > in.vector) place += Read(lane, in.operands[in.vector]);
        if (!fault_.empty()) return;
        if (place > arguments_.size() || bytes > arguments_.size() - place) {
          return Fault(lane, "behind the arguments");
        }
        return Spread(lane, in, arguments_.data() + place);
      }
      case PtxOp::kStartCopy:
        return StartCopy(lane, in);
      case PtxOp::kCommitCopies:
        return;
      case PtxOp::kFinishCopies: {
        const std::vector<Copy> arrived = std::exchange(lane.copies, {});
        for (const Copy& copy : arrived) WriteShared(lane, copy.to, copy.bytes, kCopyBytes);
        return;
      }
      case PtxOp::kMove:
        return Write(lane, operands[0], Read(lane, operands[1]));
      case PtxOp::kJoin: {
        const size_t half = BytesOf(in.type) * 4;
        const uint64_t mask = (uint64_t{1} << half) - 1;
        return Write(lane, operands[0],
                     (Read(lane, operands[1]) & mask) | (Read(lane, operands[2]) & mask) << half);
      }
      case PtxOp::kSplit: {
        const size_t half = BytesOf(in.type) * 4;
        const uint64_t bits = Read(lane, operands[2]);
        Write(lane, operands[0], bits & ((uint64_t{1} << half) - 1));
        return Write(lane, operands[1], bits >> half & ((uint64_t{1} << half) - 1));
      }
      case PtxOp::kSelect:
        return Write(
            lane, operands[0],
            Predicate(lane, operands[3]) ? Read(lane, operands[1]) : Read(lane, operands[2]));
      case PtxOp::kConvert:
        return Write(lane, operands[0], Converted(in.type, in.from, Read(lane, operands[1])));
      case PtxOp::kConvertPair:
        return Write(lane, operands[0],
                     NarrowedTo(in.type, As<float>(Read(lane, operands[1]))) << 16 |
                         NarrowedTo(in.type, As<float>(Read(lane, operands[2]))));
      case PtxOp::kCompare: {
        const uint64_t a = Read(lane, operands[1]), b = Read(lane, operands[2]);
        const bool holds = WithType(in.type, [&](auto type) {
          return Compare(in, As<decltype(type)>(a), As<decltype(type)>(b));
        });
        return Write(lane, operands[0], holds ? 1 : 0);
      }
      case PtxOp::kShiftLeft:
      case PtxOp::kShiftRight:
        return Write(
            lane, operands[0],
            Shifted(in, Read(lane, operands[1]), static_cast<uint32_t>(Read(lane, operands[2]))));
      case PtxOp::kFunnelLeft: {
        const uint64_t both =
            Read(lane, operands[2]) << 32 | static_cast<uint32_t>(Read(lane, operands[1]));
        return Write(lane, operands[0], both << (Read(lane, operands[3]) & 31) >> 32);
      }
      case PtxOp::kPermute: {
        const uint64_t both =
            Read(lane, operands[2]) << 32 | static_cast<uint32_t>(Read(lane, operands[1]));
        const uint64_t selector = Read(lane, operands[3]);
        uint64_t out = 0;
        for (int i = 0; i < 4; ++i) {
          const uint64_t which = selector >> (4 * i) & 0xf;
          uint64_t byte = both >> (8 * (which & 7)) & 0xff;
          if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
          out |= byte << (8 * i);
        }
        return Write(lane, operands[0], out);
      }
      default:
        break;
    }
    if (in.type == PtxType::kPred) {
      const bool a = Predicate(lane, operands[1]);
      const bool b = in.num_operands > 2 && Predicate(lane, operands[2]);
      const bool result = in.op == PtxOp::kAnd   ? a && b
                          : in.op == PtxOp::kOr  ? a || b
                          : in.op == PtxOp::kXor ? a != b
                                                 : !a;
      return Write(lane, operands[0], result ? 1 : 0);
    }
    const uint64_t a = Read(lane, operands[1]);
    const uint64_t b = in.num_operands > 2 ? Read(lane, operands[2]) : 0;
    const uint64_t c = in.num_operands > 3 ? Read(lane, operands[3]) : 0;
    Write(lane, operands[0], WithType(in.type, [&](auto type) {
            using T = decltype(type);
            return Arithmetic<T>(in.op, As<T>(a), As<T>(b), As<T>(c));
          }));
  }

  // A shift by the number's width or more leaves nothing of it but its sign.
  static uint64_t Shifted(const PtxInstruction& in, uint64_t bits, uint32_t by) {
    return WithType(in.type, [&](auto type) -> uint64_t {
      using T = decltype(type);
      if constexpr (std::is_floating_point_v<T>) {
        return bits;
      } else {
        constexpr uint32_t kBits = sizeof(T) * 8;
        const T x = As<T>(bits);
        if (in.op == PtxOp::kShiftLeft) {
          return by >= kBits ? 0
                             : Bits<T>(static_cast<T>(
                                   uint64_t{static_cast<std::make_unsigned_t<T>>(x)} << by));
        }
        if (by >= kBits) return Bits<T>(x < 0 ? static_cast<T>(-1) : T{0});
        return Bits<T>(static_cast<T>(x >> by));
      }
    });
  }

  // What is there until it arrives is nobody's.
  void StartCopy(Lane& lane, const PtxInstruction& in) {
    Copy copy = {.to = static_cast<uint32_t>(Read(lane, in.operands[0]))};
    const uint64_t from = Read(lane, in.operands[1]);
    const uint64_t bytes = in.num_operands > 3 ? Read(lane, in.operands[3]) : kCopyBytes;
    if (!fault_.empty() || !IsAligned(lane, copy.to, kCopyBytes) ||
        !IsAligned(lane, from, kCopyBytes))
      return;
    if (bytes > 0) ReadGlobal(lane, from, copy.bytes, bytes);
    SharedPair* const to = SharedAt(lane, copy.to, kCopyBytes);
    if (to == nullptr) return;
    for (int i = 0; i < kCopyBytes / 2; ++i) {
      if (!InOrder(to[i].read, lane))
        return Fault(lane, "another thread read that shared memory since they last met");
      to[i].written = false;
    }
    lane.copies.push_back(copy);
  }

  // --- Operations of a warp

  void MeetInWarp(unsigned warp, const PtxInstruction& in) {
    Lane* const lanes = &lanes_[warp * kWarp];
    switch (in.op) {
      case PtxOp::kWarpBarrier:
        ++warp_meetings_[warp];
        break;
      case PtxOp::kShuffle:
        Shuffle(lanes, in);
        break;
      case PtxOp::kBallot: {
        uint64_t votes = 0;
        for (unsigned i = 0; i < kWarp; ++i)
          votes |= uint64_t{Predicate(lanes[i], in.operands[1])} << i;
        for (unsigned i = 0; i < kWarp; ++i) Write(lanes[i], in.operands[0], votes);
        break;
      }
      case PtxOp::kMultiplyTile:
        MultiplyTile(lanes, in);
        break;
      case PtxOp::kLoadMatrices:
        LoadMatrices(lanes, in);
        break;
      default:
        return Fault(lanes[0], "not an operation of a warp");
    }
    for (unsigned i = 0; i < kWarp; ++i) GoOn(lanes[i]);
  }

  void Shuffle(Lane* lanes, const PtxInstruction& in) {
    const int shift = in.num_operands - 5;  // a predicate beside the result
    uint64_t values[kWarp];
    for (unsigned i = 0; i < kWarp; ++i) values[i] = Read(lanes[i], in.operands[1 + shift]);
    for (unsigned i = 0; i < kWarp; ++i) {
      const auto mask = static_cast<unsigned>(Read(lanes[i], in.operands[2 + shift]));
      Write(lanes[i], in.operands[0], values[(i ^ mask) % kWarp]);
      if (shift > 0) Write(lanes[i], in.operands[1], 1);
      if (static_cast<uint32_t>(Read(lanes[i], in.operands[4 + shift])) != 0xffffffffu) {
        return Fault(lanes[i], "not of all lanes");
      }
    }
  }

  // Lane 4 g + t has of a (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8) with the next column
  // each, of b (2t, g) and (2t + 8, g) with the next row, of c (g, 2t), (g, 2t + 1), (g + 8, 2t),
  // (g + 8, 2t + 1). Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"
  void MultiplyTile(Lane* lanes, const PtxInstruction& in) {
    double a[16][16], b[16][8], c[16][8];
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const unsigned g = lane / 4, t = lane % 4 * 2;
      for (unsigned word = 0; word < 4; ++word) {
        const uint64_t bits = Read(lanes[lane], in.operands[4 + word]);
        for (unsigned half = 0; half < 2; ++half) {
          a[g + word % 2 * 8][t + word / 2 * 8 + half] = WidenedFrom(in.type, bits >> (16 * half));
        }
      }
      for (unsigned word = 0; word < 2; ++word) {
        const uint64_t bits = Read(lanes[lane], in.operands[8 + word]);
        for (unsigned half = 0; half < 2; ++half) {
          b[t + word * 8 + half][g] = WidenedFrom(in.type, bits >> (16 * half));
        }
      }
      for (unsigned i = 0; i < 4; ++i) {
        c[g + i / 2 * 8][t + i % 2] = As<float>(Read(lanes[lane], in.operands[10 + i]));
      }
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = c[row][column];
        for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        Write(lanes[lane], in.operands[i], Bits(static_cast<float>(sum)));
      }
    }
  }

  // Lane 8 m + r has the address of row r of matrix m, [8, 8] of 16 bits; lane 4 r + t gets columns
  // 2t and 2t + 1 of row r, or of the transposed matrix. Source: PTX ISA, "Warp-level matrix load
  // instruction: ldmatrix"
  void LoadMatrices(Lane* lanes, const PtxInstruction& in) {
    for (int matrix = 0; matrix < in.vector; ++matrix) {
      uint16_t rows[8][8] = {};
      for (unsigned row = 0; row < 8; ++row) {
        Lane& lane = lanes[8 * static_cast<unsigned>(matrix) + row];
        const uint64_t address = static_cast<uint32_t>(Read(lane, in.operands[in.vector])) +
                                 static_cast<uint64_t>(in.offset);
        if (!fault_.empty() || !IsAligned(lane, address, sizeof(rows[row]))) return;
        ReadShared(lane, address, reinterpret_cast<unsigned char*>(rows[row]), sizeof(rows[row]));
      }
      for (unsigned i = 0; i < kWarp; ++i) {
        const unsigned row = i / 4, column = i % 4 * 2;
        const uint16_t low = in.transposed ? rows[column][row] : rows[row][column];
        const uint16_t high = in.transposed ? rows[column + 1][row] : rows[row][column + 1];
        Write(lanes[i], in.operands[matrix], uint64_t{low} | uint64_t{high} << 16);
      }
    }
  }

  const PtxEntry& entry_;
  const PtxLaunch launch_;
  const std::vector<unsigned char>& arguments_;
  PtxMemory& memory_;
  PtxTraffic& traffic_;
  const int64_t number_;  // of the launch
  std::mt19937_64 draws_;
  std::vector<PtxMemory::Array*> nearest_;  // by instruction: where it was last
  unsigned block_x_ = 0, block_y_ = 0;
  std::vector<Lane> lanes_;
  std::vector<SharedPair> shared_;
  unsigned block_meeting_ = 0;
  std::vector<unsigned> warp_meetings_;
  std::string fault_;
};

}  // namespace

void* PtxMemory::Take(size_t bytes) {
  Array array;
  array.size = bytes;
  array.bytes.assign(std::max<size_t>(bytes, 1), 0xff);
  array.written.assign(bytes, false);
  array.read_by.assign(bytes / kSectorBytes + 1, 0);
  array.written_by.assign(bytes / kSectorBytes + 1, 0);
  const uint64_t begin = array.begin();
  arrays_.emplace(begin, std::move(array));
  return reinterpret_cast<void*>(begin);
}

void PtxMemory::GiveBack(void* memory) { arrays_.erase(reinterpret_cast<uint64_t>(memory)); }

void PtxMemory::MarkWritten(const void* memory, size_t bytes) {
  Array* const array = Find(reinterpret_cast<uint64_t>(memory));
  if (array == nullptr) return;
  const size_t at = reinterpret_cast<uint64_t>(memory) - array->begin();
  std::fill_n(array->written.begin() + static_cast<int64_t>(at), bytes, true);
}

PtxMemory::Array* PtxMemory::Find(uint64_t address) {
  auto after = arrays_.upper_bound(address);
  if (after == arrays_.begin()) return nullptr;
  Array& array = std::prev(after)->second;
  return address <= array.begin() + array.size ? &array : nullptr;
}

std::string RunPtx(const PtxEntry& entry, PtxLaunch launch,
                   const std::vector<unsigned char>& arguments, PtxMemory& memory, uint64_t seed,
                   PtxTraffic* traffic) {
  return Run(entry, launch, arguments, memory, seed, traffic).AllBlocks();
}

}  // namespace muster::testing
