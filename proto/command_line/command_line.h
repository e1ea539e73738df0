// The command line of every program of the project: a table of options, and the one reader that
// turns arguments and environment variables into values by it. A new flag is one row:
//
//   options.push_back({.name = "max_restarts", .value_name = "N", .group = "Failures",
//                      .help = "restarts of the whole job after failures",
//                      .read = Into(ParseInteger, spec.max_restarts)});
//
// The grammar, the same for all programs: an option is spelled with underscores or with dashes;
// `--name=value` and `--name value` are the same; a unique beginning of a name stands for it, with
// a warning; the last value of a repeated option wins; the command line wins over variables; an
// empty variable counts as unset. Help, completion and "did you mean" are made from the table.
//
// Threads: pure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/environment.h"

namespace muster::command_line {

// One row of the table.
struct Option {
  std::string name;             // with underscores: "nproc_per_node"
  std::string value_name = {};  // in the help: "N"; empty: a flag
  std::string group = {};       // heading in the help
  std::string help = {};
  // Takes the value of a given option where it belongs (values.h has the usual ones); a flag's is
  // "1" or "0". Its message says what was expected; option and value are put in front of it.
  std::function<absl::Status(const std::string& text)> read = {};
  // Read if the option is absent; the first that is set and not empty wins.
  std::vector<std::string> variables = {};
  char short_name = 0;
  std::vector<std::string> other_names = {};  // spellings that are understood but not shown
  std::string field = {};   // what a check of the finished values calls it; empty: as `name`
  bool is_list = false;     // takes one value or more; repeated, it adds to them
  bool may_differ = false;  // between the processes of a job: TextOfCommonValues leaves it out
};

// What a program's command line looks like.
struct Grammar {
  std::string program;  // "muster run"
  std::string usage;    // lines of the help in front of the options
  std::string footer = {};
  std::vector<Option> options;  // without help, version and print_completion: every program's
  // Options end at the first argument that is none, or at `--`; what follows is the caller's.
  // False: there is nothing but options.
  bool ends_at_script = false;
  // Words between the options are the caller's, in CommandLine::script.
  bool has_words = false;
  std::vector<std::string> also_called = {};  // commands that take the same line, for completion
};

// One option as it was given.
struct Given {
  std::vector<std::string> texts;  // of a list all, else the one that counts
  std::string source;              // "--nproc_per_node" or "PET_NPROC_PER_NODE", for messages
  bool is_typed = false;           // as an option of the line
  const std::string& text() const { return texts.back(); }
};

struct CommandLine {
  std::map<std::string, Given> values;  // by Option::name
  // The script and its arguments, byte for byte, but for a `--` between them.
  std::vector<std::string> script;
  std::vector<std::string> warnings;
  std::string print;  // not empty: help or the like, to be printed instead of doing anything

  // nullptr if the option was not given.
  const Given* Find(absl::string_view name) const;
  bool IsOn(absl::string_view flag) const;
};

// Takes the arguments apart (without the program's name); no value is read yet.
//
// Errors: kInvalidArgument naming the option: unknown (with the nearest spelling), the beginning of
// several, without its value, a flag with a value, a flag's variable that is not a yes or no; an
// argument that belongs to no option.
absl::StatusOr<CommandLine> Split(const Grammar& grammar, const std::vector<std::string>& args,
                                  const EnvironmentMap& environment);

// Gives every value of `line` to its row, in the order of the table.
//
// Errors: those of the rows' `read`, with source and value in front: "--nnodes=x: expected ...".
absl::Status ReadValues(const Grammar& grammar, const CommandLine& line);

// What has to be alike in all processes of a job: a line "--name=value" for each row of the table,
// "--name=not given" for those that `line` lacks.
std::string TextOfCommonValues(const Grammar& grammar, const CommandLine& line);

// `status` of a check of finished values, in the words of the command line: a FieldError
// (proto/base/field_error.h) of a row's field begins with that row's option; one of an option
// ("--max_restarts=-1: ...") whose value came out of a variable or a file names that too. What is
// none stays as it is.
absl::Status InWordsOf(const Grammar& grammar, const CommandLine& line, const absl::Status& status);

// "--source=value"
std::string InWords(absl::string_view source, absl::string_view value);
// A FieldError of `source`: "--source=value: why", with the code of `why`. OK stays OK.
absl::Status At(absl::string_view source, absl::string_view value, const absl::Status& why);

// "--nproc_per_node", "--nproc-per-node", and so on for every option and every other name of one.
std::vector<std::string> Spellings(const Grammar& grammar);

// The rows of the grammar and the ones that every program has.
std::vector<Option> AllOptions(const Grammar& grammar);

}  // namespace muster::command_line
