#include "network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ns_dist/result.h"

namespace ns_dist {

namespace {

constexpr std::size_t kWidest = 256;

// Columns of a layer that are summed up side by side: four in each register of every 64-bit processor. Each column is
// summed up in the order of the inputs, so that it does not matter how many there are.
using Four = float __attribute__((vector_size(4 * sizeof(float))));
constexpr std::size_t kFours = 4, kColumns = 4 * kFours;

// kColumns columns of a layer, from `first` on.
void columns(const Layer& layer, const float* from, float* to, std::size_t first) {
  Four sums[kFours];
  std::memcpy(sums, layer.bias.data() + first, sizeof(sums));
  const float* weights = layer.weights.data() + first;
  for (std::size_t i = 0; i < layer.inputs; ++i, weights += layer.outputs) {
#pragma GCC unroll 4
    for (std::size_t f = 0; f < kFours; ++f) {
      Four own;
      std::memcpy(&own, weights + 4 * f, sizeof(own));
      sums[f] += from[i] * own;
    }
  }
  std::memcpy(to + first, sums, sizeof(sums));
}

void column(const Layer& layer, const float* from, float* to, std::size_t j) {
  float sum = layer.bias[j];
  for (std::size_t i = 0; i < layer.inputs; ++i) sum += from[i] * layer.weights[i * layer.outputs + j];
  to[j] = sum;
}

}  // namespace

double Network::evaluate(const double* features) const {
  std::array<float, kWidest> one, other;
  float *from = one.data(), *to = other.data();
  NS_EXPECTS(inputs() <= kWidest);
  for (std::size_t i = 0; i < inputs(); ++i) {
    const double x = std::clamp(features[i], static_cast<double>(low[i]), static_cast<double>(high[i]));
    from[i] = static_cast<float>((x - static_cast<double>(mean[i])) * static_cast<double>(scale[i]));
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    NS_EXPECTS(layer.outputs <= kWidest);
    std::size_t j = 0;
    for (; j + kColumns <= layer.outputs; j += kColumns) columns(layer, from, to, j);
    for (; j < layer.outputs; ++j) column(layer, from, to, j);
    if (l + 1 < layers.size()) {
      for (j = 0; j < layer.outputs; ++j) to[j] = 0.5F * (to[j] + std::sqrt(to[j] * to[j] + 1));
    }
    std::swap(from, to);
  }
  return static_cast<double>(from[0]);
}

}  // namespace ns_dist
