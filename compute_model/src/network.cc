#include "network.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ns_dist/result.h"

namespace ns_dist {

namespace {

constexpr std::size_t kWidest = 256;
constexpr std::size_t kColumns = 16;  // of a layer, summed up side by side in registers

// `count` columns of a layer, from `first` on.
template <std::size_t count>
void columns(const Layer& layer, const float* from, float* to, std::size_t first) {
  std::array<float, count> sums;
  for (std::size_t c = 0; c < count; ++c) sums[c] = layer.bias[first + c];
  const float* weights = layer.weights.data() + first;
  for (std::size_t i = 0; i < layer.inputs; ++i, weights += layer.outputs) {
    const float x = from[i];
    for (std::size_t c = 0; c < count; ++c) sums[c] += x * weights[c];
  }
  for (std::size_t c = 0; c < count; ++c) to[first + c] = sums[c];
}

}  // namespace

double Network::evaluate(const double* features) const {
  std::array<float, kWidest> from, to;
  NS_EXPECTS(inputs() <= kWidest);
  for (std::size_t i = 0; i < inputs(); ++i) {
    const double x = std::clamp(features[i], static_cast<double>(low[i]), static_cast<double>(high[i]));
    from[i] = static_cast<float>((x - static_cast<double>(mean[i])) * static_cast<double>(scale[i]));
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    NS_EXPECTS(layer.outputs <= kWidest);
    std::size_t j = 0;
    for (; j + kColumns <= layer.outputs; j += kColumns) columns<kColumns>(layer, from.data(), to.data(), j);
    for (; j < layer.outputs; ++j) columns<1>(layer, from.data(), to.data(), j);
    if (l + 1 < layers.size()) {
      for (j = 0; j < layer.outputs; ++j) to[j] = 0.5F * (to[j] + std::sqrt(to[j] * to[j] + 1));
    }
    std::swap(from, to);
  }
  return static_cast<double>(from[0]);
}

}  // namespace ns_dist
