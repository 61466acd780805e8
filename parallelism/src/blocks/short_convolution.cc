// The gated short convolution in the place of attention (LFM2: modeling_lfm2.py, Lfm2ShortConv): one projection makes
// two gates and the channels, the first gate weights the channels, a convolution over a few tokens follows, and the
// second gate weights its output. Products are forecast as all others; of the rest, only work and traffic are known.
// Context-parallel ranks would exchange the few tokens before their own, which is not counted.
#include <utility>

#include "blocks/common.h"
#include "blocks/mixer.h"

namespace ns_dist {

Block short_convolution_block(const Shape& shape) {
  using blocks::bytes_of;
  using blocks::kernel;
  const std::int64_t tokens = shape.tokens, channels = shape.hidden / shape.tp, elements = tokens * channels;
  const auto taps = static_cast<double>(shape.model->short_convolution);
  Block block;
  blocks::begin_mixer(shape, block, "convolution", {.out = 3 * channels, .readers = 1});

  // Keeps the projection's output, of which gates and channels are views, the weighted channels and what the
  // convolution makes of them.
  BlockStep core;
  core.name = "convolution.core";
  core.forward.push_back(kernel(shape, "convolution.gate", Elementwise{"multiply", elements, 2, 1, 1}));
  core.forward.push_back(kernel(shape, "convolution.taps", Elementwise{"convolution", elements, 1, 1, 2 * taps}));
  core.forward.push_back(kernel(shape, "convolution.output_gate", Elementwise{"multiply", elements, 2, 1, 1}));
  core.input_gradient.push_back(
      kernel(shape, "convolution.output_gate.backward", Elementwise{"multiply_backward", elements, 3, 2, 2}));
  core.input_gradient.push_back(
      kernel(shape, "convolution.taps.backward", Elementwise{"convolution_backward", elements, 2, 1, 4 * taps}));
  core.input_gradient.push_back(
      kernel(shape, "convolution.gate.backward", Elementwise{"multiply_backward", elements, 3, 2, 2}));
  core.parameters.dense = static_cast<double>(channels) * taps;
  core.kept_as = ActivationKind::kStateSpace;
  core.kept_for_input_gradient = bytes_of(shape, tokens, 5 * channels);
  block.steps.push_back(std::move(core));
  blocks::end_mixer(shape, block, "convolution", channels);
  return block;
}

}  // namespace ns_dist
