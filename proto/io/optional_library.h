// A shared library that a program opens at run time, because not every machine has it: NVIDIA's,
// all of them. The program starts without it, and says what was tried when it is asked for.
//
//   MUSTER_ASSIGN_OR_RETURN(
//       const OptionalLibrary library,
//       OptionalLibrary::Open({.name = "the NCCL library", .file_names = {"libnccl.so.2"}}));
//   MUSTER_RETURN_IF_ERROR(library.Load({{"ncclSend", functions.send},
//                                        {"ncclCommRevoke", functions.revoke, MayLack::kYes}}));
//
// Threads: compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster {

enum class MayLack { kNo, kYes };

// A row of a table of functions: the library's name of a function, and the pointer that gets it.
class LibraryFunction {
 public:
  template <typename Function>
  LibraryFunction(const char* name, Function*& pointer, MayLack may_lack = MayLack::kNo)
      : name_(name), may_lack_(may_lack), pointer_(&pointer), set_([](void* at, void* symbol) {
          *static_cast<Function**>(at) = reinterpret_cast<Function*>(symbol);
        }) {}

  const char* name() const { return name_; }
  bool may_lack() const { return may_lack_ == MayLack::kYes; }
  // `symbol` is what dlsym gave; null: the library lacks the function.
  void Set(void* symbol) const { set_(pointer_, symbol); }

 private:
  const char* name_;
  MayLack may_lack_;
  void* pointer_;
  void (*set_)(void* at, void* symbol);
};

struct LibrarySearch {
  std::string name;                     // for messages: "the NCCL library"
  std::vector<std::string> file_names;  // the dynamic loader is asked for each, in this order
  // Folders that are tried after the dynamic loader, each with all of the names.
  std::vector<std::string> folders = {};
  std::string last_path = {};  // a file that is tried after those; empty: none
  std::string advice = {};     // the end of the message: "install NCCL"
  // The library stays in memory when its OptionalLibrary goes. NVIDIA's have threads.
  bool stays_loaded = true;
};

class OptionalLibrary {
 public:
  // Errors: kUnavailable: nothing can be loaded; says what was tried, and the loader's reasons.
  static absl::StatusOr<OptionalLibrary> Open(const LibrarySearch& search);

  // Fills the table. On an error all of it is filled, too.
  //
  // Errors: kUnavailable: names the functions that the library lacks and may not.
  absl::Status Load(absl::Span<const LibraryFunction> table) const;

  // The function of that name; null if the library lacks it.
  template <typename Function>
  Function Find(const char* function) const {
    return reinterpret_cast<Function>(Symbol(function));
  }

  // The file that was taken.
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  OptionalLibrary(void* handle, std::string name);
  void* Symbol(const char* function) const;

  std::unique_ptr<void, Close> handle_;
  std::string name_;
  std::string path_;
};

// The folders in which pip packages of NVIDIA keep their shared libraries, such as
// ENVIRONMENT/lib/python3.11/site-packages/nvidia/nccl/lib for the package "nccl": those that
// exist, in the order of environments and packages.
std::vector<std::string> FoldersOfPackages(absl::Span<const std::string> environments,
                                           absl::Span<const std::string> packages);

// The Python environments that this process may belong to, the likeliest first: the one whose bin/
// has the program, and the one that is active (VIRTUAL_ENV, CONDA_PREFIX).
std::vector<std::string> OwnPythonEnvironments();

}  // namespace muster
