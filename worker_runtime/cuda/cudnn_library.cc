#include "worker_runtime/cuda/cudnn_library.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/optional_library.h"

namespace muster::cudnn {
namespace {

// Until 9.15 sequences that are no multiple of 128 need their lengths as arrays for the gradients.
// Source: NVIDIA's cudnn-frontend 1.32, which gives them so.
constexpr size_t kOldestVersion = 91600;

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

std::string Library::version() const { return VersionText(get_version()); }

std::string Library::name() const { return absl::StrCat("cuDNN ", version(), " (", path, ")"); }

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
  MUSTER_ASSIGN_OR_RETURN(
      const OptionalLibrary opened,
      OptionalLibrary::Open({.name = "the cuDNN library",
                             .file_names = {absl::StrCat("libcudnn.so.", CUDNN_MAJOR)},
                             .folders = FoldersOfPackages(OwnPythonEnvironments(), {"cudnn"}),
                             .last_path = MUSTER_CUDNN_LIBRARY_PATH,
                             .advice = "install cuDNN, or add its folder to LD_LIBRARY_PATH"}));
  auto library = std::make_shared<Library>();
  library->path = opened.path();
  MUSTER_RETURN_IF_ERROR(
      opened.Load({{"cudnnGetVersion", library->get_version},
                   {"cudnnGetErrorString", library->error_string},
                   {"cudnnGetLastErrorString", library->last_error},
                   {"cudnnCreate", library->create},
                   {"cudnnDestroy", library->destroy},
                   {"cudnnSetStream", library->set_stream},
                   {"cudnnBackendCreateDescriptor", library->create_descriptor},
                   {"cudnnBackendDestroyDescriptor", library->destroy_descriptor},
                   {"cudnnBackendFinalize", library->finalize},
                   {"cudnnBackendSetAttribute", library->set_attribute},
                   {"cudnnBackendGetAttribute", library->get_attribute},
                   {"cudnnBackendExecute", library->execute}}));
  if (library->get_version() < kOldestVersion) {
    return absl::UnavailableError(
        absl::StrCat("the cuDNN library (", library->path, ") is version ", library->version(),
                     "; it needs to be ", VersionText(kOldestVersion), " or newer"));
  }
  return std::shared_ptr<const Library>(std::move(library));
}

}  // namespace muster::cudnn
