#include "tests/unit/worker_runtime/cuda/ptx/ptx_program.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

using Words = std::vector<absl::string_view>;

std::optional<PtxType> TypeNamed(absl::string_view name) {
  static const auto& types = *new std::map<absl::string_view, PtxType>{
      {"pred", PtxType::kPred}, {"b8", PtxType::kU8},   {"u8", PtxType::kU8},
      {"s8", PtxType::kS8},     {"b16", PtxType::kU16}, {"u16", PtxType::kU16},
      {"s16", PtxType::kS16},   {"b32", PtxType::kU32}, {"u32", PtxType::kU32},
      {"s32", PtxType::kS32},   {"b64", PtxType::kU64}, {"u64", PtxType::kU64},
      {"s64", PtxType::kS64},   {"f16", PtxType::kF16}, {"bf16", PtxType::kBf16},
      {"f32", PtxType::kF32},   {"f64", PtxType::kF64}, {"bf16x2", PtxType::kBf16},
      {"f16x2", PtxType::kF16}};
  const auto found = types.find(name);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PtxSpecial> SpecialNamed(absl::string_view name) {
  static const auto& specials = *new std::map<absl::string_view, PtxSpecial>{
      {"%tid.x", PtxSpecial::kTidX},       {"%ctaid.x", PtxSpecial::kCtaidX},
      {"%ctaid.y", PtxSpecial::kCtaidY},   {"%ntid.x", PtxSpecial::kNtidX},
      {"%nctaid.x", PtxSpecial::kNctaidX}, {"%nctaid.y", PtxSpecial::kNctaidY},
      {"%laneid", PtxSpecial::kLane}};
  const auto found = specials.find(name);
  return found == specials.end() ? std::nullopt : std::optional(found->second);
}

// Names with one dot and what it does; types and modes are read apart.
std::optional<PtxOp> OpNamed(absl::string_view name) {
  static const auto& ops = *new std::map<absl::string_view, PtxOp>{
      {"add", PtxOp::kAdd},          {"sub", PtxOp::kSub},
      {"mul", PtxOp::kMul},          {"mad", PtxOp::kMulAdd},
      {"fma", PtxOp::kFma},          {"div", PtxOp::kDiv},
      {"rem", PtxOp::kRem},          {"min", PtxOp::kMin},
      {"max", PtxOp::kMax},          {"neg", PtxOp::kNeg},
      {"abs", PtxOp::kAbs},          {"sqrt", PtxOp::kSqrt},
      {"rcp", PtxOp::kReciprocal},   {"ex2", PtxOp::kExp2},
      {"and", PtxOp::kAnd},          {"or", PtxOp::kOr},
      {"xor", PtxOp::kXor},          {"not", PtxOp::kNot},
      {"shl", PtxOp::kShiftLeft},    {"shr", PtxOp::kShiftRight},
      {"shf", PtxOp::kFunnelLeft},   {"popc", PtxOp::kCountBits},
      {"prmt", PtxOp::kPermute},     {"mov", PtxOp::kMove},
      {"cvta", PtxOp::kMove},        {"selp", PtxOp::kSelect},
      {"setp", PtxOp::kCompare},     {"cvt", PtxOp::kConvert},
      {"ld", PtxOp::kLoad},          {"st", PtxOp::kStore},
      {"bra", PtxOp::kBranch},       {"ret", PtxOp::kReturn},
      {"bar", PtxOp::kBarrier},      {"barrier", PtxOp::kBarrier},
      {"shfl", PtxOp::kShuffle},     {"vote", PtxOp::kBallot},
      {"mma", PtxOp::kMultiplyTile}, {"ldmatrix", PtxOp::kLoadMatrices},
      {"cp", PtxOp::kStartCopy}};
  const auto found = ops.find(name);
  return found == ops.end() ? std::nullopt : std::optional(found->second);
}

std::optional<PtxCompare> CompareNamed(absl::string_view name) {
  static const auto& names = *new std::map<absl::string_view, PtxCompare>{
      {"eq", PtxCompare::kEqual},        {"ne", PtxCompare::kNotEqual},
      {"lt", PtxCompare::kLess},         {"lo", PtxCompare::kLess},
      {"le", PtxCompare::kLessEqual},    {"ls", PtxCompare::kLessEqual},
      {"gt", PtxCompare::kGreater},      {"hi", PtxCompare::kGreater},
      {"ge", PtxCompare::kGreaterEqual}, {"hs", PtxCompare::kGreaterEqual}};
  const auto found = names.find(name);
  return found == names.end() ? std::nullopt : std::optional(found->second);
}

bool Has(const Words& parts, absl::string_view word) {
  for (const absl::string_view part : parts) {
    if (part == word) return true;
  }
  return false;
}

class Parser {
 public:
  absl::StatusOr<PtxEntry> Parse(absl::string_view name, absl::string_view parameters,
                                 absl::string_view body) {
    entry_.name = std::string(name);
    ReadParameters(parameters);
    MUSTER_RETURN_IF_ERROR(ReadBody(body));
    for (const auto& [at, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) return absl::NotFoundError(absl::StrCat("no label ", label));
      entry_.code[at].target = found->second;
    }
    entry_.num_registers = static_cast<int>(registers_.size());
    return std::move(entry_);
  }

 private:
  void ReadParameters(absl::string_view text) {
    for (absl::string_view declared : absl::StrSplit(text, ',')) {
      declared = absl::StripAsciiWhitespace(declared);
      if (declared.empty()) continue;
      const Words words = absl::StrSplit(declared, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
      absl::string_view name = words.back();
      PtxEntry::Parameter parameter;
      size_t alignment = 0, count = 1;
      if (const size_t bracket = name.find('['); bracket != name.npos) {
        absl::string_view inside = name.substr(bracket + 1);
        absl::ConsumeSuffix(&inside, "]");
        count = std::strtoull(std::string(inside).c_str(), nullptr, 10);
        name = name.substr(0, bracket);
      }
      for (size_t i = 0; i + 1 < words.size(); ++i) {
        if (words[i] == ".align")
          alignment = std::strtoull(std::string(words[i + 1]).c_str(), nullptr, 10);
        if (const auto type = TypeNamed(words[i].substr(1))) {
          parameter.bytes = BytesOf(*type) * count;
          if (alignment == 0) alignment = BytesOf(*type);
        }
      }
      parameter.name = std::string(name);
      parameter.offset = (entry_.parameter_bytes + alignment - 1) / alignment * alignment;
      entry_.parameter_bytes = parameter.offset + parameter.bytes;
      entry_.parameters.push_back(std::move(parameter));
    }
  }

  absl::Status ReadBody(absl::string_view body) {
    while (true) {
      body = absl::StripLeadingAsciiWhitespace(body);
      if (body.empty()) return absl::OkStatus();
      if (body[0] == '{' || body[0] == '}' || body[0] == ';') {
        body.remove_prefix(1);  // a block of inline PTX, whose names are its own
        continue;
      }
      if (absl::StartsWith(body, ".loc")) {
        body.remove_prefix(std::min(body.find('\n'), body.size()));
        continue;
      }
      size_t word = 0;
      while (word < body.size() &&
             (absl::ascii_isalnum(body[word]) || body[word] == '_' || body[word] == '$'))
        ++word;
      if (word > 0 && word < body.size() && body[word] == ':') {
        labels_[std::string(body.substr(0, word))] = static_cast<int>(entry_.code.size());
        body.remove_prefix(word + 1);
        continue;
      }
      const size_t end = body.find(';');
      if (end == body.npos) return absl::InvalidArgumentError("PTX ends within an instruction");
      if (body[0] != '.') MUSTER_RETURN_IF_ERROR(ReadInstruction(body.substr(0, end)));
      body.remove_prefix(end + 1);
    }
  }

  uint32_t RegisterNamed(absl::string_view name) {
    return registers_.try_emplace(std::string(name), static_cast<uint32_t>(registers_.size()))
        .first->second;
  }

  const PtxEntry::Parameter* ParameterNamed(absl::string_view name) const {
    for (const PtxEntry::Parameter& parameter : entry_.parameters) {
      if (name == parameter.name) return &parameter;
    }
    return nullptr;
  }

  absl::StatusOr<PtxOperand> ReadOperand(absl::string_view text) {
    PtxOperand operand;
    operand.negated = absl::ConsumePrefix(&text, "!");
    if (const auto special = SpecialNamed(text)) {
      operand.kind = PtxOperand::Kind::kSpecial;
      operand.index = static_cast<uint32_t>(*special);
    } else if (absl::StartsWith(text, "%")) {
      operand.kind = PtxOperand::Kind::kRegister;
      operand.index = RegisterNamed(text);
    } else if (absl::StartsWith(text, "0f") || absl::StartsWith(text, "0d")) {
      operand.kind = PtxOperand::Kind::kNumber;
      operand.bits = std::strtoull(std::string(text.substr(2)).c_str(), nullptr, 16);
    } else if (!text.empty() && (absl::ascii_isdigit(text[0]) || text[0] == '-')) {
      operand.kind = PtxOperand::Kind::kNumber;
      const std::string number(text);
      operand.bits = text[0] == '-'
                         ? static_cast<uint64_t>(std::strtoll(number.c_str(), nullptr, 0))
                         : std::strtoull(number.c_str(), nullptr, 0);
    } else if (const PtxEntry::Parameter* parameter = ParameterNamed(text)) {
      operand.kind = PtxOperand::Kind::kNumber;  // where it lies among them
      operand.bits = parameter->offset;
    } else if (absl::StrContains(text, "shared_memory")) {
      operand.kind = PtxOperand::Kind::kNumber;
      operand.bits = kPtxSharedBase;
    } else if (text != "_") {
      return absl::UnimplementedError(absl::StrCat("operand ", text));
    }
    return operand;
  }

  // [base+offset], to an operand and the instruction's offset.
  absl::Status ReadAddress(absl::string_view text, PtxInstruction& to) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('+', 1));
    if (!parts.second.empty() && !absl::SimpleAtoi(parts.second, &to.offset)) {
      return absl::UnimplementedError(absl::StrCat("address ", text));
    }
    if (const PtxEntry::Parameter* parameter = ParameterNamed(parts.first)) {
      to.offset += static_cast<int64_t>(parameter->offset);
      return absl::OkStatus();
    }
    MUSTER_ASSIGN_OR_RETURN(to.operands[to.num_operands], ReadOperand(parts.first));
    ++to.num_operands;
    return absl::OkStatus();
  }

  absl::Status ReadOperands(absl::string_view text, PtxInstruction& to) {
    // Vectors and pairs are taken apart; addresses stay together.
    for (absl::string_view piece :
         absl::StrSplit(text, absl::ByAnyChar(", {}|\t\n"), absl::SkipEmpty())) {
      if (to.num_operands == PtxInstruction::kOperandsMax) {
        return absl::UnimplementedError("too many operands");
      }
      if (absl::ConsumePrefix(&piece, "[")) {
        absl::ConsumeSuffix(&piece, "]");
        MUSTER_RETURN_IF_ERROR(ReadAddress(piece, to));
        continue;
      }
      MUSTER_ASSIGN_OR_RETURN(to.operands[to.num_operands], ReadOperand(piece));
      ++to.num_operands;
    }
    return absl::OkStatus();
  }

  absl::Status ReadInstruction(absl::string_view text) {
    PtxInstruction in;
    in.text = std::string(absl::StripAsciiWhitespace(text));
    absl::string_view rest = in.text;
    if (absl::ConsumePrefix(&rest, "@")) {
      const size_t space = rest.find(' ');
      MUSTER_ASSIGN_OR_RETURN(in.guard, ReadOperand(rest.substr(0, space)));
      rest = absl::StripLeadingAsciiWhitespace(rest.substr(space));
    }
    const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
    const Words parts = absl::StrSplit(rest.substr(0, end), '.');
    rest = absl::StripAsciiWhitespace(rest.substr(end));
    const auto op = OpNamed(parts[0]);
    if (!op.has_value()) return absl::UnimplementedError(absl::StrCat("instruction ", in.text));
    in.op = *op;
    if (in.op == PtxOp::kBranch) {
      branches_.emplace_back(entry_.code.size(), std::string(rest));
    } else if (in.op != PtxOp::kReturn) {
      MUSTER_RETURN_IF_ERROR(ReadOperands(rest, in));
    }
    MUSTER_RETURN_IF_ERROR(ReadKind(parts, in));
    entry_.code.push_back(std::move(in));
    return absl::OkStatus();
  }

  // What the parts after the first dot say.
  absl::Status ReadKind(const Words& parts, PtxInstruction& in) {
    std::vector<PtxType> types;
    for (const absl::string_view part : parts) {
      if (const auto type = TypeNamed(part)) types.push_back(*type);
    }
    if (!types.empty()) in.type = types.front();
    if (types.size() > 1) in.from = types.back();
    const auto unknown = [&] {
      return absl::UnimplementedError(absl::StrCat("instruction ", in.text));
    };
    switch (in.op) {
      case PtxOp::kMul:
        if (Has(parts, "wide")) in.op = PtxOp::kMulWide;
        if (Has(parts, "hi")) in.op = PtxOp::kMulHigh;
        break;
      case PtxOp::kMulAdd:
        if (!Has(parts, "lo")) return unknown();
        break;
      case PtxOp::kFma:
        if (Has(parts, "rm")) in.op = PtxOp::kFmaDown;
        break;
      case PtxOp::kReciprocal:
        if (Has(parts, "approx")) in.op = PtxOp::kRoughReciprocal;
        break;
      case PtxOp::kFunnelLeft:
        if (!Has(parts, "l") || !Has(parts, "wrap")) return unknown();
        break;
      case PtxOp::kConvert:
        if (Has(parts, "sat")) in.op = PtxOp::kSaturate;
        if (Has(parts, "bf16x2") || Has(parts, "f16x2")) in.op = PtxOp::kConvertPair;
        break;
      case PtxOp::kCompare: {
        absl::string_view name = parts[1];
        if (const auto exact = CompareNamed(name)) {
          in.compare = *exact;
        } else if (absl::ConsumeSuffix(&name, "u") && CompareNamed(name)) {
          in.compare = *CompareNamed(name);
          in.unordered = true;
        } else {
          return unknown();
        }
        if (in.num_operands != 3) return unknown();
        break;
      }
      case PtxOp::kMove:
        // Two halves of a number, or a number of two halves.
        if (in.num_operands == 3) {
          in.op = absl::StrContains(in.text.substr(0, in.text.find(',')), "{") ? PtxOp::kSplit
                                                                               : PtxOp::kJoin;
        } else if (in.num_operands != 2) {
          return unknown();
        }
        break;
      case PtxOp::kLoad:
      case PtxOp::kStore:
        in.is_shared = Has(parts, "shared");
        if (Has(parts, "param")) {
          in.op = PtxOp::kLoadParameter;
        } else if (!in.is_shared && !Has(parts, "global")) {
          return unknown();
        }
        in.vector = Has(parts, "v2") ? 2 : Has(parts, "v4") ? 4 : 1;
        break;
      case PtxOp::kBarrier:
        if (Has(parts, "warp")) {
          in.op = PtxOp::kWarpBarrier;
        } else if (Has(parts, "red")) {
          if (!Has(parts, "or")) return unknown();
          in.op = PtxOp::kBarrierOr;
        } else if (!Has(parts, "sync")) {
          return unknown();
        }
        break;
      case PtxOp::kShuffle:
        if (!Has(parts, "bfly")) return unknown();
        break;
      case PtxOp::kBallot:
        if (!Has(parts, "ballot")) return unknown();
        break;
      case PtxOp::kMultiplyTile:
        if (!Has(parts, "m16n8k16") || in.num_operands != 14) return unknown();
        in.type = Has(parts, "bf16") ? PtxType::kBf16 : PtxType::kF16;
        break;
      case PtxOp::kLoadMatrices:
        in.vector = Has(parts, "x4") ? 4 : Has(parts, "x2") ? 2 : 1;
        in.transposed = Has(parts, "trans");
        break;
      case PtxOp::kStartCopy:
        if (Has(parts, "wait_all") || Has(parts, "wait_group")) in.op = PtxOp::kFinishCopies;
        if (Has(parts, "commit_group")) in.op = PtxOp::kCommitCopies;
        break;
      default:
        break;
    }
    return absl::OkStatus();
  }

  PtxEntry entry_;
  std::map<std::string, uint32_t> registers_;
  std::map<std::string, int> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

}  // namespace

absl::StatusOr<PtxEntry> ParsePtx(absl::string_view module, absl::string_view entry) {
  // Declared, with a parameter list and a body.
  for (size_t at = module.find(".entry"); at != module.npos; at = module.find(".entry", at + 1)) {
    const size_t open = module.find('(', at);
    if (open == module.npos) break;
    if (absl::StripAsciiWhitespace(module.substr(at + 6, open - at - 6)) != entry) continue;
    const size_t close = module.find(')', open);
    const size_t begin = module.find('{', close);
    if (begin == module.npos) break;
    int depth = 0;
    size_t end = begin;
    for (; end < module.size(); ++end) {
      if (module[end] == '{') ++depth;
      if (module[end] == '}' && --depth == 0) break;
    }
    // Comments stand in inline PTX alone.
    std::string body(module.substr(begin + 1, end - begin - 1));
    for (size_t comment = body.find("//"); comment != body.npos;
         comment = body.find("//", comment)) {
      body.erase(comment, body.find('\n', comment) - comment);
    }
    return Parser().Parse(entry, module.substr(open + 1, close - open - 1), body);
  }
  return absl::NotFoundError(absl::StrCat("no entry ", entry));
}

}  // namespace muster::testing
