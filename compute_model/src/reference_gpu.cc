#include "reference_gpu.h"

#include "data_sheet.h"
#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

// A GPU of the catalog that somebody changed, as it is sold; nothing where it is unchanged or not of the catalog.
std::optional<Machine> as_sold(const Machine& machine) {
  const auto listed = Catalog::built_in().gpu(machine.gpu.id);
  if (!listed || data_sheet_of(*listed) == data_sheet_of(machine.gpu)) return std::nullopt;
  auto sold = make_machine(*listed, machine.mode);
  return sold ? std::optional(*std::move(sold)) : std::nullopt;
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
      reference.nearest = ReferenceGpu::Nearest{*std::move(measured), {*index, true}, pace, true};
    }
    return reference;
  }
  std::vector<Machine> machines;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < weights.gpus.size(); ++i) {
    auto measured = make_machine(weights.gpus[i], machine.mode);
    if (!measured || !teaches_others(weights, i)) continue;
    machines.push_back(*std::move(measured));
    indices.push_back(i);
  }
  if (auto sold = as_sold(machine)) {
    const Pace pace = pace_of(machine, *sold);
    reference.sold = ReferenceGpu::AsSold{*std::move(sold), pace};
  }
  // A changed GPU keeps the neighbor that it has as it is sold. A better part would find another one otherwise, by
  // whose measurements it might be slower.
  if (auto nearest = neighbor_of(reference.sold ? reference.sold->machine : machine, machines)) {
    Machine& other = machines[nearest->index];
    nearest->index = indices[nearest->index];
    const Pace pace = pace_of(machine, other);
    reference.nearest = ReferenceGpu::Nearest{std::move(other), *nearest, pace, false};
  }
  return reference;
}

}  // namespace ns_dist
