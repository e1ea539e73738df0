#include "proto/io/optional_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/io/read_file.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Tries one file after another, and remembers what came of it.
class Attempts {
 public:
  explicit Attempts(bool stays_loaded)
      : mode_(RTLD_NOW | RTLD_LOCAL | (stays_loaded ? RTLD_NODELETE : 0)) {}

  // `file` without a slash is looked for by the dynamic loader. Null: it cannot be loaded.
  void* Try(const std::string& file) {
    void* const handle = ::dlopen(file.c_str(), mode_);
    if (handle == nullptr) reasons_.push_back(::dlerror());
    return handle;
  }
  // A file that does not exist is no reason worth telling.
  void* TryIn(const std::string& folder, const std::string& file_name) {
    const std::string path = absl::StrCat(folder, "/", file_name);
    if (::access(path.c_str(), F_OK) == 0) return Try(path);
    folders_without_.insert(folder);
    return nullptr;
  }

  std::string Told() const {
    std::string told = absl::StrJoin(reasons_, "; ");
    if (!folders_without_.empty()) {
      absl::StrAppend(&told, "; not in ", absl::StrJoin(folders_without_, " or "), " either");
    }
    return told;
  }

 private:
  const int mode_;
  std::vector<std::string> reasons_;
  std::set<std::string> folders_without_;
};

void* OpenFirst(const LibrarySearch& search, Attempts& attempts) {
  for (const std::string& name : search.file_names) {
    if (void* const handle = attempts.Try(name)) return handle;
  }
  for (const std::string& folder : search.folders) {
    for (const std::string& name : search.file_names) {
      if (void* const handle = attempts.TryIn(folder, name)) return handle;
    }
  }
  return search.last_path.empty() ? nullptr : attempts.Try(search.last_path);
}

// The directories in which the environment's interpreters look for packages. RHEL has packages with
// machine code in lib64, and Debian's own interpreter has its packages in dist-packages.
std::vector<fs::path> PackageRoots(const std::string& environment) {
  std::vector<fs::path> roots;
  for (const char* lib : {"lib", "lib64"}) {
    std::error_code error;
    if (fs::is_symlink(fs::path(environment) / lib, error)) continue;  // to the other one
    const fs::path folder = fs::path(environment) / lib;
    for (const std::string& python : NamesIn(folder)) {
      if (!absl::StartsWith(python, "python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        roots.push_back(folder / python / packages);
      }
    }
  }
  return roots;
}

}  // namespace

void OptionalLibrary::Close::operator()(void* handle) const { ::dlclose(handle); }

OptionalLibrary::OptionalLibrary(void* handle, std::string name)
    : handle_(handle), name_(std::move(name)) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) path_ = map->l_name;
}

absl::StatusOr<OptionalLibrary> OptionalLibrary::Open(const LibrarySearch& search) {
  Attempts attempts(search.stays_loaded);
  void* const handle = OpenFirst(search, attempts);
  if (handle != nullptr) return OptionalLibrary(handle, search.name);
  return absl::UnavailableError(absl::StrCat(search.name, " cannot be loaded: ", attempts.Told(),
                                             search.advice.empty() ? "" : "; ", search.advice));
}

absl::Status OptionalLibrary::Load(absl::Span<const LibraryFunction> table) const {
  std::vector<std::string> missing;
  for (const LibraryFunction& function : table) {
    void* const symbol = Symbol(function.name());
    function.Set(symbol);
    if (symbol == nullptr && !function.may_lack()) missing.push_back(function.name());
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name_, " (", path_, ") lacks ", absl::StrJoin(missing, ", ")));
}

void* OptionalLibrary::Symbol(const char* function) const {
  return ::dlsym(handle_.get(), function);
}

std::vector<std::string> FoldersOfPackages(absl::Span<const std::string> environments,
                                           absl::Span<const std::string> packages) {
  std::vector<std::string> folders;
  for (const std::string& environment : environments) {
    for (const fs::path& root : PackageRoots(environment)) {
      for (const std::string& package : packages) {
        const fs::path folder = root / "nvidia" / package / "lib";
        std::error_code error;
        if (fs::is_directory(folder, error)) folders.push_back(folder.string());
      }
    }
  }
  return folders;
}

std::vector<std::string> OwnPythonEnvironments() {
  std::vector<std::string> environments;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (program.parent_path().filename() == "bin") {
    environments.push_back(program.parent_path().parent_path().string());
  }
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const active = std::getenv(variable);
    if (active != nullptr && *active != '\0') environments.push_back(active);
  }
  return environments;
}

}  // namespace muster
