#include "learn/trainer.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "learn/random.h"

namespace ns_dist {
namespace {

using Matrix = Eigen::MatrixXf;

struct Parameter {
  Matrix value, gradient, first, second;
  void shape(Eigen::Index rows, Eigen::Index columns) {
    value = gradient = first = second = Matrix::Zero(rows, columns);
  }
};

Eigen::Index index(std::size_t value) { return static_cast<Eigen::Index>(value); }

}  // namespace

Network train(const TrainingRows& rows, const TrainingOptions& options, const std::function<void(double)>& progress) {
  const std::size_t width = rows.width, count = rows.size();
  Network network;
  network.mean.assign(width, 0), network.scale.assign(width, 1);
  network.low.assign(width, std::numeric_limits<float>::max());
  network.high.assign(width, std::numeric_limits<float>::lowest());
  for (std::size_t f = 0; f < width; ++f) {
    double sum = 0, squares = 0;
    for (std::size_t r = 0; r < count; ++r) {
      const float x = rows.features[r * width + f];
      sum += static_cast<double>(x);
      network.low[f] = std::min(network.low[f], x), network.high[f] = std::max(network.high[f], x);
    }
    const double mean = sum / static_cast<double>(count);
    for (std::size_t r = 0; r < count; ++r) {
      const double x = static_cast<double>(rows.features[r * width + f]) - mean;
      squares += x * x;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(count));
    network.mean[f] = static_cast<float>(mean);
    network.scale[f] = deviation > 1e-6 ? static_cast<float>(1 / deviation) : 0.0F;
  }

  Random random(options.seed);
  std::vector<std::size_t> sizes = {width};
  sizes.insert(sizes.end(), options.hidden.begin(), options.hidden.end());
  sizes.push_back(1);
  const std::size_t layers = sizes.size() - 1;
  std::vector<Parameter> weights(layers), biases(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    weights[l].shape(index(sizes[l + 1]), index(sizes[l]));
    biases[l].shape(index(sizes[l + 1]), 1);
    const double spread = (l + 1 == layers ? 0.3 : 1.4) / std::sqrt(static_cast<double>(sizes[l]));
    for (Eigen::Index c = 0; c < weights[l].value.cols(); ++c) {
      for (Eigen::Index r = 0; r < weights[l].value.rows(); ++r) {
        weights[l].value(r, c) = static_cast<float>(spread * random.normal());
      }
    }
    if (l + 1 < layers) {
      for (Eigen::Index r = 0; r < biases[l].value.rows(); ++r)
        biases[l].value(r, 0) = static_cast<float>(random.normal() * 0.5);
    }
  }

  // Features standardised once.
  Matrix inputs(index(width), index(count));
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t f = 0; f < width; ++f) {
      inputs(index(f), index(r)) = (rows.features[r * width + f] - network.mean[f]) * network.scale[f];
    }
  }
  double weighted = 0, total = 0;
  for (std::size_t r = 0; r < count; ++r) {
    weighted += static_cast<double>(rows.weights[r] * rows.targets[r]), total += static_cast<double>(rows.weights[r]);
  }
  biases.back().value(0, 0) = static_cast<float>(weighted / total);

  const std::size_t batch = std::min(options.batch, count);
  std::vector<std::size_t> order(count);
  for (std::size_t r = 0; r < count; ++r) order[r] = r;
  std::size_t cursor = count;

  std::vector<Matrix> activation(layers + 1), slope(layers), delta(layers);
  activation[0].resize(index(width), index(batch));
  Eigen::RowVectorXf target(index(batch)), weight(index(batch));
  constexpr double kFirst = 0.9, kSecond = 0.99;  // decay of Adam's moments (Kingma and Ba 2015: 0.9, 0.999)
  double first_power = 1, second_power = 1;
  for (std::size_t step = 0; step < options.steps; ++step) {
    for (std::size_t b = 0; b < batch; ++b) {
      if (cursor == count) {
        for (std::size_t r = count - 1; r > 0; --r) std::swap(order[r], order[random.next() % (r + 1)]);
        cursor = 0;
      }
      const std::size_t row = order[cursor++];
      activation[0].col(index(b)) = inputs.col(index(row));
      target(index(b)) = rows.targets[row], weight(index(b)) = rows.weights[row];
      if (options.jitter > 0) {
        for (std::size_t f = options.jitter_from; f < width; ++f) {
          activation[0](index(f), index(b)) += static_cast<float>(options.jitter * random.normal());
        }
      }
    }
    for (std::size_t l = 0; l < layers; ++l) {
      activation[l + 1].noalias() = weights[l].value * activation[l];
      activation[l + 1].colwise() += biases[l].value.col(0);
      if (l + 1 < layers) {
        slope[l] = (activation[l + 1].array().square() + 1).rsqrt();  // 1 / sqrt(x^2 + 1)
        const auto x = activation[l + 1].array();
        delta[l] = 0.5F + 0.5F * (x * slope[l].array());
        activation[l + 1] = (0.5F * (x + 1 / slope[l].array())).matrix().eval();
      }
    }
    // Huber loss on the logarithm: close to the absolute percentage error, smooth where it vanishes.
    const float huber = static_cast<float>(options.huber);
    Matrix error = activation[layers] - target;
    error =
        (error.array() / (error.array().square() + huber * huber).sqrt() * weight.array() / static_cast<float>(batch))
            .matrix();
    for (std::size_t l = layers; l-- > 0;) {
      weights[l].gradient.noalias() = error * activation[l].transpose();
      biases[l].gradient = error.rowwise().sum();
      if (l > 0) {
        Matrix back = weights[l].value.transpose() * error;
        error = back.cwiseProduct(delta[l - 1]);
      }
    }
    const double done = static_cast<double>(step) / static_cast<double>(options.steps);
    const double warm = std::min(1.0, static_cast<double>(step + 1) / 200);
    const double rate = options.rate * warm * 0.5 * (1 + std::cos(std::numbers::pi * done));
    first_power *= kFirst, second_power *= kSecond;
    const float scale = static_cast<float>(rate * std::sqrt(1 - second_power) / (1 - first_power));
    const auto update = [&](Parameter& p, bool shrink) {
      p.first = static_cast<float>(kFirst) * p.first + static_cast<float>(1 - kFirst) * p.gradient;
      p.second = static_cast<float>(kSecond) * p.second + static_cast<float>(1 - kSecond) * p.gradient.cwiseAbs2();
      if (shrink) p.value *= static_cast<float>(1 - rate * options.decay);
      p.value.array() -= scale * p.first.array() / (p.second.array().sqrt() + 1e-8F);
    };
    for (std::size_t l = 0; l < layers; ++l) update(weights[l], true), update(biases[l], false);
    if (progress && step % std::max<std::size_t>(1, options.steps / 100) == 0) progress(done);
  }

  for (std::size_t l = 0; l < layers; ++l) {
    Layer layer;
    layer.inputs = sizes[l], layer.outputs = sizes[l + 1];
    const Matrix& w = weights[l].value;
    layer.weights.assign(w.data(), w.data() + w.size());  // column-major: one input's weights after another
    layer.bias.assign(biases[l].value.data(), biases[l].value.data() + biases[l].value.size());
    network.layers.push_back(std::move(layer));
  }
  return network;
}

}  // namespace ns_dist
