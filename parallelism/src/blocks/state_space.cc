// The Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060), split over heads and groups as in Megatron-Core
// (mamba_mixer.py). Products are forecast as all others. Convolution and scan are no kernels that we have measured:
// they are operators of which only work and traffic are known.
#include <algorithm>
#include <utility>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/mixer.h"

namespace ns_dist {
namespace {

using blocks::bytes_of;

struct Sizes {
  explicit Sizes(const Shape& shape)
      : heads(shape.model->state_space->heads / shape.tp),
        inner(heads * shape.model->state_space->head_dim),
        groups(std::max<std::int64_t>(1, shape.model->state_space->groups / shape.tp)),
        map(2 * shape.model->state_space->state),
        maps(groups * map),
        copied_maps(std::max(groups, shape.cp) * map) {}
  std::int64_t heads;  // of this rank
  std::int64_t inner;  // channels
  std::int64_t groups, map;
  std::int64_t maps;         // values of a token's input and output maps
  std::int64_t copied_maps;  // with a copy for each context-parallel rank, where these are more than groups
};

Call scan(const Shape& shape, const char* name, double flops, std::int64_t read, std::int64_t written) {
  return blocks::kernel(shape, name,
                        UnknownOperator{name, flops * units::FLOP, bytes_of(shape, shape.tokens, read) * units::B,
                                        bytes_of(shape, shape.tokens, written) * units::B});
}

}  // namespace

Block state_space_block(const Shape& shape) {
  const StateSpace& space = *shape.model->state_space;
  const Sizes size(shape);
  // Context-parallel ranks exchange tokens for heads before the convolution and back behind the scan, with what weights
  // the output (Megatron-Core, mamba_context_parallel.py): each has all tokens of its part of the heads.
  const std::int64_t tokens = shape.tokens, convolved = size.inner + size.copied_maps;
  Block block;
  // Gate, channels, maps, and a time step for each head. Muon leaves it out (Megatron-Core, mamba_mixer.py: use_muon).
  blocks::begin_mixer(shape, block, "mamba",
                      {.out = 2 * size.inner + size.maps + size.heads, .readers = 1, .by_element = true});

  BlockStep convolution;
  convolution.name = "mamba.convolution";
  const auto taps = static_cast<double>(space.convolution);
  const std::int64_t elements = tokens * convolved, exchanged = size.inner + convolved + size.heads;
  blocks::exchange_heads(shape, convolution.forward, "mamba.heads.all_to_all", exchanged);
  convolution.forward.push_back(
      blocks::kernel(shape, convolution.name, Elementwise{"convolution", elements, 1, 1, 2 * taps}));
  convolution.input_gradient.push_back(blocks::kernel(shape, "mamba.convolution.backward",
                                                      Elementwise{"convolution_backward", elements, 2, 1, 4 * taps}));
  blocks::exchange_heads(shape, convolution.input_gradient, "mamba.heads.backward.all_to_all", exchanged);
  convolution.parameters.dense = static_cast<double>(size.inner + size.maps) * (taps + 1);
  Call convolution_again = convolution.forward.back();
  convolution_again.name = "mamba.convolution.again";
  block.steps.push_back(std::move(convolution));

  // FLOPs as Megatron-LM counts them (training.py, mamba_layer_flops): 7 a channel and value of state. The scan reads
  // channels, maps and time steps and writes channels; backward, it reads them again with the output's gradient. All
  // between the two products is one function, which keeps the first product's output (gate, channels, maps, time steps)
  // and the scan's; it runs the convolution again, and the norm's backward kernel the gate (state-spaces/mamba,
  // ssd_combined.py, MambaSplitConv1dScanCombinedFn; Megatron-Core, mamba_mixer.py, use_mem_eff_path).
  BlockStep core;
  core.name = "mamba.scan";
  const double flops =
      7 * static_cast<double>(tokens) * static_cast<double>(size.inner) * static_cast<double>(space.state);
  const std::int64_t inputs = convolved + size.heads;
  core.forward.push_back(scan(shape, "mamba.scan", flops, inputs, size.inner));
  const std::size_t scanned = core.forward.size();
  blocks::exchange_heads(shape, core.forward, "mamba.output.all_to_all", 2 * size.inner);
  core.calls_after_kept = core.forward.size() - scanned;
  blocks::exchange_heads(shape, core.input_gradient, "mamba.output.backward.all_to_all", 2 * size.inner);
  core.input_gradient.push_back(std::move(convolution_again));
  core.input_gradient.push_back(scan(shape, "mamba.scan.backward", 2 * flops, inputs + size.inner, inputs));
  core.kept_as = ActivationKind::kStateSpace;
  core.kept_for_input_gradient = bytes_of(shape, tokens, size.inner + inputs + size.inner);
  core.parameters.dense = 3 * static_cast<double>(size.heads);  // decay, skip, bias of the time step
  block.steps.push_back(std::move(core));

  // The output times its gate, normalized in groups.
  const BlockStep weighted = blocks::gate(shape, ActivationKind::kStateSpace, "mamba.gate", tokens, size.inner);
  BlockStep gate = blocks::norm(shape, "mamba.gated_norm", tokens, size.inner);
  gate.forward.insert(gate.forward.begin(), weighted.forward.front());
  gate.input_gradient.push_back(weighted.input_gradient.front());
  gate.kept_for_input_gradient = 0;  // see the scan
  block.steps.push_back(std::move(gate));
  blocks::end_mixer(shape, block, "mamba", size.inner);
  return block;
}

}  // namespace ns_dist
