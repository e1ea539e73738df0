// Classes of C++ and Python sources and their data members, as far as a test of the tree asks.
//
// A reader of declarations, not a compiler: templates, nested classes, attributes of locks and
// members with initialisers are understood; macros that declare members are not.
#pragma once

#include <string>
#include <vector>

#include "tests/support/source_text.h"

namespace muster::testing {

struct Member {
  std::string type;  // with spaces between words alone: "std::vector<const int*>"
  std::string name;
};

struct ClassShape {
  std::string name;  // with the classes around it, without namespaces: "Engine::State"
  std::string file;
  bool is_struct = false;
  std::vector<Member> members;  // without static ones
  int methods = 0;              // counted in Python alone
};

// Classes and structs that `source` defines, nested ones after the class around them.
std::vector<ClassShape> ClassesIn(const std::string& file, const SourceText& source);

// Classes of a source in Python. Members are what is assigned to `self` and what a dataclass
// declares; they have no type.
std::vector<ClassShape> PythonClassesIn(const std::string& file, const std::string& text);

struct ClassSize {
  std::string name;
  std::string file;
  int members = 0;
  // A struct whose members are all public by their names: options, a plan, a record, a table of
  // functions.
  bool is_data = false;
};

// Sizes of `classes`, which are those of the whole tree. A member whose type is a struct that the
// same file defines, and that no other class has as a member, counts as the struct's members:
// fields do not become fewer by being moved behind a dot.
std::vector<ClassSize> SizesOf(const std::vector<ClassShape>& classes);

}  // namespace muster::testing
