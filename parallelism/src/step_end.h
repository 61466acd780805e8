// What a stage does behind its passes: sums of gradients that several stages hold, then the gradient norm of all
// stages, clipping, the optimizer, and the new weights to all replicas.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "program_writer.h"
#include "replica_exchange.h"
#include "shape.h"

namespace ns_dist {

// Keeps references to all that it is made of.
class StepEnd {
 public:
  // Adds the meetings of the stages to the program. `layers` by position.
  StepEnd(const ParallelPlan& plan, const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
          ProgramWriter& writer, ReplicaExchange& replicas);

  // A stage trains `held`, of whose matrices ranks have these `shares`, and gathers `gathered` once a step.
  struct Stage {
    RankParameters held, gathered;
    MatrixShares shares;
    friend bool operator==(const Stage&, const Stage&) = default;
  };
  // To the last body of `bodies`.
  void add(std::int64_t stage, const Stage& of, Bodies& bodies);

 private:
  // What depends on the parameters of a stage alone is made once for stages on end that hold the same.
  struct OfParameters {
    std::optional<Stage> stage;
    Bodies body;
  };
  template <class Make>
  static void once(OfParameters& known, const Stage& of, Bodies& body, Make make);

  std::uint32_t meeting(std::uint32_t actors);
  RankGroup two_stages(std::int64_t first, std::int64_t last) const;
  void reduce_gradients(const RankParameters& held, Bodies& body);
  void sum_gradients(std::int64_t stage, const RankParameters& held, Bodies& body);
  void optimize(const Stage& of, Bodies& body);
  void cast_gradients(std::int64_t count, Bodies& body);
  void gather_weights(const RankParameters& gathered, Bodies& body);
  void update(double owned, Bodies& body);
  void update_matrices(const Matrices& matrices, Bodies& body);
  void update_parts(const MatrixShares& shares, Bodies& body);
  std::vector<WorkItem> exchanges(std::string_view name, const MatrixShares& shares) const;
  void cast_weights(std::int64_t count, Bodies& body);
  DType read_gradients() const;
  bool casts_weights() const;
  Elementwise cast_of_weights(std::int64_t count) const;
  DType updated_type() const;
  OperatorKind adam(std::int64_t parameters) const;

  const ParallelPlan& plan_;
  const Shape& shape_;
  ProgramWriter& writer_;
  ReplicaExchange& replicas_;
  std::optional<std::uint32_t> embedding_meeting_, norm_meeting_;
  std::vector<std::uint32_t> mirror_meetings_;  // by stage
  std::int64_t first_holder_, second_holder_;   // stages that read the embedding's table
  std::optional<WorkId> norm_;                  // the sum of the squares of all stages
  OfParameters reductions_, optimizer_;
};

}  // namespace ns_dist
