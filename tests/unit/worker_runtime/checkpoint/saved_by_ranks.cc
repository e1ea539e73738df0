#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "tests/support/files.h"

namespace muster::checkpoint {
namespace {

constexpr char kValue[] = "value";

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

bool IsOfModel(const std::string& name) { return name.find("moment.") == std::string::npos; }

}  // namespace

int64_t WholeArray::num_elements() const { return ElementsOf(array.shape); }

WholeArray Floats(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<float>& values) {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == ElementsOf(shape));
  return {{name, DType::kF32, shape, IsOfModel(name)},
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
}

WholeArray RandomBits(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                      std::mt19937& random) {
  std::string bytes(static_cast<size_t>(ElementsOf(shape)) * SizeOf(dtype), '\0');
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint32_t)) {
    const uint32_t bits = static_cast<uint32_t>(random());
    std::memcpy(&bytes[at], &bits, std::min(sizeof(bits), bytes.size() - at));
  }
  return {{name, dtype, shape, IsOfModel(name)}, std::move(bytes)};
}

std::vector<ArrayToWrite> ToWrite(const WholeArrays& arrays) {
  std::vector<ArrayToWrite> to_write;
  for (const WholeArray& whole : arrays) to_write.push_back(whole.array);
  return to_write;
}

SliceBytes BytesIn(const WholeArrays& arrays) {
  return [&arrays](size_t array, int64_t first, int64_t count) -> absl::string_view {
    const size_t size = SizeOf(arrays[array].array.dtype);
    return absl::string_view(arrays[array].bytes)
        .substr(static_cast<size_t>(first) * size, static_cast<size_t>(count) * size);
  };
}

SlicesByRank EvenSlices(const WholeArrays& arrays, int world_size) {
  SlicesByRank slices(static_cast<size_t>(world_size));
  for (size_t i = 0; i < arrays.size(); ++i) {
    const int64_t elements = arrays[i].num_elements();
    for (int rank = 0; rank < world_size; ++rank) {
      const int64_t first = elements * rank / world_size;
      const int64_t end = elements * (rank + 1) / world_size;
      if (end > first) slices[static_cast<size_t>(rank)].push_back({i, first, end - first});
    }
  }
  return slices;
}

SlicesByRank RandomSlices(const WholeArrays& arrays, int world_size, int parts_max,
                          std::mt19937& random) {
  SlicesByRank slices(static_cast<size_t>(world_size));
  const auto below = [&random](int64_t limit) { return static_cast<int64_t>(random()) % limit; };
  for (size_t i = 0; i < arrays.size(); ++i) {
    const int64_t elements = arrays[i].num_elements();
    std::vector<int64_t> ends = {elements};
    for (int64_t cuts = below(parts_max); cuts > 0; --cuts) ends.push_back(below(elements + 1));
    std::sort(ends.begin(), ends.end());
    int64_t first = 0;
    for (const int64_t end : ends) {
      if (end == first) continue;
      slices[static_cast<size_t>(below(world_size))].push_back({i, first, end - first});
      first = end;
    }
  }
  for (std::vector<Slice>& of_rank : slices) std::shuffle(of_rank.begin(), of_rank.end(), random);
  return slices;
}

absl::StatusOr<WrittenFile> WriteAsRank(const std::string& hidden, int rank,
                                        const SavedState& saved) {
  return WriteSlices(hidden, NameOfSlices(rank), ToWrite(saved.arrays),
                     saved.slices[static_cast<size_t>(rank)], BytesIn(saved.arrays));
}

absl::StatusOr<std::string> SaveByRanks(const std::string& directory, const SavedState& saved,
                                        const Commit& commit) {
  MUSTER_ASSIGN_OR_RETURN(
      NewCheckpoint checkpoint,
      NewCheckpoint::Begin(absl::StrCat(directory, "/", NameOfStep(saved.state.step)),
                           saved.state));
  std::vector<WrittenFile> files;
  for (size_t rank = 0; rank < saved.slices.size(); ++rank) {
    MUSTER_ASSIGN_OR_RETURN(const WrittenFile file,
                            WriteAsRank(checkpoint.hidden(), static_cast<int>(rank), saved));
    MUSTER_ASSIGN_OR_RETURN(WrittenFile sent, WrittenFile::Decode(file.Encode()));
    files.push_back(std::move(sent));
  }
  MUSTER_ASSIGN_OR_RETURN(const Manifest manifest,
                          ManifestOf(saved.state, ToWrite(saved.arrays), files));
  MUSTER_RETURN_IF_ERROR(checkpoint.Publish(manifest, commit));
  RemoveLeftovers(directory);
  return checkpoint.place();
}

SavedState StateOf(int64_t step, float value) {
  SavedState saved;
  saved.state.step = step;
  saved.state.plan = {{"kind", "ddp"}};
  saved.state.metadata = {{kValue, std::to_string(value)}};
  for (const char* name : {"w", "first_moment.w", "second_moment.w"}) {
    saved.arrays.push_back(Floats(name, {2, 3}, std::vector<float>(6, value)));
  }
  saved.slices = EvenSlices(saved.arrays, 2);
  return saved;
}

absl::StatusOr<std::string> ReadRange(const Checkpoint& checkpoint, const SlicedArrays& arrays,
                                      const std::string& name, int64_t first, int64_t count) {
  const DType dtype = arrays.at(name).dtype;
  std::string bytes(static_cast<size_t>(count) * SizeOf(dtype), '?');
  MUSTER_RETURN_IF_ERROR(checkpoint.Read(arrays, name, first, {bytes.data(), count, dtype}));
  return bytes;
}

absl::StatusOr<std::string> ReadWhole(const Checkpoint& checkpoint, const SlicedArrays& arrays,
                                      const std::string& name) {
  return ReadRange(checkpoint, arrays, name, 0, arrays.at(name).num_elements());
}

absl::StatusOr<float> ValueIn(const Checkpoint& checkpoint) {
  const float value = std::stof(checkpoint.state().metadata.at(kValue));
  for (const SlicedArrays* arrays :
       {&checkpoint.manifest().model, &checkpoint.manifest().optimizer}) {
    for (const auto& [name, array] : *arrays) {
      std::vector<float> read(static_cast<size_t>(array.num_elements()));
      MUSTER_RETURN_IF_ERROR(checkpoint.Read(*arrays, name, 0, BufferOf(read)));
      if (std::count(read.begin(), read.end(), value) == array.num_elements()) continue;
      return absl::InternalError(absl::StrCat(name, " is a mixture: it is not all ", value));
    }
  }
  return value;
}

absl::StatusOr<float> ValueIn(const std::string& path) {
  MUSTER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return ValueIn(checkpoint);
}

absl::StatusOr<std::string> NewestIn(const std::string& directory) {
  MUSTER_ASSIGN_OR_RETURN(CheckpointSearch search, CheckpointSearch::In(directory));
  MUSTER_ASSIGN_OR_RETURN(const Checkpoint newest, search.Next());
  return newest.path();
}

PlaceOfByte PlaceOf(const Checkpoint& checkpoint, const SlicedArray& array, int64_t element) {
  for (const Piece& piece : array.pieces) {
    if (element >= piece.elements) {
      element -= piece.elements;
      continue;
    }
    const std::string& file = checkpoint.manifest().files[static_cast<size_t>(piece.file)].name;
    return {absl::StrCat(checkpoint.path(), "/", file),
            piece.offset + element * static_cast<int64_t>(SizeOf(array.dtype))};
  }
  MUSTER_CHECK(false);
  return {};
}

void FlipByte(const PlaceOfByte& place) {
  std::fstream file(place.path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(place.offset);
  const int byte = file.get();
  file.seekp(place.offset);
  file.put(static_cast<char>(byte ^ 0x80));
  file.close();
  MUSTER_CHECK(byte != EOF && file.good());
}

void FlipLastByte(const std::string& file) {
  FlipByte({file, static_cast<int64_t>(testing::ReadFile(file).size()) - 1});
}

absl::Status ReadAll(const Checkpoint& checkpoint) {
  std::string block(kDigestBlockBytes, '\0');
  for (const SlicedArrays* arrays :
       {&checkpoint.manifest().model, &checkpoint.manifest().optimizer}) {
    for (const auto& [name, array] : *arrays) {
      const int64_t at_once = kDigestBlockBytes / static_cast<int64_t>(SizeOf(array.dtype));
      for (int64_t first = 0; first < array.num_elements(); first += at_once) {
        const int64_t count = std::min(at_once, array.num_elements() - first);
        MUSTER_RETURN_IF_ERROR(
            checkpoint.Read(*arrays, name, first, {block.data(), count, array.dtype}));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::checkpoint
