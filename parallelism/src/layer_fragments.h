// Fragments of a layer's pass and of what runs beside it or behind it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model_parts.h"
#include "program_writer.h"
#include "replica_exchange.h"
#include "shape.h"

namespace ns_dist {

// A pass through one part, and what runs beside it: gathering of one part's weights, reduction of another's gradients,
// activations of a third to the host or from there. Before it, what makes operands of weights that were gathered.
struct BesidePass {
  std::optional<FragmentId> kernels = {};
  std::optional<Part> gathers = {}, reduces = {}, stores = {}, loads = {}, unpacks = {};
  friend bool operator==(const BesidePass&, const BesidePass&) = default;
};

// Makes each fragment once. Keeps references to all that it is made of.
class LayerFragments {
 public:
  LayerFragments(const ParallelPlan& plan, const Shape& shape, const ModelParts& parts, ProgramWriter& writer,
                 ReplicaExchange& replicas);

  FragmentId with(const BesidePass& beside);

  // Ranks of a stage whose products' factors follow the largest values of all of them.
  bool has_agreeing_ranks() const { return !agreeing_.empty(); }
  // `behind`, and behind it the all-reduce of the largest values of `products` products.
  FragmentId agreed(std::optional<FragmentId> behind, bool forward, std::int64_t products);

 private:
  struct Agreed {
    std::optional<FragmentId> behind;
    bool forward = false;
    std::int64_t products = 0;
    FragmentId id{};
    bool is(std::optional<FragmentId> other, bool also_forward, std::int64_t of) const {
      return behind == other && forward == also_forward && products == of;
    }
  };
  const ParallelPlan& plan_;
  const Shape& shape_;
  const ModelParts& parts_;
  ProgramWriter& writer_;
  ReplicaExchange& replicas_;
  std::vector<std::string_view> agreeing_;  // axes of the ranks
  std::vector<std::pair<BesidePass, FragmentId>> beside_;
  std::vector<Agreed> agreed_;
};

}  // namespace ns_dist
