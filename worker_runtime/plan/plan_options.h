// The command line options that muster-train and `muster plan` share.
//
//   CLI::App app;
//   plan::PlanOptionsParser parser(app);
//   MUSTER_RETURN_IF_ERROR(plan::ParseArguments(app, args));   // arguments.h
//   MUSTER_ASSIGN_OR_RETURN(plan::PlanOptions options, parser.Finish());
//
// Every option is spelled with underscores or with dashes; a repeated option's last value wins.
// What a value may be is said in one place, GptConfig::Validate and Plan::Validate.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "muster/dtype.h"
#include "muster/gpt_config.h"
#include "muster/plan.h"

namespace CLI {
class App;
}

namespace muster::plan {

struct PlanOptions {
  Plan plan;
  GptConfig model;
  int64_t batch_size = 4;  // sequences per rank and micro-batch
  int64_t steps = 200;
  DType dtype = DType::kF32;
};

// Adds the options to `app`, which outlives the parser; reads them after app.parse.
class PlanOptionsParser {
 public:
  explicit PlanOptionsParser(CLI::App& app);
  ~PlanOptionsParser();

  // The values, once `app` has parsed; sizes that were not given are those of `model`.
  //
  // Errors: kInvalidArgument naming the flag, the value and what was expected; kUnimplemented: a
  //         value or flag of a later version.
  absl::StatusOr<PlanOptions> Finish(const GptConfig& model = GptConfig()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::plan
