#include "reference_gpu.h"

#include "data_sheet.h"
#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

// The machine whose neighbor is looked for: a GPU of the catalog that somebody changed keeps the neighbor that it has
// as it is sold. A better part would find another one otherwise, by whose measurements it might be slower.
Machine as_sold(const Machine& machine) {
  const auto listed = Catalog::built_in().gpu(machine.gpu.id);
  auto sold = listed ? make_machine(*listed, machine.mode) : fail(listed.error());
  return sold ? *std::move(sold) : machine;
}

}  // namespace

ReferenceGpu reference_gpu(const PredictorWeights& weights, const Machine& machine) {
  ReferenceGpu reference;
  if (const auto index = measured_index(weights, machine.gpu.id)) {
    const Gpu& sheet = weights.gpus[*index];
    auto measured = make_machine(sheet, machine.mode);
    if (!measured || sheet == data_sheet_of(machine.gpu)) {
      reference.measured = index;
    } else {
      const Pace pace = pace_of(machine, *measured);
      reference.nearest = ReferenceGpu::Nearest{*std::move(measured), {*index, 1, true}, pace, true};
    }
    return reference;
  }
  std::vector<Machine> machines;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < weights.gpus.size(); ++i) {
    auto measured = make_machine(weights.gpus[i], machine.mode);
    if (!measured) continue;
    machines.push_back(*std::move(measured));
    indices.push_back(i);
  }
  if (auto nearest = neighbor_of(as_sold(machine), machines)) {
    Machine& other = machines[nearest->index];
    nearest->index = indices[nearest->index];
    const Pace pace = pace_of(machine, other);
    reference.nearest = ReferenceGpu::Nearest{std::move(other), *nearest, pace, false};
  }
  return reference;
}

}  // namespace ns_dist
