// A small multilayer perceptron, evaluated in double.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ns_dist {

// Smooth ramp (x + sqrt(x^2 + 1)) / 2: one square root, no exponential (Barron 2021, squareplus with b = 1).
struct Layer {
  std::size_t inputs = 0, outputs = 0;
  std::vector<float> weights;  // inputs x outputs, one input's weights after another
  std::vector<float> bias;
};

struct Network {
  std::vector<float> mean, scale;  // of the features: x -> (x - mean) * scale
  std::vector<float> low, high;    // range of each feature in the training rows; inputs are clamped to it
  std::vector<Layer> layers;       // squareplus after each but the last, which has one output

  std::size_t inputs() const { return mean.size(); }
  double evaluate(const double* features) const;
};

}  // namespace ns_dist
