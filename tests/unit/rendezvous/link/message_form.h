// The form of messages as text: the bytes of a filled one, and what a decoder says of each field
// that is out of bounds. A test compares it with a file beside it; with --rewrite its program
// writes what is found, which is to be looked at as a diff.
#pragma once

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/files.h"

namespace muster::rendezvous {

// The bytes of what was decoded, encoded again.
using DecodeAgain = std::function<absl::StatusOr<std::string>(const google::protobuf::Message&)>;

// The text has a line for each damage that a decoder refuses or changes; what it keeps has none.
class MessageForm {
 public:
  MessageForm(const google::protobuf::Message& filled, DecodeAgain decode)
      : decode_(std::move(decode)), root_(filled.New()) {
    root_->CopyFrom(filled);
    absl::StrAppend(&text_, "  bytes ", absl::BytesToHexString(root_->SerializeAsString()), "\n");
    Decode("as it is");
    Walk("", root_.get());
  }
  const std::string& text() const { return text_; }

 private:
  using Field = google::protobuf::FieldDescriptor;

  void Decode(const std::string& damage) {
    const absl::StatusOr<std::string> again = decode_(*root_);
    if (!again.ok()) {
      absl::StrAppend(&text_, "  ", damage, ": ", again.status().message(), "\n");
    } else if (*again != root_->SerializeAsString()) {
      absl::StrAppend(&text_, "  ", damage, ": is changed\n");
    }
  }

  void Damage(const std::string& damage, google::protobuf::Message* at,
              const std::function<void()>& apply) {
    const std::unique_ptr<google::protobuf::Message> before(at->New());
    before->CopyFrom(*at);
    apply();
    Decode(damage);
    at->CopyFrom(*before);
  }

  void Walk(const std::string& path, google::protobuf::Message* at) {
    const auto& descriptor = *at->GetDescriptor();
    const auto& reflection = *at->GetReflection();
    for (int i = 0; i < descriptor.field_count(); ++i) {
      const Field* field = descriptor.field(i);
      const std::string name = path + field->name();
      const bool is_set = field->is_repeated() ? reflection.FieldSize(*at, field) > 0
                                               : reflection.HasField(*at, field);
      if (!is_set && field->real_containing_oneof() != nullptr) continue;
      if (!is_set) {
        absl::StrAppend(&text_, "  ", name, ": is not filled\n");
        continue;
      }
      Damage(name + " left out", at, [&] { reflection.ClearField(at, field); });
      if (field->is_repeated()) Lengthen(name, at, field);
      WalkValue(name, at, field);
    }
  }

  // More than any list may have.
  void Lengthen(const std::string& name, google::protobuf::Message* at, const Field* field) {
    constexpr int kMany = 140000;
    const auto& reflection = *at->GetReflection();
    Damage(name + " many", at, [&] {
      for (int i = 0; i < kMany; ++i) {
        if (field->message_type() != nullptr) {
          reflection.AddMessage(at, field);
        } else if (field->cpp_type() == Field::CPPTYPE_STRING) {
          reflection.AddString(at, field, "x");
        } else if (field->cpp_type() == Field::CPPTYPE_INT32) {
          reflection.AddInt32(at, field, 1);
        } else if (field->cpp_type() == Field::CPPTYPE_INT64) {
          reflection.AddInt64(at, field, 1);
        } else {
          reflection.AddUInt64(at, field, 1000 + i);
        }
      }
    });
  }

  template <typename Value, typename SetOne, typename SetRepeated>
  void Try(const std::string& name, google::protobuf::Message* at, const Field* field, Value value,
           SetOne set_one, SetRepeated set_repeated) {
    const auto& reflection = *at->GetReflection();
    Damage(name, at, [&] {
      if (field->is_repeated()) {
        (reflection.*set_repeated)(at, field, 0, value);
      } else {
        (reflection.*set_one)(at, field, value);
      }
    });
  }

  void WalkValue(const std::string& name, google::protobuf::Message* at, const Field* field) {
    using Reflection = google::protobuf::Reflection;
    const auto& reflection = *at->GetReflection();
    if (field->message_type() != nullptr) {
      Walk(name + ".", field->is_repeated() ? reflection.MutableRepeatedMessage(at, field, 0)
                                            : reflection.MutableMessage(at, field));
    } else if (field->cpp_type() == Field::CPPTYPE_INT32) {
      for (const int32_t value :
           {std::numeric_limits<int32_t>::min(), 0, std::numeric_limits<int32_t>::max()}) {
        Try(absl::StrCat(name, " ", value), at, field, value, &Reflection::SetInt32,
            &Reflection::SetRepeatedInt32);
      }
    } else if (field->cpp_type() == Field::CPPTYPE_INT64) {
      for (const int64_t value :
           {std::numeric_limits<int64_t>::min(), int64_t{0}, std::numeric_limits<int64_t>::max()}) {
        Try(absl::StrCat(name, " ", value), at, field, value, &Reflection::SetInt64,
            &Reflection::SetRepeatedInt64);
      }
    } else if (field->cpp_type() == Field::CPPTYPE_ENUM) {
      Try(name + " 99", at, field, 99, &Reflection::SetEnumValue,
          &Reflection::SetRepeatedEnumValue);
    } else if (field->cpp_type() == Field::CPPTYPE_FLOAT) {
      for (const float value : {-7.0F, 1e10F}) {
        Try(absl::StrCat(name, " ", value), at, field, value, &Reflection::SetFloat,
            &Reflection::SetRepeatedFloat);
      }
    } else if (field->cpp_type() == Field::CPPTYPE_STRING) {
      WalkText(name, at, field);
    }
  }

  void WalkText(const std::string& name, google::protobuf::Message* at, const Field* field) {
    const auto& reflection = *at->GetReflection();
    const auto put = [&](const std::string& text) {
      if (field->is_repeated()) {
        reflection.SetRepeatedString(at, field, 0, text);
      } else {
        reflection.SetString(at, field, text);
      }
    };
    Damage(name + " long", at, [&] { put(std::string(size_t{9} << 20, 'x')); });
    Damage(name + " with an escape", at, [&] { put("a\033"); });
  }

  const DecodeAgain decode_;
  const std::unique_ptr<google::protobuf::Message> root_;
  std::string text_;
};

inline std::string FormOf(const std::string& name, const google::protobuf::Message& filled,
                          DecodeAgain decode) {
  return absl::StrCat(name, "\n", MessageForm(filled, std::move(decode)).text());
}

// A stand-in for what is too long to be looked at: FNV-1a.
inline std::string Fingerprint(const std::string& name, const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return absl::StrCat(name, " bytes=", bytes.size(), " hash=", absl::Hex(hash), "\n");
}

inline std::string FormFile(const std::string& name) {
  return absl::StrCat(testing::kSourceDirectory, "/tests/unit/rendezvous/", name);
}

// `form` is what is found, `file` where it is written down.
inline int RunFormTest(int argc, char** argv, const std::string& file,
                       const std::function<std::string()>& form) {
  if (argc == 2 && absl::string_view(argv[1]) == "--rewrite") {
    testing::WriteFile(FormFile(file), form());
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace muster::rendezvous
