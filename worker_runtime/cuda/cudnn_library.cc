#include "worker_runtime/cuda/cudnn_library.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::cudnn {
namespace {

// Until 9.15 sequences that are no multiple of 128 need their lengths as arrays for the gradients.
// Source: NVIDIA's cudnn-frontend 1.32, which gives them so.
constexpr size_t kOldestVersion = 91600;

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Names of functions that it lacks.
std::vector<std::string> LoadFunctions(void* handle, Library& out) {
  std::vector<std::string> missing;
  const auto load = [&](const char* name, auto& function) {
    void* const symbol = dlsym(handle, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    if (symbol == nullptr) missing.push_back(name);
  };
  load("cudnnGetVersion", out.get_version);
  load("cudnnGetErrorString", out.error_string);
  load("cudnnGetLastErrorString", out.last_error);
  load("cudnnCreate", out.create);
  load("cudnnDestroy", out.destroy);
  load("cudnnSetStream", out.set_stream);
  load("cudnnBackendCreateDescriptor", out.create_descriptor);
  load("cudnnBackendDestroyDescriptor", out.destroy_descriptor);
  load("cudnnBackendFinalize", out.finalize);
  load("cudnnBackendSetAttribute", out.set_attribute);
  load("cudnnBackendGetAttribute", out.get_attribute);
  load("cudnnBackendExecute", out.execute);
  return missing;
}

}  // namespace

std::string Library::version() const { return VersionText(get_version()); }

absl::Status Library::ToStatus(cudnnStatus_t status, absl::string_view what) const {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 1024> words = {};
  last_error(words.data(), words.size());
  const std::string text = absl::StrCat("cuDNN ", version(), ": ", what, ": ", error_string(status),
                                        words[0] == '\0' ? "" : " ", words.data());
  constexpr int kCategory = 1000;
  if (status / kCategory * kCategory == CUDNN_STATUS_NOT_SUPPORTED) {
    return absl::UnimplementedError(text);
  }
  return absl::InternalError(text);
}

absl::StatusOr<std::shared_ptr<const Library>> OpenLibrary() {
  void* handle = nullptr;
  std::string why;
  for (const std::string& path :
       {absl::StrCat("libcudnn.so.", CUDNN_MAJOR), std::string(MUSTER_CUDNN_LIBRARY_PATH)}) {
    if (path.empty()) continue;  // would be this program
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (handle == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("the cuDNN library cannot be loaded: ", why,
                     "; install cuDNN, or add its folder to LD_LIBRARY_PATH"));
  }
  auto library = std::make_shared<Library>();
  const std::vector<std::string> missing = LoadFunctions(handle, *library);
  if (!missing.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the cuDNN library lacks ", absl::StrJoin(missing, ", ")));
  }
  if (library->get_version() < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("the cuDNN library is version ", library->version(),
                                               "; it needs to be ", VersionText(kOldestVersion),
                                               " or newer"));
  }
  return std::shared_ptr<const Library>(std::move(library));
}

}  // namespace muster::cudnn
