// One description of a struct for both ways over the wire: a function that is given a Wire and the
// struct, and names each field once, with its bounds. The Wire encodes or decodes by it.
//
//   void RowFields(Wire<proto::WatchArrivals::Row> wire, hangs::ArrivalRow& row) {
//     using P = proto::WatchArrivals::Row;
//     wire.Plain(&P::sequence, &P::set_sequence, row.sequence);
//     wire.Number("arrivals.last_rank", kRanks, &P::last_rank, &P::set_last_rank, row.last_rank);
//   }
//
// A decoder checks in the order of the description, and its WireCheck keeps what it refuses first.
// An encoder reads the struct and never writes to it: a description that computes a field of the
// struct does so if it decodes(). What has a form of its own on the wire asks for in() and out().
//
// Threads: pure.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/io/wire_check.h"

namespace muster {

// What a decoder takes.
struct NumberBounds {
  int64_t min = 0;
  int64_t max = std::numeric_limits<int64_t>::max();  // or that of the field's type
};
// What a decoder takes, in bytes, and how many of them an encoder sends.
struct TextBounds {
  size_t taken = std::string::npos;
  size_t sent = std::string::npos;
  bool sends_end = false;  // of a longer text; else its beginning
  // Names and reasons of other nodes stand in lines of our log and on consoles: what could end a
  // line or move a cursor there is taken as `?`.
  bool is_printable = false;
};
// Likewise, in entries.
struct ListBounds {
  int taken = 0;
  int sent = std::numeric_limits<int>::max();
};

inline constexpr NumberBounds kCount{0};
inline constexpr NumberBounds kCountOrNone{-1};
inline constexpr NumberBounds kUnits{0, int64_t{1} << 50};  // of time
template <typename Enum>
constexpr NumberBounds UpTo(Enum last) {
  return {0, static_cast<int64_t>(last)};
}
inline constexpr NumberBounds kStatusCodes = UpTo(absl::StatusCode::kUnauthenticated);
inline constexpr absl::string_view kNotKnown = "is not known to this version of muster";

// Whether `number` may be taken.
bool CheckNumber(WireCheck& check, absl::string_view name, NumberBounds bounds, int64_t number);

template <typename Message>
class Wire;

// The description of a text.
struct OneText {
  absl::string_view name;
  TextBounds bounds;
  void operator()(Wire<std::string> wire, std::string& value) const;
};

// The number that a message has of a value.
template <typename Value>
constexpr Value RawOf(Value value) {
  return value;
}
template <typename Tag, typename Rep>
constexpr Rep RawOf(Id<Tag, Rep> id) {
  return id.value();
}

template <typename Message>
class Wire {
 public:
  using Name = absl::string_view;  // as a refusal has it
  // Accessors of a field, as the compiler of messages makes them.
  template <typename Field>
  using Get = Field (Message::*)() const;
  template <typename Field>
  using Set = void (Message::*)(Field);
  template <typename Field>
  using Mutable = Field* (Message::*)();
  template <typename Field>
  using Numerals = google::protobuf::RepeatedField<Field>;
  template <typename Field>
  using Parts = google::protobuf::RepeatedPtrField<Field>;

  explicit Wire(Message* out) : out_(out), check_(nullptr) {}
  Wire(const Message& in, WireCheck& check) : in_(&in), check_(&check) {}

  bool decodes() const { return check_ != nullptr; }
  const Message& in() const { return *in_; }    // a decoder's
  WireCheck& check() const { return *check_; }  // a decoder's
  Message& out() const { return *out_; }        // an encoder's

  void Require(bool condition, Name name, absl::string_view why) {
    if (decodes()) check_->Require(condition, name, why);
  }
  // Whether an optional field is there; an encoder says it by `is_there`.
  bool Has(Get<bool> has, bool is_there) { return decodes() ? (in_->*has)() : is_there; }
  template <typename Value>
  bool Has(Get<bool> has, std::optional<Value>& value) {
    if (decodes() && (in_->*has)()) value.emplace();
    return value.has_value();
  }

  // A number, enumerator or id that needs no bounds.
  template <typename Field, typename Value>
  void Plain(Get<Field> get, Set<Field> set, Value& value) {
    if (!decodes()) return (out_->*set)(static_cast<Field>(RawOf(value)));
    value = static_cast<Value>((in_->*get)());
  }
  // One that is refused leaves `value` as it is, so that a description may compute with it.
  template <typename Field, typename Value>
  void Number(Name name, NumberBounds bounds, Get<Field> get, Set<Field> set, Value& value) {
    if (decodes() && !CheckNumber(*check_, name, Within<Field>(bounds), (in_->*get)())) return;
    Plain(get, set, value);
  }
  template <typename Field, typename Value>
  void Numbers(Name name, ListBounds list, NumberBounds bounds, Get<const Numerals<Field>&> get,
               Mutable<Numerals<Field>> mut, std::vector<Value>& values) {
    if (!decodes()) {
      const size_t num_sent = std::min(values.size(), static_cast<size_t>(list.sent));
      return (out_->*mut)()->Add(values.begin(), values.begin() + num_sent);
    }
    if (!check_->List(name, (in_->*get)().size(), list.taken)) return;
    for (const Field field : (in_->*get)()) {
      if (CheckNumber(*check_, name, Within<Field>(bounds), field)) values.push_back(field);
    }
  }
  // An enumerator whose number on the wire is another.
  template <typename Field, typename Value, size_t kNum>
  void Choice(Name name, const std::pair<Value, Field> (&choices)[kNum], Get<Field> get,
              Set<Field> set, Value& value, absl::string_view why = kNotKnown) {
    for (const auto& [ours, theirs] : choices) {
      if (!decodes() && ours == value) return (out_->*set)(theirs);
      if (decodes() && theirs == (in_->*get)()) return void(value = ours);
    }
    Require(false, name, why);
  }

  // Whole microseconds, or infinite.
  void Duration(Name name, Get<int64_t> get, Set<int64_t> set, absl::Duration& value) {
    if (!decodes()) return (out_->*set)(EncodeDuration(value));
    value = check_->Duration(name, (in_->*get)());
  }
  // Whole units.
  void Time(Name name, absl::Duration unit, Get<int64_t> get, Set<int64_t> set,
            absl::Duration& value) {
    int64_t units = std::max(value, absl::ZeroDuration()) / unit;
    Number(name, kUnits, get, set, units);
    if (decodes()) value = units * unit;
  }

  void Text(Name name, TextBounds bounds, Get<const std::string&> get, Mutable<std::string> mut,
            std::string& value) {
    Inner(get, mut, value, OneText{name, bounds});
  }
  void Texts(Name name, ListBounds list, TextBounds bounds, Get<const Parts<std::string>&> get,
             Mutable<Parts<std::string>> mut, std::vector<std::string>& values) {
    List(name, list, get, mut, values, OneText{name, bounds});
  }

  // A message within the message, and lists of them. `fields` is the description of the one.
  template <typename Part, typename Value, typename Fields>
  void Inner(Get<const Part&> get, Mutable<Part> mut, Value& value, Fields fields) {
    fields(decodes() ? Wire<Part>((in_->*get)(), *check_) : Wire<Part>((out_->*mut)()), value);
  }
  template <typename Part, typename Value, typename Fields>
  void Inner(Get<bool> has, Get<const Part&> get, Mutable<Part> mut, std::optional<Value>& value,
             Fields fields) {
    if (Has(has, value)) Inner(get, mut, *value, fields);
  }
  template <typename Part, typename Value, typename Fields>
  void List(Name name, ListBounds bounds, Get<const Parts<Part>&> get, Mutable<Parts<Part>> mut,
            std::vector<Value>& values, Fields fields) {
    if (!decodes()) {
      for (Value& value : values) {
        if ((out_->*mut)()->size() < bounds.sent) fields(Wire<Part>((out_->*mut)()->Add()), value);
      }
    } else if (check_->List(name, (in_->*get)().size(), bounds.taken)) {
      for (const Part& part : (in_->*get)()) {
        fields(Wire<Part>(part, *check_), values.emplace_back());
      }
    }
  }
  // One of the messages of which at most one is there.
  template <typename Part, typename Value, typename... Values>
  void Case(Get<bool> has, Get<const Part&> get, Mutable<Part> mut, std::variant<Values...>& value,
            void (*fields)(Wire<Part>, Value&)) {
    Value* chosen = std::get_if<Value>(&value);
    if (decodes()) chosen = (in_->*has)() ? &value.template emplace<Value>() : nullptr;
    if (chosen != nullptr) Inner(get, mut, *chosen, fields);
  }
  // A decoder takes none that it does not know; zero is none.
  template <typename Enum>
  void NeedsCase(Get<Enum> which, Name name) {
    if (decodes()) Require(static_cast<int>((in_->*which)()) != 0, name, kNotKnown);
  }

 private:
  template <typename Field>
  static NumberBounds Within(NumberBounds bounds) {
    return {bounds.min, std::min<int64_t>(bounds.max, std::numeric_limits<Field>::max())};
  }

  union {
    Message* out_;
    const Message* in_;
  };
  WireCheck* check_;  // null while encoding
};

// `fields` may not write to `in`, which it is given as if it could.
template <typename Message, typename Value, typename Fields>
void EncodeFields(const Value& in, Message* out, Fields fields) {
  fields(Wire<Message>(out), const_cast<Value&>(in));
}
// Errors: kInvalidArgument: the first field that `fields` refuses.
template <typename Value, typename Message, typename Fields>
absl::StatusOr<Value> DecodeFields(const Message& in, Fields fields) {
  WireCheck check;
  Value out;
  fields(Wire<Message>(in, check), out);
  if (!check.status().ok()) return check.status();
  return out;
}

}  // namespace muster
