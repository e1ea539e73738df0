// A model as transformers saves it: a directory with config.json and safetensors, in one file or
// several with an index.
//
//   MUSTER_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open("Llama-3.2-1B"));
//   DecoderConfig config = files.config();
//   config.context = 2048;
//   MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> model, Decoder::Create(config, store));
//   MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(world, store, …));
//   MUSTER_RETURN_IF_ERROR(engine->LoadModel(files));
//
// Models: GPT-2, Llama 2 and 3, Mistral, Qwen 2.5, Qwen 3, Granite.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "muster/decoder_config.h"

namespace muster {

namespace checkpoint {
class Checkpoint;
}

// Threads: thread-compatible; copies share what they read by, so that one thread uses them at a
// time.
class ModelFiles {
 public:
  // Reads config.json, the index, the headers and a sample of each tensor. Weights are of f32, bf16
  // or f16.
  //
  // Errors: kNotFound: a file that it needs; kInvalidArgument: a configuration that is not computed
  //         here; a tensor that is missing, left over, of another shape or of no such type; an
  //         index that disagrees with its files, or names one elsewhere; a damaged file; all by
  //         name. The file system's.
  static absl::StatusOr<ModelFiles> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // "llama", as config.json calls it.
  const std::string& type() const { return type_; }
  // Its context is the longest that the model was made for; one that is shorter fits, too.
  const DecoderConfig& config() const { return config_; }
  int64_t num_bytes() const { return num_bytes_; }  // of weights
  // 64 hex digits of config.json, the tensors' types and shapes, and some elements from the middle
  // of each, by which weights of the same model are told apart.
  const std::string& id() const { return id_; }

  // What Engine::LoadModel reads.
  const checkpoint::Checkpoint& opened() const { return *opened_; }

 private:
  ModelFiles() = default;

  std::string directory_;
  std::string type_;
  DecoderConfig config_;
  int64_t num_bytes_ = 0;
  std::string id_;
  std::shared_ptr<const checkpoint::Checkpoint> opened_;
};

}  // namespace muster
