#include "tests/support/class_shapes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::testing {
namespace {

using Tokens = std::vector<std::string>;

// Words and single characters; `::` is one token. Preprocessor lines are left out.
Tokens TokensOf(const std::string& code) {
  Tokens tokens;
  bool line_begins = true;
  for (size_t i = 0; i < code.size();) {
    const char c = code[i];
    if (c == '\n') {
      line_begins = true;
      ++i;
    } else if (absl::ascii_isspace(c)) {
      ++i;
    } else if (c == '#' && line_begins) {
      while (i < code.size() && (code[i] != '\n' || code[i - 1] == '\\')) ++i;
    } else if (absl::ascii_isalnum(c) || c == '_') {
      size_t end = i;
      while (end < code.size() && (absl::ascii_isalnum(code[end]) || code[end] == '_')) ++end;
      tokens.push_back(code.substr(i, end - i));
      line_begins = false;
      i = end;
    } else {
      const size_t length = code.compare(i, 2, "::") == 0 ? 2 : 1;
      tokens.push_back(code.substr(i, length));
      line_begins = false;
      i += length;
    }
  }
  return tokens;
}

bool IsOfWord(char c) { return absl::ascii_isalnum(c) || c == '_'; }
bool IsWord(const std::string& token) { return IsOfWord(token[0]); }

// Words stay apart.
void Append(const std::string& token, std::string& text) {
  if (!text.empty() && IsOfWord(text.back()) && IsWord(token)) text += ' ';
  text += token;
}

// A declaration as far as its shape matters: macros, decltype and attributes without their
// arguments, and everything between angle brackets in one token with the word before.
struct Declaration {
  Tokens tokens;
  int commas = 0;               // between declarators
  bool has_parameters = false;  // parentheses outside of angle brackets and initialisers
};

Declaration Shaped(const Tokens& statement) {
  Declaration shaped;
  int angles = 0, round = 0, braces = 0;
  bool has_value = false;
  for (size_t i = 0; i < statement.size(); ++i) {
    const std::string& token = statement[i];
    const bool takes_arguments = absl::StartsWith(token, "ABSL_") || token == "decltype" ||
                                 token == "alignas" || token == "noexcept";
    if (takes_arguments && i + 1 < statement.size() && statement[i + 1] == "(") {
      int depth = 0;
      while (++i < statement.size()) {
        if (statement[i] == "(") ++depth;
        if (statement[i] == ")" && --depth == 0) break;
      }
      if (token == "decltype") shaped.tokens.push_back(token);
      continue;
    }
    if (absl::StartsWith(token, "ABSL_")) continue;
    if (token == "{") ++braces;
    if (token == "}") --braces;
    if (!has_value && token == "<" && !shaped.tokens.empty() && round == 0) ++angles;
    if (angles > 0) {
      Append(token, shaped.tokens.back());
      if (token == ">") --angles;
      continue;
    }
    if (token == "(" && !has_value && braces == 0) shaped.has_parameters = true;
    if (token == "(" || token == "[") ++round;
    if (token == ")" || token == "]") --round;
    const bool is_outside = round == 0 && braces == 0;
    if (token == "=" && is_outside) has_value = true;
    if (token == "," && is_outside) {
      ++shaped.commas;
      has_value = false;
    }
    if (!has_value && is_outside && token != "}" && token != ")" && token != "]") {
      shaped.tokens.push_back(token);
    }
  }
  return shaped;
}

class Parser {
 public:
  Parser(std::string file, Tokens tokens) : file_(std::move(file)), tokens_(std::move(tokens)) {}

  std::vector<ClassShape> Parse() {
    while (at_ < tokens_.size()) ReadScope(-1);
    return std::move(classes_);
  }

 private:
  // Reads up to the end of the scope: a namespace's (`owner` < 0) or that of a class by its index.
  void ReadScope(int owner) {
    Tokens statement;
    int round = 0;
    while (at_ < tokens_.size()) {
      const std::string token = tokens_[at_++];
      if (token == "(") ++round;
      if (token == ")") --round;
      if (token == "}" && round == 0) return;
      if (token == ";" && round == 0) {
        if (owner >= 0) Declare(owner, statement);
        statement.clear();
      } else if (token == ":" && statement.size() == 1 && IsAccess(statement[0])) {
        statement.clear();
      } else if (token == "{" && round == 0) {
        Open(owner, statement);
      } else {
        statement.push_back(token);
      }
    }
  }

  static bool IsAccess(const std::string& word) {
    return word == "public" || word == "protected" || word == "private";
  }

  // What a `{` after `statement` begins.
  void Open(int owner, Tokens& statement) {
    const auto has = [&](const char* word) {
      return std::find(statement.begin(), statement.end(), word) != statement.end();
    };
    const bool is_value = has("=");
    if (!is_value && (has("namespace") || has("extern"))) {
      statement.clear();
      ReadScope(-1);
      return;
    }
    const size_t key = ClassKey(statement);
    if (!is_value && !has("enum") && key < statement.size()) {
      const int index = Begin(owner, statement, key);
      statement.clear();
      ReadScope(index);
      // A member may follow the brace of its own type.
      if (at_ < tokens_.size() && tokens_[at_] != ";") {
        statement = {classes_[index].name};
      }
      return;
    }
    const bool is_function = !is_value && Shaped(statement).has_parameters;
    SkipBraces();
    if (is_function || has("enum")) {
      statement.clear();
      if (at_ < tokens_.size() && tokens_[at_] == ";") ++at_;
    }
  }

  // The index of the word class, struct or union that this statement defines, else its size.
  static size_t ClassKey(const Tokens& statement) {
    int angles = 0;
    for (size_t i = 0; i < statement.size(); ++i) {
      if (statement[i] == "<") ++angles;
      if (statement[i] == ">") --angles;
      if (statement[i] == "(") return statement.size();
      if (angles == 0 && i + 1 < statement.size() &&
          (statement[i] == "class" || statement[i] == "struct" || statement[i] == "union")) {
        return i;
      }
    }
    return statement.size();
  }

  int Begin(int owner, const Tokens& statement, size_t key) {
    std::string name;
    for (size_t i = key + 1; i < statement.size(); ++i) {
      if (statement[i] == ":" || statement[i] == "final" || statement[i] == "<") break;
      if (IsWord(statement[i]) || statement[i] == "::") name += statement[i];
    }
    const std::string outer = owner < 0 ? "" : classes_[owner].name + "::";
    classes_.push_back({outer + name, file_, statement[key] != "class", {}});
    return static_cast<int>(classes_.size()) - 1;
  }

  void SkipBraces() {
    for (int depth = 1; at_ < tokens_.size() && depth > 0; ++at_) {
      if (tokens_[at_] == "{") ++depth;
      if (tokens_[at_] == "}") --depth;
    }
  }

  void Declare(int owner, const Tokens& statement) {
    if (statement.empty()) return;
    for (const char* word : {"using", "typedef", "friend", "static", "template", "enum", "class",
                             "struct", "static_assert", "constexpr", "operator"}) {
      if (std::find(statement.begin(), statement.end(), word) != statement.end()) return;
    }
    Declaration shaped = Shaped(statement);
    if (shaped.has_parameters || shaped.tokens.empty()) return;
    // Bits of a bit field.
    const auto bits = std::find(shaped.tokens.begin(), shaped.tokens.end(), ":");
    shaped.tokens.erase(bits, shaped.tokens.end());
    const auto comma = std::find(shaped.tokens.begin(), shaped.tokens.end(), ",");
    const Tokens first(shaped.tokens.begin(), comma);
    if (first.size() < 2) return;
    std::string type;
    for (size_t i = 0; i + 1 < first.size(); ++i) Append(first[i], type);
    classes_[owner].members.push_back({type, first.back()});
    for (int i = 0; i < shaped.commas; ++i) {
      classes_[owner].members.push_back({type, absl::StrCat(first.back(), "#", i + 1)});
    }
  }

  const std::string file_;
  const Tokens tokens_;
  size_t at_ = 0;
  std::vector<ClassShape> classes_;
};

// The names that a line of Python assigns to: of "self.a, self.b[c] = self.d = 1" a and d.
std::vector<std::string> AssignedToSelf(absl::string_view line) {
  std::vector<std::string> names;
  std::vector<absl::string_view> targets = absl::StrSplit(line, " = ");
  targets.pop_back();  // the value
  for (const absl::string_view target : targets) {
    for (absl::string_view part : absl::StrSplit(target, ", ")) {
      part = part.substr(0, part.find(':'));  // an annotation
      const bool is_of_self = absl::ConsumePrefix(&part, "self.");
      if (is_of_self && absl::c_all_of(part, IsOfWord)) names.emplace_back(part);
    }
  }
  return names;
}

// The field that a line of a dataclass declares, "name: type"; empty for other lines.
std::string DeclaredField(absl::string_view line) {
  const size_t colon = line.find(": ");
  const absl::string_view name = line.substr(0, colon);
  return colon != line.npos && absl::c_all_of(name, IsOfWord) ? std::string(name) : "";
}

std::string LastName(const std::string& name) {
  const size_t colon = name.rfind("::");
  return colon == name.npos ? name : name.substr(colon + 2);
}

// The type that a member holds by value; const and mutable say nothing of it.
std::string ValueType(std::string type) {
  for (const char* word : {"mutable ", "const "}) {
    if (absl::StartsWith(type, word)) type = type.substr(std::string(word).size());
  }
  return LastName(type);
}

}  // namespace

std::vector<ClassShape> ClassesIn(const std::string& file, const SourceText& source) {
  return Parser(file, TokensOf(source.code)).Parse();
}

std::vector<ClassShape> PythonClassesIn(const std::string& file, const std::string& text) {
  std::vector<ClassShape> classes;
  std::vector<std::pair<size_t, size_t>> open;  // the column and the index of each class around
  bool is_in_text = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t quotes = std::vector<absl::string_view>(absl::StrSplit(line, "\"\"\"")).size() - 1;
    const bool was_in_text = std::exchange(is_in_text, is_in_text != (quotes % 2 == 1));
    const size_t column = line.find_first_not_of(' ');
    if (was_in_text || column == line.npos) continue;
    line.remove_prefix(column);
    while (!open.empty() && column <= open.back().first) open.pop_back();
    if (absl::ConsumePrefix(&line, "class ")) {
      const std::string outer = open.empty() ? "" : classes[open.back().second].name + "::";
      const absl::string_view name = line.substr(0, line.find_first_of("(:"));
      open.emplace_back(column, classes.size());
      classes.push_back({absl::StrCat(outer, name), file, false, {}});
    } else if (!open.empty()) {
      ClassShape& shape = classes[open.back().second];
      const bool is_of_class = column == open.back().first + 4;
      shape.methods += is_of_class && absl::StartsWith(line, "def ") ? 1 : 0;
      std::vector<std::string> names = AssignedToSelf(line);
      if (is_of_class) names.push_back(DeclaredField(line));
      for (const std::string& name : names) {
        const auto is_it = [&](const Member& member) { return member.name == name; };
        if (!name.empty() && absl::c_none_of(shape.members, is_it)) {
          shape.members.push_back({"", name});
        }
      }
    }
  }
  return classes;
}

std::vector<ClassSize> SizesOf(const std::vector<ClassShape>& classes) {
  std::map<std::string, std::vector<const ClassShape*>> by_name;
  std::map<std::string, std::set<const ClassShape*>> holders;  // of a type, by its last name
  for (const ClassShape& shape : classes) {
    by_name[LastName(shape.name)].push_back(&shape);
    for (const Member& member : shape.members) {
      for (const std::string& word : WordsIn(member.type)) holders[word].insert(&shape);
    }
  }
  // The class that `holder` means by this last name: its own, its file's or the only one. Null
  // where that is not clear.
  const auto meant = [&](const ClassShape& holder, const std::string& type) {
    std::vector<const ClassShape*> named = by_name[type];
    for (const bool is_nested : {true, false}) {
      std::vector<const ClassShape*> near;
      absl::c_copy_if(named, std::back_inserter(near), [&](const ClassShape* shape) {
        const bool is_own = !is_nested || shape->name == absl::StrCat(holder.name, "::", type);
        return is_own && shape->file == holder.file;
      });
      if (!near.empty()) named = near;
    }
    return named.size() == 1 ? named[0] : nullptr;
  };
  const auto has_alone = [&](const ClassShape& shape, const ClassShape* type) {
    if (type == nullptr || !type->is_struct || type == &shape || type->file != shape.file) {
      return false;
    }
    const std::string name = LastName(type->name);
    return absl::c_all_of(holders[name], [&](const ClassShape* holder) {
      return holder == &shape || meant(*holder, name) != type;
    });
  };
  const auto size_of = [&](const auto& self, const ClassShape& shape) -> int {
    int size = 0;
    for (const Member& member : shape.members) {
      const ClassShape* type = meant(shape, ValueType(member.type));
      size += has_alone(shape, type) ? std::max(1, self(self, *type)) : 1;
    }
    return size;
  };
  std::vector<ClassSize> result;
  for (const ClassShape& shape : classes) {
    const bool is_data =
        shape.is_struct && absl::c_none_of(shape.members, [](const Member& member) {
          return absl::EndsWith(member.name, "_");
        });
    result.push_back({shape.name, shape.file, size_of(size_of, shape), is_data});
  }
  return result;
}

}  // namespace muster::testing
