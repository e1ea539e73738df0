#include "launcher/node/local_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::launcher {

EnvironmentMap LocalCacheVariables(const std::string& folder, const EnvironmentMap& environment) {
  EnvironmentMap variables;
  for (const auto& [name, part] :
       {std::pair("TORCHINDUCTOR_CACHE_DIR", "inductor"), std::pair("TRITON_CACHE_DIR", "triton"),
        std::pair("TORCH_EXTENSIONS_DIR", "torch_extensions"),
        std::pair("PYTORCH_KERNEL_CACHE_PATH", "torch_kernels"),
        std::pair("CUDA_CACHE_PATH", "cuda")}) {
    if (!environment.contains(name)) variables[name] = absl::StrCat(folder, "/", part);
  }
  return variables;
}

absl::Status MakeLocalCache(const EnvironmentMap& variables) {
  for (const auto& variable : variables) {
    const std::string& folder = variable.second;
    const auto refuse = [&variable](const std::string& why) {
      return absl::InvalidArgumentError(
          absl::StrCat("--local_cache: ", variable.second, " for ", variable.first, ": ", why));
    };
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
    if (error) return refuse(error.message());
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return refuse(std::strerror(errno));
    struct stat info;
    if (::lstat(folder.c_str(), &info) != 0) return refuse(std::strerror(errno));
    if (!S_ISDIR(info.st_mode)) return refuse("it is not a folder");
    if (info.st_uid != ::geteuid()) {
      return refuse("it belongs to another user; name a folder of your own");
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) return refuse(std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace muster::launcher
