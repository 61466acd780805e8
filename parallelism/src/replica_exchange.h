// What replicas exchange of the weights that they hold alike: weights are gathered, gradients are summed.
#pragma once

#include <array>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model_parts.h"
#include "program_writer.h"
#include "shape.h"

namespace ns_dist {

// Whether weights are gathered in the products' format. Where factors follow small blocks, both copies of a weight are
// cast from 16 bits when they have come (Megatron-Core, --reuse-grad-buf-for-mxfp8-param-ag).
bool gathers_casts(const ParallelPlan& plan, const Shape& shape);

// Of rank 0, the collectives that gather weights and sum gradients. Keeps references to plan and shape.
class ReplicaCollectives {
 public:
  // `shares`: by stage. All stages have the padding of the one that has most.
  ReplicaCollectives(const ParallelPlan& plan, const Shape& shape, const Mesh& mesh,
                     std::span<const MatrixShares> shares);

  // In the buffers that are reduced and gathered.
  RankParameters in_buffers(const RankParameters& parameters) const {
    return padded(parameters, padding_, expert_padding_);
  }
  // Bytes of the weights of all experts, or of all others.
  Bytes gathered_size(const RankParameters& held, bool experts) const;
  std::vector<WorkItem> gathers(const RankParameters& parameters) const;
  std::vector<WorkItem> reductions(const RankParameters& parameters) const;

 private:
  const ParallelPlan& plan_;
  const Shape& shape_;
  double padding_ = 1, expert_padding_ = 1;  // MatrixShares
  std::array<ReplicaGroups, 2> groups_;      // of layers without experts, of experts
};

// Collects parts until they are large enough to travel together, those of experts apart from all others.
class FillingBuckets {
 public:
  // What travels now that `part` has come, where at least so many parameters do.
  RankParameters add(const RankParameters& part, double least);
  // What still waits.
  RankParameters rest();

 private:
  RankParameters experts_, others_;
};

// Keeps references to all that it is made of.
class ReplicaExchange {
 public:
  // `one_table`: reads_one_table. `shares`: by stage.
  ReplicaExchange(const ParallelPlan& plan, const Shape& shape, const ModelParts& parts, bool one_table,
                  std::span<const MatrixShares> shares, ProgramWriter& writer);

  // part_parameters.
  RankParameters parameters(Part part, RankParameters ModelPart::*which = &ModelPart::parameters) const;

  RankParameters in_buffers(const RankParameters& parameters) const { return collectives_.in_buffers(parameters); }

  // What of them is gathered once a step (gathers_weights_once): what was updated, and where FSDP2 drops all weights
  // behind a step, what is frozen.
  RankParameters gathered_once(Part part) const;

  // What gathers the weights of a part, or of `parameters`, on all ranks that share them. Frozen weights are gathered
  // where weights are shared.
  std::span<const WorkId> gathers(Part part);
  std::span<const WorkId> gathers(const RankParameters& parameters);
  // What sums their gradients over all replicas: each rank gets its share, or all of it where nothing is shared. Where
  // only some replicas share, their shares are summed over the others.
  std::span<const WorkId> reductions(Part part);
  std::span<const WorkId> reductions(const RankParameters& parameters);
  // Of a part whose gradients a round added up in a whole buffer (ReduceEach::kRound): their reductions, the addition
  // of the rank's share to its sum, and the clearing of the buffer for a later round, one behind the other. Gradients
  // of which no other rank has a copy are added up where they stay.
  std::span<const WorkId> reductions_of_round(Part part);
  // What is copied from the host before they are gathered: a rank's part of them, as the optimizer there has it, or in
  // the format that is gathered (PyTorch, _flat_param.py, _use_low_precision_shard; DeepSpeed,
  // partitioned_param_swapper.py and partition_parameters.py).
  Bytes loaded(Part part) const;
  // What a pass does with the weights of a part that it gathered: FSDP2 copies them out of the buffer, and operands in
  // the products' format are cast from it, for this pass alone. The casts of a pass are not kept, because the weights
  // are not (torchao, float8 training; TransformerEngine with FSDP).
  std::span<const WorkId> unpackings(Part part);
  // Sums are divided by the number of replicas before they are reduced (Megatron-Core, param_and_grad_buffer.py:
  // `grad_data *= gradient_scaling_factor`), unless the reduction does it (its average_in_collective).
  void scale_gradients(const RankParameters& parameters, std::int64_t layer, Bodies& body);

 private:
  using OfParts = std::vector<std::optional<std::vector<WorkId>>>;
  // By what they exchange. A list holds its elements where they are.
  using Known = std::list<std::pair<RankParameters, std::vector<WorkId>>>;

  const ParallelPlan& plan_;
  const Shape& shape_;
  const ModelParts& parts_;
  bool one_table_;
  ProgramWriter& writer_;
  ReplicaCollectives collectives_;
  Known gathers_, reductions_;
  OfParts unpackings_, of_rounds_;
};

}  // namespace ns_dist
