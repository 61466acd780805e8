#include "reference_gpu.h"

#include <algorithm>
#include <string>

#include "data_sheet.h"
#include "ns_dist/catalog.h"

namespace ns_dist {
namespace {

std::optional<Gpu> listed_gpu(const std::string& id) {
  auto listed = Catalog::built_in().gpu(id);
  return listed ? std::optional(*std::move(listed)) : std::nullopt;
}

// Of a measured GPU that runs kernels alike.
std::optional<std::size_t> index_alike(const PredictorWeights& weights, const Gpu& gpu) {
  const auto alike = std::ranges::find_if(weights.gpus, [&](const Gpu& one) { return run_kernels_alike(one, gpu); });
  if (alike == weights.gpus.end()) return std::nullopt;
  return static_cast<std::size_t>(alike - weights.gpus.begin());
}

// The measured GPU that `like` names, if it is of the same generation: its measurements are carried over.
std::optional<Gpu> named_neighbor(const PredictorWeights& weights, const Gpu& gpu) {
  if (gpu.like.empty()) return std::nullopt;
  std::optional<Gpu> other = listed_gpu(gpu.like);
  if (!other || other->architecture != gpu.architecture) return std::nullopt;
  const auto index = index_alike(weights, *other);
  if (!index || !teaches_others(weights, *index)) return std::nullopt;
  return other;
}

// A GPU of the catalog that somebody changed, as it is sold; nothing where it is unchanged or not of the catalog.
std::optional<Machine> as_sold(const Machine& machine, const std::optional<Gpu>& listed) {
  if (!listed || data_sheet_of(*listed) == data_sheet_of(machine.gpu)) return std::nullopt;
  auto sold = make_machine(*listed, machine.mode);
  return sold ? std::optional(*std::move(sold)) : std::nullopt;
}

}  // namespace

ReferenceGpu reference_gpu(const PredictorWeights& weights, const Machine& machine) {
  ReferenceGpu reference;
  reference.known = machine;
  std::optional<std::size_t> index = measured_index(weights, machine.gpu.id);
  std::optional<Gpu> listed;
  const std::optional<Gpu> named = named_neighbor(weights, machine.gpu);
  if (!index) {  // a changed GPU keeps the one that it has as it is sold, whether it has its name or is like it
    listed = listed_gpu(machine.gpu.id);
    if (!listed && !named && !machine.gpu.like.empty()) listed = listed_gpu(machine.gpu.like);
    if (listed && listed->architecture != machine.gpu.architecture) listed.reset();
    index = index_alike(weights, listed ? *listed : machine.gpu);
  }
  if (index) {
    const Gpu& sheet = weights.gpus[*index];
    reference.known.gpu.id = sheet.id;
    reference.measured = index;
    if (run_kernels_alike(sheet, machine.gpu)) return reference;
    // The catalog knows more of it than the weights: how its memory keeps ECC.
    const std::optional<Gpu> whole = listed_gpu(sheet.id);
    auto measured = make_machine(whole && run_kernels_alike(*whole, sheet) ? *whole : sheet, machine.mode);
    if (!measured) return reference;
    const Pace pace = pace_of(machine, *measured);
    reference.measured.reset();
    reference.nearest = ReferenceGpu::Nearest{*std::move(measured), {*index, true}, pace, true};
    return reference;
  }
  std::vector<Machine> machines;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < weights.gpus.size(); ++i) {
    if (named && !run_kernels_alike(weights.gpus[i], *named)) continue;
    auto measured = make_machine(weights.gpus[i], machine.mode);
    if (!measured || !teaches_others(weights, i)) continue;
    machines.push_back(*std::move(measured));
    indices.push_back(i);
  }
  if (auto sold = as_sold(machine, listed)) {
    const Pace pace = pace_of(machine, *sold);
    reference.sold = ReferenceGpu::AsSold{*std::move(sold), pace};
  }
  // A changed GPU keeps the neighbor that it has as it is sold. A better part would find another one otherwise, by
  // whose measurements it might be slower.
  if (auto nearest = neighbor_of(reference.sold ? reference.sold->machine : machine, machines)) {
    Machine& other = machines[nearest->index];
    nearest->index = indices[nearest->index];
    const Pace pace = pace_of(machine, other);
    reference.nearest = ReferenceGpu::Nearest{std::move(other), *nearest, pace, named.has_value()};
  }
  return reference;
}

}  // namespace ns_dist
