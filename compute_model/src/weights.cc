#include "weights.h"

#include <algorithm>
#include <cmath>

#include "embedded_weights.h"
#include "safetensors.h"

namespace ns_dist {

std::size_t error_group(double seconds) { return seconds < 20e-6 ? 0 : seconds < 200e-6 ? 1 : 2; }

double Corrector::evaluate(const double* features) const {
  double sum = 0;
  if (!network.layers.empty()) sum += network.evaluate(features);
  return sum + trees.evaluate(features);
}

Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features,
                   const std::string& gpu) {
  const std::size_t shared = shape_features(predictor).size() + gpu_features(predictor).size();
  const auto found = std::find(weights.gpus.begin(), weights.gpus.end(), gpu);
  Correction correction;
  correction.known_gpu = found != weights.gpus.end();
  std::array<double, 2 * kMaxFeatures> input{};
  std::copy_n(features.values.begin(), shared, input.begin());
  if (correction.known_gpu) input[shared + static_cast<std::size_t>(found - weights.gpus.begin())] = 1;
  const Corrector& corrector = correction.known_gpu ? weights.known : weights.transfer;
  for (std::size_t f = 0; f < shared; ++f) {
    constexpr double kMargin = 1e-3;  // rounding to float, and data-sheet digits
    const double slack = kMargin * (1 + std::abs(input[f]));
    correction.extrapolated |= input[f] < static_cast<double>(corrector.low[f]) - slack ||
                               input[f] > static_cast<double>(corrector.high[f]) + slack;
    input[f] = std::clamp(input[f], static_cast<double>(corrector.low[f]), static_cast<double>(corrector.high[f]));
  }
  const double factor = std::exp(std::clamp(corrector.evaluate(input.data()), -4.0, 4.0));
  correction.seconds = features.base * factor;
  const std::size_t group = error_group(correction.seconds);
  correction.low = correction.seconds * std::exp(static_cast<double>(corrector.quantiles[2 * group]));
  correction.high = correction.seconds * std::exp(static_cast<double>(corrector.quantiles[2 * group + 1]));
  if (correction.extrapolated) {  // nothing was measured there: the interval is widened by half of itself
    correction.low /= std::sqrt(correction.seconds / correction.low),
        correction.high *= std::sqrt(correction.high / correction.seconds);
  }
  return correction;
}

namespace {

std::string joined(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ",") + std::string(name);
  return text;
}

std::string feature_names(Predictor predictor) {
  return joined(shape_features(predictor)) + ";" + joined(gpu_features(predictor));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void put(Safetensors& file, const std::string& name, const Corrector& corrector) {
  const auto floats = [&](const std::string& part, const std::vector<float>& values) {
    file.put<float>(name + "/" + part, values);
  };
  floats("low", corrector.low), floats("high", corrector.high);
  file.put<float>(name + "/quantiles", corrector.quantiles);
  const Network& network = corrector.network;
  if (!network.layers.empty()) {
    floats("network/mean", network.mean), floats("network/scale", network.scale);
    floats("network/low", network.low), floats("network/high", network.high);
    for (std::size_t l = 0; l < network.layers.size(); ++l) {
      floats("network/" + std::to_string(l) + "/weights", network.layers[l].weights);
      floats("network/" + std::to_string(l) + "/bias", network.layers[l].bias);
    }
  }
  const Trees& trees = corrector.trees;
  if (trees.trees.empty()) return;
  // Thresholds are few: nodes name them by number. Leaves are whole multiples of a step.
  std::vector<float> thresholds;
  for (const Trees::Node& node : trees.nodes) thresholds.push_back(node.threshold);
  std::sort(thresholds.begin(), thresholds.end());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  float largest = 1e-6F;
  for (const float leaf : trees.leaves) largest = std::max(largest, std::abs(leaf));
  const float step = largest / 32767;
  std::vector<std::uint8_t> feature;
  std::vector<std::uint16_t> threshold, count;
  std::vector<std::int16_t> below, above, leaf;
  for (const Trees::Node& node : trees.nodes) {
    feature.push_back(node.feature), below.push_back(node.below), above.push_back(node.above);
    threshold.push_back(static_cast<std::uint16_t>(
        std::lower_bound(thresholds.begin(), thresholds.end(), node.threshold) - thresholds.begin()));
  }
  for (const float value : trees.leaves) leaf.push_back(static_cast<std::int16_t>(std::lround(value / step)));
  for (const Trees::Tree& tree : trees.trees) count.push_back(static_cast<std::uint16_t>(tree.nodes));
  floats("trees/thresholds", thresholds);
  file.put<float>(name + "/trees/step", std::array<float, 1>{step});
  file.put<std::uint8_t>(name + "/trees/feature", feature);
  file.put<std::uint16_t>(name + "/trees/threshold", threshold);
  file.put<std::uint16_t>(name + "/trees/nodes", count);
  file.put<std::int16_t>(name + "/trees/below", below);
  file.put<std::int16_t>(name + "/trees/above", above);
  file.put<std::int16_t>(name + "/trees/leaf", leaf);
}

Error bad(const std::string& where, std::string message, std::string expected = "") {
  Error error;
  error.message = std::move(message);
  error.where = where;
  error.expected = std::move(expected);
  error.hint = "write the weights anew with this version's ns-dist fit";
  return error;
}

bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

Result<Corrector> get(const Safetensors& file, const std::string& name, std::size_t inputs, const std::string& layers,
                      bool has_trees, const std::string& where) {
  Corrector corrector;
  NS_TRY(corrector.low, file.get<float>(name + "/low"));
  NS_TRY(corrector.high, file.get<float>(name + "/high"));
  NS_TRY(const std::vector<float> quantiles, file.get<float>(name + "/quantiles"));
  if (corrector.low.size() != inputs || corrector.high.size() != inputs ||
      quantiles.size() != corrector.quantiles.size()) {
    return fail(bad(where, name + " has ranges of another number of features", std::to_string(inputs)));
  }
  for (std::size_t f = 0; f < inputs; ++f) {
    if (!(corrector.low[f] <= corrector.high[f])) return fail(bad(where, name + " has a range that is empty"));
  }
  std::copy(quantiles.begin(), quantiles.end(), corrector.quantiles.begin());
  for (std::size_t q = 0; q < quantiles.size(); ++q) {
    if (!(q % 2 == 0 ? quantiles[q] <= 0 && quantiles[q] > -5 : quantiles[q] >= 0 && quantiles[q] < 5)) {
      return fail(bad(where, name + " has an interval that does not hold its forecast"));
    }
  }
  const std::size_t layer_count = layers.empty() || layers.size() > 1 || layers[0] < '0' || layers[0] > '9'
                                      ? 0
                                      : static_cast<std::size_t>(layers[0] - '0');
  if (layer_count > 0) {
    Network& network = corrector.network;
    NS_TRY(network.mean, file.get<float>(name + "/network/mean"));
    NS_TRY(network.scale, file.get<float>(name + "/network/scale"));
    NS_TRY(network.low, file.get<float>(name + "/network/low"));
    NS_TRY(network.high, file.get<float>(name + "/network/high"));
    if (network.mean.size() != inputs || network.scale.size() != inputs || network.low.size() != inputs ||
        network.high.size() != inputs || !finite(network.mean) || !finite(network.scale)) {
      return fail(bad(where, name + "/network is made for another number of features", std::to_string(inputs)));
    }
    for (std::size_t f = 0; f < inputs; ++f) {
      if (!(network.low[f] <= network.high[f])) return fail(bad(where, name + "/network has a range that is empty"));
    }
    std::size_t width = inputs;
    for (std::size_t l = 0; l < layer_count; ++l) {
      Layer layer;
      NS_TRY(layer.weights, file.get<float>(name + "/network/" + std::to_string(l) + "/weights"));
      NS_TRY(layer.bias, file.get<float>(name + "/network/" + std::to_string(l) + "/bias"));
      layer.inputs = width, layer.outputs = layer.bias.size();
      if (layer.outputs == 0 || layer.outputs > 256 || layer.weights.size() != layer.inputs * layer.outputs ||
          (l + 1 == layer_count && layer.outputs != 1) || !finite(layer.weights) || !finite(layer.bias)) {
        return fail(bad(where, name + "/network/" + std::to_string(l) + " does not fit the layer before it"));
      }
      width = layer.outputs;
      network.layers.push_back(std::move(layer));
    }
  }
  if (!has_trees) return corrector;

  Trees& trees = corrector.trees;
  trees.inputs = inputs;
  const std::string prefix = name + "/trees/";
  NS_TRY(const std::vector<float> thresholds, file.get<float>(prefix + "thresholds"));
  NS_TRY(const std::vector<float> step, file.get<float>(prefix + "step"));
  NS_TRY(const auto feature, file.get<std::uint8_t>(prefix + "feature"));
  NS_TRY(const auto threshold, file.get<std::uint16_t>(prefix + "threshold"));
  NS_TRY(const auto count, file.get<std::uint16_t>(prefix + "nodes"));
  NS_TRY(const auto below, file.get<std::int16_t>(prefix + "below"));
  NS_TRY(const auto above, file.get<std::int16_t>(prefix + "above"));
  NS_TRY(const auto leaf, file.get<std::int16_t>(prefix + "leaf"));
  const std::size_t nodes = feature.size();
  if (threshold.size() != nodes || below.size() != nodes || above.size() != nodes ||
      leaf.size() != nodes + count.size() || step.size() != 1 || !finite(step) || !finite(thresholds)) {
    return fail(bad(where, prefix + " has arrays that do not belong together"));
  }
  std::size_t first = 0;
  for (const std::uint16_t size : count) {
    if (size > nodes - first) return fail(bad(where, prefix + "nodes counts more nodes than there are"));
    const auto index = static_cast<std::uint32_t>(trees.trees.size());
    trees.trees.push_back({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(first) + index, size});
    for (std::size_t n = 0; n < size; ++n) {
      const std::size_t at = first + n;
      // A child node comes after its parent, so that every walk ends.
      const auto valid = [&](std::int16_t child) {
        return child >= 0 ? static_cast<std::size_t>(child) > n && static_cast<std::size_t>(child) < size
                          : ~child <= size;
      };
      if (feature[at] >= inputs || threshold[at] >= thresholds.size() || !valid(below[at]) || !valid(above[at])) {
        return fail(bad(where, prefix + " has a node that leads out of its tree"));
      }
      Trees::Node node;
      node.threshold = thresholds[threshold[at]], node.feature = feature[at];
      node.below = below[at], node.above = above[at];
      trees.nodes.push_back(node);
    }
    first += size;
  }
  if (first != nodes) return fail(bad(where, prefix + "nodes counts fewer nodes than there are"));
  for (const std::int16_t value : leaf) trees.leaves.push_back(static_cast<float>(value) * step[0]);
  return corrector;
}

}  // namespace

std::string to_safetensors(const KernelWeights& weights) {
  Safetensors file;
  file.metadata() = weights.metadata;
  file.metadata()["schema"] = kWeightsSchema;
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    const auto predictor = static_cast<Predictor>(p);
    const PredictorWeights& part = *weights.predictors[p];
    const std::string name(name_of(predictor));
    file.metadata()[name + "/features"] = feature_names(predictor);
    std::string gpus;
    for (const std::string& gpu : part.gpus) gpus += (gpus.empty() ? "" : ",") + gpu;
    file.metadata()[name + "/gpus"] = gpus;
    const auto describe = [&](const std::string& which, const Corrector& corrector) {
      file.metadata()[name + "/" + which + "/layers"] = std::to_string(corrector.network.layers.size());
      file.metadata()[name + "/" + which + "/trees"] = std::to_string(corrector.trees.trees.size());
      put(file, name + "/" + which, corrector);
    };
    describe("known", part.known), describe("transfer", part.transfer);
  }
  return file.bytes();
}

Result<KernelWeights> read_kernel_weights(std::string_view bytes, const std::string& where) {
  NS_TRY(const Safetensors file, Safetensors::parse(bytes, where));
  KernelWeights weights;
  weights.metadata = file.metadata();
  const auto text = [&](const std::string& key) {
    const auto found = weights.metadata.find(key);
    return found == weights.metadata.end() ? std::string() : found->second;
  };
  if (text("schema") != kWeightsSchema) {
    return fail(bad(where, "the weights are of schema \"" + text("schema") + "\"", std::string(kWeightsSchema)));
  }
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    const auto predictor = static_cast<Predictor>(p);
    const std::string name(name_of(predictor));
    if (!weights.metadata.contains(name + "/features")) continue;
    if (text(name + "/features") != feature_names(predictor)) {
      return fail(bad(where, name + " was fitted on other features", feature_names(predictor)));
    }
    PredictorWeights part;
    part.gpus = split(text(name + "/gpus"));
    const std::size_t shared = shape_features(predictor).size() + gpu_features(predictor).size();
    if (part.gpus.size() > kMaxFeatures) return fail(bad(where, name + " knows more GPUs than can be", "at most 48"));
    NS_TRY(part.known, get(file, name + "/known", shared + part.gpus.size(), text(name + "/known/layers"),
                           text(name + "/known/trees") != "0", where));
    NS_TRY(part.transfer, get(file, name + "/transfer", shared, text(name + "/transfer/layers"),
                              text(name + "/transfer/trees") != "0", where));
    weights.predictors[p] = std::move(part);
  }
  return weights;
}

const KernelWeights* standard_weights() {
  static const std::unique_ptr<const KernelWeights> weights = [] {
    auto merged = std::make_unique<KernelWeights>();
    for (const EmbeddedFile& file : embedded_weights()) {
      auto read = read_kernel_weights(file.content, std::string(file.path));
      NS_EXPECTS(read.has_value());  // compiled in: a mismatch is a mistake of the build
      for (std::size_t p = 0; p < kPredictorCount; ++p) {
        if (read->predictors[p]) merged->predictors[p] = std::move(read->predictors[p]);
      }
    }
    return std::unique_ptr<const KernelWeights>(embedded_weights().empty() ? nullptr : std::move(merged));
  }();
  return weights.get();
}

}  // namespace ns_dist
