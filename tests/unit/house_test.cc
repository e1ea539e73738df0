// The size and the order of the house: what a reader must hold in the head at once, and whether
// names, paths and places in it are true.
//
// house_today.txt has what exceeds a limit today, one line each with its number. Nothing new may
// join it, and a number may only fall; `house_test --rewrite` takes over what has become better.
// `house_test --messages` prints the text that a person can meet, file by file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/class_shapes.h"
#include "tests/support/files.h"
#include "tests/support/source_text.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kMembersMax = 15;
constexpr int kMethodsMax = 25;  // of a class of Python
constexpr int kColumnsMax = 100;

// What exceeds a limit: "members Engine::State" to 43, "fields Plan" to 30 where it is data. Facts
// that are true or not count 1.
using Offenders = std::map<std::string, int>;

struct File {
  std::string path;  // from the root of the repository
  std::string text;
  SourceText source;  // of C++ files
};

bool EndsWithAny(const std::string& text, const std::vector<std::string>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const std::string& ending) { return absl::EndsWith(text, ending); });
}

bool IsCpp(const std::string& path) { return EndsWithAny(path, {".h", ".cc", ".cu", ".cuh"}); }
bool IsPython(const std::string& path) { return EndsWithAny(path, {".py"}); }
bool IsReadme(const std::string& path) { return EndsWithAny(path, {"README.md"}); }

std::vector<File> ReadTree() {
  std::vector<File> files;
  const std::string root = absl::StrCat(kSourceDirectory, "/");
  std::vector<std::string> paths = {"README.md", "CMakeLists.txt", "CMakePresets.json"};
  for (const char* folder :
       {"proto", "rendezvous", "agent", "launcher", "worker_runtime", "tests", "deploy"}) {
    for (const std::string& path : FilesBelow(root + folder)) {
      if (!absl::StrContains(path, "__pycache__")) paths.push_back(absl::StrCat(folder, "/", path));
    }
  }
  for (const std::string& path : paths) {
    files.push_back({path, ReadFile(root + path), {}});
    if (IsCpp(path)) files.back().source = ReadSource(files.back().text);
  }
  return files;
}

const std::vector<File>& Tree() {
  static const std::vector<File> tree = ReadTree();
  return tree;
}

std::vector<ClassShape> ClassesOf(const std::vector<File>& files) {
  std::vector<ClassShape> classes;
  const auto back = std::back_inserter(classes);
  for (const File& file : files) {
    if (absl::StartsWith(file.path, "tests/")) continue;
    if (IsCpp(file.path)) absl::c_move(ClassesIn(file.path, file.source), back);
    if (IsPython(file.path)) absl::c_move(PythonClassesIn(file.path, file.text), back);
  }
  return classes;
}

void CountMembers(const std::vector<File>& files, Offenders* found) {
  for (const ClassSize& size : SizesOf(ClassesOf(files))) {
    if (size.members > kMembersMax) {
      const char* const what = size.is_data ? "fields " : "members ";
      (*found)[absl::StrCat(what, size.name, " ", size.file)] = size.members;
    }
  }
}

void CountMethods(const std::vector<File>& files, Offenders* found) {
  for (const ClassShape& shape : ClassesOf(files)) {
    if (shape.methods > kMethodsMax) {
      (*found)[absl::StrCat("methods ", shape.name, " ", shape.file)] = shape.methods;
    }
  }
}

void CountWideLines(const std::vector<File>& files, Offenders* found) {
  for (const File& file : files) {
    if (!IsCpp(file.path) && !IsReadme(file.path) && !IsPython(file.path)) continue;
    for (absl::string_view line : absl::StrSplit(file.text, '\n')) {
      if (Columns(line) > kColumnsMax) {
        ++(*found)[absl::StrCat("columns ", file.path)];
      }
    }
  }
}

void MeasureReadmes(const std::vector<File>& files, Offenders* found) {
  for (const File& file : files) {
    if (!IsReadme(file.path)) continue;
    const bool is_first = file.path == "README.md";
    const int lines = static_cast<int>(std::count(file.text.begin(), file.text.end(), '\n'));
    const int bytes = static_cast<int>(file.text.size());
    if (lines > (is_first ? 150 : 120)) (*found)[absl::StrCat("lines ", file.path)] = lines;
    if (bytes > (is_first ? 12 : 8) * 1024) (*found)[absl::StrCat("bytes ", file.path)] = bytes;
  }
}

// Two humps or more, as our types and functions are named.
bool IsOurKindOfName(const std::string& word) {
  if (word.size() < 4 || !absl::ascii_isupper(word[0]) || !absl::ascii_islower(word[1])) {
    return false;
  }
  return std::any_of(word.begin() + 1, word.end(), absl::ascii_isupper) &&
         std::all_of(word.begin(), word.end(), absl::ascii_isalnum);
}

// Names of others that a comment may speak of.
const std::set<std::string>& ForeignNames() {
  static const std::set<std::string> names = {
      "DefaultLogsSpecs", "FlashAttention", "LoRA",         "MiCS",
      "MurmurHash3",      "PaLM",           "PyYAML",       "QueryType",
      "SageMaker",        "SplitMix64",     "TensorPipe",   "ShardingStrategy",
      "TensorFactories",  "TensorFlow",     "TorchrunArgs", "TorchX"};
  return names;
}

void FindStaleNames(const std::vector<File>& files, Offenders* found) {
  std::set<std::string> known = ForeignNames();
  for (const File& file : files) {
    // The list of today names what does not exist.
    if (absl::EndsWith(file.path, ".md") || absl::EndsWith(file.path, "house_today.txt")) continue;
    for (std::string& word : WordsIn(IsCpp(file.path) ? file.source.code : file.text)) {
      known.insert(std::move(word));
    }
    for (std::string& word : WordsIn(file.source.literals)) known.insert(std::move(word));
  }
  for (const File& file : files) {
    for (const Comment& comment : file.source.comments) {
      for (std::string& word : WordsIn(comment.text)) {
        // A plural is the name of many.
        const bool is_known = known.count(word) ||
                              (word.back() == 's' && known.count(word.substr(0, word.size() - 1)));
        if (IsOurKindOfName(word) && !is_known) {
          (*found)[absl::StrCat("name ", word, " ", file.path)] = 1;
        }
      }
    }
  }
}

bool IsOurs(absl::string_view path) {
  for (const char* folder :
       {"proto/", "rendezvous/", "agent/", "launcher/", "worker_runtime/", "tests/"}) {
    if (absl::StartsWith(path, folder)) return true;
  }
  return false;
}

// Words that look like a path into one of our folders, "agent/core/agent_core.h", and those that
// name a C++ file in any way.
std::vector<std::string> PathsIn(absl::string_view text) {
  std::vector<std::string> paths;
  const auto is_part = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  };
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && is_part(text[end])) ++end;
    std::string word(text.substr(i, end - i));
    // A pattern, a variable or a name in braces is no path that must be there.
    const bool is_pattern = (end < text.size() && absl::StrContains("*{<$…", text[end])) ||
                            (i > 0 && absl::StrContains("}*$>", text[i - 1]));
    while (!word.empty() && (word.back() == '.' || word.back() == '/')) word.pop_back();
    if (!is_pattern && (IsOurs(word) || (IsCpp(word) && word[0] != '_' && word[0] != '.'))) {
      paths.push_back(word);
    }
    i = std::max(end, i + 1);
  }
  return paths;
}

void FindStalePaths(const std::vector<File>& files, Offenders* found) {
  std::set<std::string> known;
  for (const File& file : files) {
    known.insert(file.path);
    for (size_t i = file.path.find('/'); i != std::string::npos; i = file.path.find('/', i + 1)) {
      known.insert(file.path.substr(0, i));
    }
    // A module is named without the ending of its files: "agent/core/agent_core".
    known.insert(file.path.substr(0, file.path.rfind('.')));
  }
  const auto look = [&](const File& file, const std::string& text) {
    for (const std::string& path : PathsIn(text)) {
      // A README may name a file from its own folder; a comment may name a file of another project.
      const std::string ending = absl::StrCat("/", path);
      const bool exists =
          known.count(path) ||
          (!IsOurs(path) && (!IsReadme(file.path) ||
                             std::any_of(known.begin(), known.end(), [&](const std::string& one) {
                               return absl::EndsWith(one, ending);
                             })));
      if (!exists) (*found)[absl::StrCat("path ", path, " ", file.path)] = 1;
    }
  };
  for (const File& file : files) {
    for (const Comment& comment : file.source.comments) look(file, comment.text);
    if (IsReadme(file.path)) look(file, file.text);
  }
}

// The sources that a test of several names in the comment at its top: "Sources: a/b.h, a/c.h."
std::vector<std::string> NamedSources(const File& test) {
  std::string top;
  int line = 0;
  for (const Comment& comment : test.source.comments) {
    if (comment.line != ++line) break;
    absl::StrAppend(&top, comment.text, " ");
  }
  const size_t begin = top.find("Sources: ");
  return begin == std::string::npos ? std::vector<std::string>{} : PathsIn(top.substr(begin));
}

// Whether the test names and includes several sources, and `room` is the deepest one with them all.
bool IsOfSeveralSources(const File& test, const std::string& room) {
  const std::vector<std::string> sources = NamedSources(test);
  std::set<std::string> below;  // the parts of the room that they lie in
  for (absl::string_view source : sources) {
    if (!absl::StrContains(test.text, absl::StrCat("#include \"", source, "\"")) ||
        !absl::ConsumePrefix(&source, room)) {
      return false;
    }
    below.emplace(source.substr(0, source.find('/')));
  }
  return below.size() >= 2;
}

// unit/<room>/<file>_test.cc or unit/<room>/<file>_<aspect>_test.cc tests <room>/<file>, or a tool
// of tests that lies beside it. A test of several sources lies where they do, and names them.
void FindMisplacedTests(const std::vector<File>& files, Offenders* found) {
  std::set<std::string> modules;
  for (const File& file : files) {
    std::string module = file.path.substr(0, file.path.rfind('.'));
    modules.insert(module);
    if (absl::EndsWith(module, "_host")) modules.insert(module.substr(0, module.size() - 5));
    absl::string_view name = file.path;
    // A public header is implemented by a room, which tests of the room are for.
    if (absl::ConsumePrefix(&name, "worker_runtime/include/muster/")) {
      for (const char* room : {"checkpoint", "comm", "cuda", "data", "engine", "kernels", "nn",
                               "plan", "runtime", "train"}) {
        modules.insert(absl::StrCat("worker_runtime/", room, "/", name.substr(0, name.size() - 2)));
      }
    }
  }
  for (const File& file : files) {
    absl::string_view name = file.path;
    if (!absl::ConsumePrefix(&name, "tests/unit/") || !absl::ConsumeSuffix(&name, "_test.cc")) {
      continue;
    }
    std::string module(name);
    if (!absl::StrContains(module, '/')) continue;  // a test of the tree as a whole
    const size_t room = module.rfind('/');
    if (modules.count(absl::StrCat("tests/unit/", module)) ||
        IsOfSeveralSources(file, module.substr(0, room + 1))) {
      continue;
    }
    while (!modules.count(module) && module.rfind('_') != std::string::npos &&
           module.rfind('_') > room) {
      module.resize(module.rfind('_'));
    }
    if (!modules.count(module)) (*found)[absl::StrCat("place ", file.path)] = 1;
  }
}

// The column of a line comment, in bytes; nonsense for others.
int ColumnOf(const Comment& comment, absl::string_view line) {
  return static_cast<int>(line.size()) - static_cast<int>(comment.text.size()) - 2;
}

// Lines of comments that belong together, joined by spaces.
struct Paragraph {
  bool is_behind_code = false;
  std::string text;
};

std::vector<Paragraph> ParagraphsOf(const File& file) {
  constexpr int kNoLine = -1;
  const std::vector<absl::string_view> lines = absl::StrSplit(file.text, '\n');
  std::vector<Paragraph> paragraphs;
  int last_line = kNoLine;  // of the paragraph so far
  int last_column = 0;
  for (const Comment& comment : file.source.comments) {
    const absl::string_view line = lines[comment.line - 1];
    const int column = ColumnOf(comment, line);
    const bool goes_on = comment.line == last_line + 1 && column == last_column;
    const absl::string_view text = absl::StripAsciiWhitespace(comment.text);
    last_line = text.empty() ? kNoLine : comment.line;
    last_column = column;
    if (text.empty()) continue;
    if (goes_on) {
      absl::StrAppend(&paragraphs.back().text, " ", text);
      continue;
    }
    const bool is_behind_code = !absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "//");
    paragraphs.push_back({is_behind_code, std::string(text)});
  }
  return paragraphs;
}

// Whether the sentence is only a clause, and goes on with parts of that clause alone: "With the
// root, where two have another one."
bool IsOnlyAClause(absl::string_view sentence) {
  static const std::set<absl::string_view> connectives = {"and",   "but", "or",    "where",
                                                          "which", "who", "whose", "with"};
  const std::vector<absl::string_view> parts = absl::StrSplit(sentence, ", ");
  return std::all_of(parts.begin() + 1, parts.end(), [&](absl::string_view part) {
    return connectives.count(part.substr(0, part.find(' '))) > 0;
  });
}

// A sentence may begin with "By" or "Where" if its subject follows, which a comma tells: "Between
// rounds, there are no workers." Without one it counts as a fragment, "Between calls."
bool HasNoSubject(absl::string_view text) {
  static const std::set<absl::string_view> fragments = {"And", "Else", "Null", "Of"};
  static const std::set<absl::string_view> openings = {
      "After", "Also", "As",    "At",    "Before", "Behind", "Beside", "Between", "By",
      "For",   "From", "If",    "In",    "Like",   "Not",    "On",     "Only",    "Per",
      "Since", "To",   "Under", "Until", "Where",  "Who",    "With",   "Without"};
  const absl::string_view word = text.substr(
      0, std::find_if_not(text.begin(), text.end(), absl::ascii_isalnum) - text.begin());
  static const std::set<absl::string_view> clauses = {"As", "Since", "With"};
  if (fragments.count(word)) return true;
  if (!absl::StartsWith(text.substr(word.size()), " ")) return false;
  if (clauses.count(word) && IsOnlyAClause(text.substr(0, text.find(". ")))) return true;
  const bool is_one_sentence = !absl::StrContains(text, ". ") && !absl::StrContains(text, "? ");
  return openings.count(word) && is_one_sentence && !absl::StrContains(text, ',');
}

// Comments that begin in the middle of a sentence, "Of the last round.", and whose subject only the
// code below tells. A line that goes on with a paragraph may begin with any word, and so may a
// comment behind code.
void FindCommentsWithoutASubject(const std::vector<File>& files, Offenders* found) {
  for (const File& file : files) {
    for (const Paragraph& paragraph : ParagraphsOf(file)) {
      if (paragraph.is_behind_code || !HasNoSubject(paragraph.text)) continue;
      ++(*found)[absl::StrCat("subject ", file.path)];
    }
  }
}

// How often `text` says that a thing "is no" other, in place of "is not a", and the like.
int OddPhrasesIn(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
  const auto at = [&](size_t i) { return i < words.size() ? words[i] : absl::string_view(); };
  int phrases = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool is_verb = (at(i) == "is" || at(i) == "are") && at(i - 1) != "there";
    const bool is_no = at(i + 1) == "no" && at(i + 2) != "longer";
    phrases += is_verb && (is_no || absl::StartsWith(at(i + 1), "none") || at(i + 1) == "said");
    phrases += at(i) == "of" && at(i + 1) == "its" && absl::StartsWith(at(i + 2), "own");
  }
  return phrases;
}

// Words of messages for which the field has plainer ones: "no rank", "nothing", "again".
void FindOddWordsInMessages(const std::vector<File>& files, Offenders* found) {
  static const std::set<std::string> odd = {"anew", "nobody", "whoever"};
  for (const File& file : files) {
    if (!IsCpp(file.path) || absl::StartsWith(file.path, "tests/")) continue;
    const std::string literals = absl::AsciiStrToLower(file.source.literals);
    for (const std::string& word : WordsIn(literals)) {
      if (odd.count(word)) ++(*found)[absl::StrCat("word ", file.path)];
    }
    if (const int phrases = OddPhrasesIn(literals); phrases > 0) {
      (*found)[absl::StrCat("phrase ", file.path)] = phrases;
    }
  }
}

// Literals of more than one word in the sources of our programs and the library.
void PrintMessages(const File& file) {
  if (!IsCpp(file.path) || absl::StartsWith(file.path, "tests/")) return;
  for (const absl::string_view text : absl::StrSplit(file.source.literals, '\n')) {
    if (WordsIn(text).size() > 1 && absl::StrContains(text, ' ')) {
      std::printf("%s: %s\n", file.path.c_str(), std::string(text).c_str());
    }
  }
}

Offenders OffendersOf(const std::vector<File>& files) {
  Offenders found;
  CountMembers(files, &found);
  CountMethods(files, &found);
  CountWideLines(files, &found);
  MeasureReadmes(files, &found);
  FindStaleNames(files, &found);
  FindStalePaths(files, &found);
  FindMisplacedTests(files, &found);
  FindCommentsWithoutASubject(files, &found);
  FindOddWordsInMessages(files, &found);
  return found;
}

std::string ListPath() { return absl::StrCat(kSourceDirectory, "/tests/unit/house_today.txt"); }

Offenders ReadList(const std::string& text) {
  Offenders listed;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t space = line.rfind(' ');
    int number = 0;
    if (line[0] != '#' && absl::SimpleAtoi(line.substr(space + 1), &number)) {
      listed[std::string(line.substr(0, space))] = number;
    }
  }
  return listed;
}

std::string WriteList(const Offenders& listed) {
  std::string text =
      "# What exceeds a limit of house_test.cc today. Lines may go and numbers may fall.\n";
  for (const auto& [what, number] : listed) absl::StrAppend(&text, what, " ", number, "\n");
  return text;
}

// What the list must not have become: one sentence per line that is new, larger or out of date.
std::vector<std::string> Complaints(const Offenders& listed, const Offenders& found) {
  std::vector<std::string> complaints;
  for (const auto& [what, number] : found) {
    const auto entry = listed.find(what);
    if (entry == listed.end()) {
      complaints.push_back(absl::StrCat(what, " ", number, ": new, and beyond the limit"));
    } else if (number > entry->second) {
      complaints.push_back(absl::StrCat(what, ": ", number, " after ", entry->second));
    }
  }
  for (const auto& [what, number] : listed) {
    const auto entry = found.find(what);
    const int today = entry == found.end() ? 0 : entry->second;
    if (today < number) {
      complaints.push_back(absl::StrCat(what, ": better than listed (", today, " after ", number,
                                        "); run house_test --rewrite"));
    }
  }
  return complaints;
}

// The list with what has become better, and nothing that has become worse.
Offenders Tightened(const Offenders& listed, const Offenders& found) {
  Offenders tightened;
  for (const auto& [what, number] : listed) {
    const auto entry = found.find(what);
    if (entry != found.end()) tightened[what] = std::min(number, entry->second);
  }
  return tightened;
}

void PrintNumbers(const std::vector<File>& files, const Offenders& found) {
  std::vector<ClassSize> sizes = SizesOf(ClassesOf(files));
  std::sort(sizes.begin(), sizes.end(),
            [](const ClassSize& a, const ClassSize& b) { return a.members > b.members; });
  const auto more_than = [&](int members) {
    return std::count_if(sizes.begin(), sizes.end(),
                         [&](const ClassSize& size) { return size.members > members; });
  };
  int bools = 0;
  for (const ClassShape& shape : ClassesOf(files)) {
    if (!absl::EndsWith(shape.file, ".h")) continue;
    bools += static_cast<int>(std::count_if(shape.members.begin(), shape.members.end(),
                                            [](const Member& m) { return m.type == "bool"; }));
  }
  std::map<std::string, int> sums;
  for (const auto& [what, number] : found) {
    sums[what.substr(0, what.find(' '))] += number;
  }
  std::printf("classes with more than 10, 15, 20 data members: %td, %td, %td\n", more_than(10),
              more_than(kMembersMax), more_than(20));
  for (size_t i = 0; i < std::min<size_t>(sizes.size(), 12); ++i) {
    std::printf("  %3d  %s (%s)\n", sizes[i].members, sizes[i].name.c_str(), sizes[i].file.c_str());
  }
  std::printf("bool members in headers: %d\nlines over %d columns: %d\n", bools, kColumnsMax,
              sums["columns"]);
  std::printf(
      "names, paths that do not exist: %d, %d\ntests that do not lie as the sources do: %d\n"
      "comments without a subject: %d\n",
      sums["name"], sums["path"], sums["place"], sums["subject"]);
}

TEST(House, HasNothingNewBeyondItsLimits) {
  const Offenders found = OffendersOf(Tree());
  PrintNumbers(Tree(), found);
  const std::vector<std::string> complaints = Complaints(ReadList(ReadFile(ListPath())), found);
  EXPECT_TRUE(complaints.empty()) << absl::StrJoin(complaints, "\n");
}

TEST(House, RefusesWhatIsNewOrGrowsAndWhatIsBetterThanListed) {
  const Offenders listed = {{"members A a.h", 20}, {"columns b.h", 3}};
  EXPECT_THAT(Complaints(listed, listed), IsEmpty());
  EXPECT_THAT(Complaints(listed, {{"members A a.h", 21}, {"columns b.h", 3}}),
              ElementsAre("members A a.h: 21 after 20"));
  EXPECT_THAT(Complaints(listed, {{"columns b.h", 3}, {"columns c.h", 1}, {"members A a.h", 20}}),
              ElementsAre(HasSubstr("columns c.h 1: new")));
  EXPECT_THAT(Complaints(listed, {{"members A a.h", 16}}),
              ElementsAre(HasSubstr("columns b.h: better than listed"),
                          HasSubstr("members A a.h: better than listed (16 after 20)")));
}

TEST(House, TakesOverOnlyWhatHasBecomeBetter) {
  EXPECT_THAT(Tightened({{"members A a.h", 20}, {"columns b.h", 3}, {"name X c.h", 1}},
                        {{"members A a.h", 16}, {"columns b.h", 5}, {"columns d.h", 1}}),
              ElementsAre(Pair("columns b.h", 3), Pair("members A a.h", 16)));
  const Offenders listed = {{"members A a.h", 20}, {"columns b.h", 3}};
  EXPECT_EQ(ReadList(WriteList(listed)), listed);
}

std::vector<ClassSize> SizesIn(const std::string& code) {
  return SizesOf(ClassesIn("a.h", ReadSource(code)));
}

MATCHER(HasName, "") { return std::get<0>(arg).name == std::get<1>(arg); }

auto HasSize(const std::string& name, int members) {
  return ::testing::AllOf(Field(&ClassSize::name, name), Field(&ClassSize::members, members));
}

TEST(House, CountsDataMembersAndNothingElse) {
  EXPECT_THAT(SizesIn(R"(
    namespace a {
    class One final : public Base<int> {
     public:
      explicit One(int x) : x_(x), y_{x} { Use(x); }
      int Get() const { return x_; }
      static constexpr int kLimit = 3;
      using Strings = std::vector<std::string>;
      enum class Kind { kA, kB };
      template <typename T> void Do(T value);
      bool operator==(const One&) const = default;

     private:
      friend class Two;
      int x_, y_ = 2;                                   // two
      std::map<int, std::function<void(int)>> calls_;   // one
      std::vector<int> shared_ ABSL_GUARDED_BY(mutex_); // one
      Kind kind_ = Kind::kA;
      char name_[16] = {};
      decltype(&dlopen) open_ = nullptr;
      unsigned bits_ : 3;
      std::unique_ptr<Two> two_{new Two(1, 2)};
    };
    })"),
              ElementsAre(HasSize("One", 9)));
}

TEST(House, CountsAStructOfOneClassAsItsFields) {
  EXPECT_THAT(SizesIn("struct Parts { int a; int b; int c; };\n"
                      "class One { Parts parts_; int d_; };\n"),
              ElementsAre(HasSize("Parts", 3), HasSize("One", 4)));
  EXPECT_THAT(SizesIn("struct Parts { int a; int b; int c; };\n"
                      "class One { Parts parts_; int d_; };\nclass Two { Parts parts_; };\n"),
              ElementsAre(HasSize("Parts", 3), HasSize("One", 2), HasSize("Two", 1)));
  EXPECT_THAT(SizesIn("class One { struct Inner { int a; int b; }; Inner inner_; };"),
              ElementsAre(HasSize("One", 2), HasSize("One::Inner", 2)));
  // Each class and each file means its own.
  EXPECT_THAT(SizesIn("class One { struct Inner { int a; int b; }; const Inner inner_; };\n"
                      "class Two { struct Inner { int a; int b; int c; }; const Inner inner_; };"),
              ElementsAre(HasSize("One", 2), HasSize("One::Inner", 2), HasSize("Two", 3),
                          HasSize("Two::Inner", 3)));
  std::vector<ClassShape> classes =
      ClassesIn("a.h", ReadSource("struct Parts { int a; int b; }; class One { Parts parts_; };"));
  absl::c_move(ClassesIn("b.h", ReadSource("struct Parts { int a; int b; int c; };\n"
                                           "class Two { Parts parts_; };\n"
                                           "class Three { std::vector<Parts> parts_; };")),
               std::back_inserter(classes));
  EXPECT_THAT(SizesOf(classes),
              ElementsAre(HasSize("Parts", 2), HasSize("One", 2), HasSize("Parts", 3),
                          HasSize("Two", 1), HasSize("Three", 1)));
}

TEST(House, CountsWhatIsAssignedToSelfAndTheMethodsOfClassesOfPython) {
  const std::vector<ClassShape> classes = PythonClassesIn("a.py", R"(
class One(Base):
    """Text like code:
    self.not_this = 1
    """
    limit = 3

    def __init__(self, x):
        self.a, self._b = x, (1 if x == 2 else 3)
        self.c = self.d = None
        self.e: dict[str, int] = {}
        self.table[self.key, 1] = self.a

    def again(self):
        def inner():
            self.f = other(self.ghost, key=self.ghost)
        self.a = 2
        if self.a == 3:
            self.ghost.part = 4

    class Inner:
        def only(self):
            self.g = 1


@dataclasses.dataclass
class Two:
    name: str
    number: int = 0


def free(self):
    self.nothing = 1
)");
  const auto is = [](const std::string& name, int methods,
                     const std::vector<std::string>& members) {
    return ::testing::AllOf(Field(&ClassShape::name, name), Field(&ClassShape::methods, methods),
                            Field(&ClassShape::members, ::testing::Pointwise(HasName(), members)));
  };
  EXPECT_THAT(classes, ElementsAre(is("One", 2, {"a", "_b", "c", "d", "e", "f"}),
                                   is("One::Inner", 1, {"g"}), is("Two", 0, {"name", "number"})));
}

TEST(House, RefusesAClassOfPythonWithTooManyMembersOrMethods) {
  std::string code = "class One:\n";
  for (int i = 0; i <= kMethodsMax; ++i) {
    absl::StrAppend(&code, "    def m", i, "(self):\n        self.a", i, " = 1\n");
  }
  const std::vector<File> files = {{"agent/a.py", code, {}}, {"tests/a.py", code, {}}};
  Offenders found;
  CountMembers(files, &found);
  CountMethods(files, &found);
  EXPECT_THAT(found, ElementsAre(Pair("members One agent/a.py", kMethodsMax + 1),
                                 Pair("methods One agent/a.py", kMethodsMax + 1)));
}

TEST(House, TellsDataFromWhatBehaves) {
  const auto is_data = [](const std::string& code) { return SizesIn(code).front().is_data; };
  EXPECT_TRUE(is_data("struct Options { int a; bool Has() const { return a > 0; } };"));
  EXPECT_FALSE(is_data("class One { int a_; };"));
  EXPECT_FALSE(is_data("struct Draft { int a; private: int b_; };"));
}

TEST(House, FindsNamesAndPathsThatDoNotExist) {
  const auto file = [](const std::string& path, const std::string& text) {
    return File{path, text, IsCpp(path) ? ReadSource(text) : SourceText{}};
  };
  const std::vector<File> files = {
      file("agent/core/one.h",
           "// Calls GoneAway of agent/core/gone.h, then StartHere; see\n"
           "// agent/core/*.h and agent/core/one.h.\nvoid StartHere();\n"),
      file("agent/README.md", "`rendezvous/core/none.cc` and `agent/core`.\n")};
  Offenders found;
  FindStaleNames(files, &found);
  FindStalePaths(files, &found);
  EXPECT_THAT(found, ElementsAre(Pair("name GoneAway agent/core/one.h", 1),
                                 Pair("path agent/core/gone.h agent/core/one.h", 1),
                                 Pair("path rendezvous/core/none.cc agent/README.md", 1)));
}

TEST(House, FindsTestsThatDoNotLieAsTheSourcesDo) {
  std::vector<File> files;
  for (const char* path :
       {"agent/core/one.h", "tests/unit/agent/core/one_test.cc", "tests/unit/tree_test.cc",
        "tests/unit/agent/core/one_aspect_test.cc", "tests/unit/agent/one_test.cc"}) {
    files.push_back({path, "", {}});
  }
  Offenders found;
  FindMisplacedTests(files, &found);
  EXPECT_THAT(found, ElementsAre(Pair("place tests/unit/agent/one_test.cc", 1)));
}

TEST(House, TakesATestOfSeveralSourcesThatNamesThemAndLiesWhereTheyDo) {
  const std::string two = "#include \"agent/core/one.h\"\n#include \"agent/core/two.h\"\n";
  const std::string names = "// Both parts. Sources: agent/core/one.h,\n// agent/core/two.h.\n";
  const auto is_misplaced = [](const std::string& path, const std::string& text) {
    Offenders found;
    FindMisplacedTests({{path, text, ReadSource(text)}}, &found);
    return !found.empty();
  };
  EXPECT_FALSE(is_misplaced("tests/unit/agent/core/parts_test.cc", names + two));
  EXPECT_TRUE(is_misplaced("tests/unit/agent/core/parts_test.cc", two));
  EXPECT_TRUE(is_misplaced("tests/unit/agent/core/parts_test.cc", names));
  EXPECT_TRUE(is_misplaced("tests/unit/agent/parts_test.cc", names + two));
  EXPECT_TRUE(is_misplaced("tests/unit/agent/watch/parts_test.cc", names + two));
  EXPECT_TRUE(
      is_misplaced("tests/unit/agent/core/parts_test.cc", "// Sources: agent/core/one.h.\n" + two));
}

TEST(House, TakesATestBesideTheToolOfTestsThatItIsFor) {
  std::vector<File> files;
  for (const char* path : {"tests/unit/agent/fake.h", "tests/unit/agent/fake_test.cc",
                           "tests/unit/agent/fakes_test.cc"}) {
    files.push_back({path, "", {}});
  }
  Offenders found;
  FindMisplacedTests(files, &found);
  EXPECT_THAT(found, ElementsAre(Pair("place tests/unit/agent/fakes_test.cc", 1)));
}

Offenders WithoutASubject(const std::string& code) {
  Offenders found;
  FindCommentsWithoutASubject({{"a.h", code, ReadSource(code)}}, &found);
  return found;
}

TEST(House, FindsCommentsThatBeginInTheMiddleOfASentence) {
  EXPECT_THAT(WithoutASubject("// Of the round.\nint a;\n  // Null: there is none.\n  int b;\n"),
              ElementsAre(Pair("subject a.h", 2)));
  EXPECT_THAT(WithoutASubject("int a;  // of it\n// Else it waits.\nint b;\n"),
              ElementsAre(Pair("subject a.h", 1)));
  EXPECT_THAT(WithoutASubject("// What it holds.\n//\n// And more.\n"),
              ElementsAre(Pair("subject a.h", 1)));
}

TEST(House, FindsNoSubjectMissingWhereAParagraphGoesOnOrAnotherWordBegins) {
  EXPECT_THAT(WithoutASubject("// The store\n// Of the round.\nint a;  // Of it.\n"), IsEmpty());
  EXPECT_THAT(WithoutASubject("int a;  // The store\n        // Of the round.\nint b;\n"),
              IsEmpty());
  EXPECT_THAT(WithoutASubject("// Often called.\n\n// NullStore.\n\n// `Of` it.\n\n//\n"),
              IsEmpty());
  EXPECT_THAT(WithoutASubject("const char* a = \"\\\n// Of it.\";\n/* Of it. */ int b;\n"),
              IsEmpty());
}

TEST(House, FindsSentencesThatAreOnlyAnOpening) {
  for (const char* fragment :
       {"By path.", "As some rank.", "Between calls.", "For messages.", "Where the model is cut.",
        "Who holds it.", "Not before it is ours.", "Without its prefix: all of it.",
        "Until its lanes have ended or\n// wait for the block.", "As Make, with room for files.",
        "With the root, where two have\n// another one.", "With one option, and one that is open.",
        "As many as may wait. Others are told."}) {
    EXPECT_THAT(WithoutASubject(absl::StrCat("// ", fragment, "\nint a;\n")),
                ElementsAre(Pair("subject a.h", 1)))
        << fragment;
  }
  for (const char* sentence :
       {"Between rounds, there are no workers.", "By path. Runs aside.", "Per-rank numbers.",
        "At(5) is the sixth.", "Whose it is.", "The keys are sorted\n// By path.",
        "Where none is gathered, a parameter\n// may lie in two buckets.",
        "As one, which is rare, it is told. And so on.", "With two, they share it. It grows."}) {
    EXPECT_THAT(WithoutASubject(absl::StrCat("// ", sentence, "\nint a;\n")), IsEmpty())
        << sentence;
  }
  EXPECT_THAT(WithoutASubject("int a;  // By path.\n"), IsEmpty());
}

TEST(House, FindsOddWordsInMessagesOnly) {
  Offenders found;
  const std::string code = "// Nobody knows.\nconst char* a = \"Nobody waits\";  // nobody\n";
  for (const char* path : {"agent/a.cc", "tests/a.cc"}) {
    FindOddWordsInMessages({{path, code, ReadSource(code)}}, &found);
  }
  EXPECT_THAT(found, ElementsAre(Pair("word agent/a.cc", 1)));
}

TEST(House, FindsOddPhrasesInMessages) {
  EXPECT_EQ(OddPhrasesIn("'x' is no folder; it are  none; a GPU of its own; what\n is said"), 4);
  EXPECT_EQ(OddPhrasesIn("there is no folder, it is not one, its own GPU, it is no longer here"),
            0);
}

TEST(House, CountsColumnsInCharacters) {
  EXPECT_EQ(Columns("a…→b"), 4);
  Offenders found;
  CountWideLines({{"a.py", std::string(100, 'x') + "\n" + std::string(101, 'x') + "\n", {}}},
                 &found);
  EXPECT_THAT(found, ElementsAre(Pair("columns a.py", 1)));
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  using namespace muster::testing;
  if (argc == 2 && absl::string_view(argv[1]) == "--rewrite") {
    const Offenders listed = ReadList(ReadFile(ListPath()));
    std::ofstream(ListPath()) << WriteList(Tightened(listed, OffendersOf(Tree())));
    return 0;
  }
  if (argc == 2 && absl::string_view(argv[1]) == "--messages") {
    for (const File& file : Tree()) PrintMessages(file);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
