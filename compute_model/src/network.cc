#include "network.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ns_dist/result.h"

namespace ns_dist {

inline constexpr std::size_t kWidest = 256;

double Network::evaluate(const double* features) const {
  std::array<double, kWidest> from, to;
  NS_EXPECTS(inputs() <= kWidest);
  for (std::size_t i = 0; i < inputs(); ++i) {
    const double x = std::clamp(features[i], static_cast<double>(low[i]), static_cast<double>(high[i]));
    from[i] = (x - static_cast<double>(mean[i])) * static_cast<double>(scale[i]);
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    NS_EXPECTS(layer.outputs <= kWidest);
    for (std::size_t j = 0; j < layer.outputs; ++j) to[j] = static_cast<double>(layer.bias[j]);
    const float* weights = layer.weights.data();
    for (std::size_t i = 0; i < layer.inputs; ++i, weights += layer.outputs) {
      const double x = from[i];
      for (std::size_t j = 0; j < layer.outputs; ++j) to[j] += x * static_cast<double>(weights[j]);
    }
    if (l + 1 < layers.size()) {
      for (std::size_t j = 0; j < layer.outputs; ++j) to[j] = 0.5 * (to[j] + std::sqrt(to[j] * to[j] + 1));
    }
    std::swap(from, to);
  }
  return from[0];
}

}  // namespace ns_dist
