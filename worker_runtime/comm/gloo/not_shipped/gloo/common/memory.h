// Two names that gloo/transport/tcp/pair.h and context.h need to be parsed. Debian ships these
// headers without the one that defines the names; where a Gloo ships it, that one is found first.
//
// Nothing here makes, reads or destroys an object of theirs. gloo_mesh.cc derives from Gloo's Pair,
// uses no member that lies behind one of these, and leaves room behind the base for what their true
// size may be.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr;

template <typename T>
class WeakNonOwningPtr {
 private:
  std::weak_ptr<void> pointee_;
};

}  // namespace gloo
