// Bytes that never change, held by all who need them together: a value of the store and the replies
// with it are one piece of memory, however many clients have asked for it.
//
// Pure.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace muster::agent {

class SharedBytes {
 public:
  SharedBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a string is what it holds.
  SharedBytes(std::string bytes) : held_(std::make_shared<const std::string>(std::move(bytes))) {}

  const std::string& text() const {
    static const std::string kEmpty;
    return held_ == nullptr ? kEmpty : *held_;
  }
  size_t size() const { return text().size(); }
  // The same for all copies, while one of them lives.
  const std::string* identity() const { return held_.get(); }

  friend bool operator==(const SharedBytes& a, const SharedBytes& b) {
    return a.text() == b.text();
  }

 private:
  std::shared_ptr<const std::string> held_;  // store, replies and sockets end in any order
};

}  // namespace muster::agent
