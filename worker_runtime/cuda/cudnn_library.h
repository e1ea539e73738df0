// cuDNN, opened at run time: a program that has this starts on machines without it. Of its
// interfaces only that of graphs.
#pragma once

#include <cudnn_graph.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::cudnn {

struct Library {
  std::string path;  // the file that was opened
  decltype(&cudnnGetVersion) get_version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendExecute) execute;

  std::string version() const;  // "9.19.0"
  std::string name() const;     // as NameCudnn
  // Status of the call `what`. Errors: kUnimplemented: not supported; kInternal; with its words.
  absl::Status ToStatus(cudnnStatus_t status, absl::string_view what) const;
};

// The library from where the dynamic loader looks, else PyTorch's pip packages, else where this
// program was built. It stays open.
//
// Errors: kUnavailable: it cannot be loaded, or is too old.
absl::StatusOr<std::shared_ptr<const Library>> OpenLibrary();

}  // namespace muster::cudnn
