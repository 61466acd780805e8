#include "weights.h"

#include <algorithm>
#include <bit>
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

std::optional<std::size_t> measured_index(const PredictorWeights& weights, std::string_view gpu) {
  const auto found = std::find(weights.gpus.begin(), weights.gpus.end(), gpu);
  if (found == weights.gpus.end()) return std::nullopt;
  return static_cast<std::size_t>(found - weights.gpus.begin());
}

bool knows(const PredictorWeights& weights, std::size_t gpu, std::size_t sort) {
  return (weights.sorts[gpu] >> sort & 1U) != 0;
}

namespace {

// Of a GPU's sort among all GPUs' sorts, counted in order.
std::size_t place_of(const std::vector<std::uint32_t>& sorts, std::size_t gpu, std::size_t sort) {
  int before = std::popcount(sorts[gpu] & ((std::uint32_t{1} << sort) - 1));
  for (std::size_t g = 0; g < gpu; ++g) before += std::popcount(sorts[g]);
  return static_cast<std::size_t>(before);
}

// The learned logarithm, with features clamped to the fitted range; `outside` is set where one was not inside.
double evaluate(const Corrector& corrector, Predictor predictor, const Features& features,
                std::optional<std::size_t> gpu, bool& outside) {
  const std::size_t shared = shape_features(predictor).size() + gpu_features(predictor).size();
  std::array<double, 2 * kMaxFeatures> input{};
  std::copy_n(features.values.begin(), shared, input.begin());
  for (std::size_t f = 0; f < shared; ++f) {
    constexpr double kMargin = 1e-3;  // rounding to float, and data-sheet digits
    const double slack = kMargin * (1 + std::abs(input[f]));
    const double low = static_cast<double>(corrector.low[f]), high = static_cast<double>(corrector.high[f]);
    outside |= input[f] < low - slack || input[f] > high + slack;
    input[f] = std::clamp(input[f], low, high);
  }
  if (gpu) input[shared + *gpu] = 1;
  return std::clamp(corrector.evaluate(input.data()), -4.0, 4.0);
}

Correction around(double seconds, const Quantiles& quantiles, bool extrapolated) {
  Correction correction;
  correction.seconds = seconds;
  correction.extrapolated = extrapolated;
  const std::size_t group = error_group(seconds);
  correction.low = seconds * std::exp(static_cast<double>(quantiles[2 * group]));
  correction.high = seconds * std::exp(static_cast<double>(quantiles[2 * group + 1]));
  if (extrapolated) {  // nothing was measured there: the interval is widened by half of itself
    correction.low /= std::sqrt(seconds / correction.low), correction.high *= std::sqrt(correction.high / seconds);
  }
  return correction;
}

}  // namespace

Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features, std::size_t gpu,
                   std::size_t sort) {
  bool outside = false;
  const double learned = evaluate(weights.known, predictor, features, gpu, outside);
  return around(features.base * std::exp(learned), weights.seen[place_of(weights.sorts, gpu, sort)], outside);
}

Correction correct(const PredictorWeights& weights, Predictor predictor, const Features& features,
                   const std::optional<NeighborFeatures>& neighbor) {
  bool outside = false;
  double learned = evaluate(weights.transfer, predictor, features, std::nullopt, outside);
  // Where nothing learned carries over (GPUs measured in different ways), the physical estimate stands alone.
  if (neighbor && (neighbor->itself || !weights.transfer.network.layers.empty())) {
    bool ignored = false;
    double carried = evaluate(weights.known, predictor, neighbor->features, neighbor->gpu, ignored);
    const double ratio = std::log(neighbor->features.base / features.base);
    carried = std::clamp(carried, carried + ratio + std::log(neighbor->pace.least),
                         carried + ratio + std::log(neighbor->pace.most));
    learned += neighbor->share * (carried - learned);
  }
  return around(features.base * std::exp(learned), neighbor && neighbor->same_generation ? weights.near : weights.far,
                outside);
}

double watts_of(const PredictorWeights& weights, Predictor predictor, const Features& features,
                const Machine& machine) {
  const double limit = machine.gpu.board_power / units::W;
  if (weights.power.trees.trees.empty() || machine.mode != Mode::kSustained || !(limit > 0)) return 0;
  bool ignored = false;
  return limit * std::exp(std::min(0.0, evaluate(weights.power, predictor, features, std::nullopt, ignored)));
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

constexpr std::uint8_t kLeaf = 255;  // in place of a feature

void put(Safetensors& file, const std::string& name, const Corrector& corrector) {
  const auto floats = [&](const std::string& part, const std::vector<float>& values) {
    file.put<float>(name + "/" + part, values);
  };
  floats("low", corrector.low), floats("high", corrector.high);
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
  float largest = 1e-6F;
  for (const Trees::Node& node : trees.nodes) {
    if (trees.is_leaf(node)) {
      largest = std::max(largest, std::abs(node.threshold));
    } else {
      thresholds.push_back(node.threshold);
    }
  }
  std::sort(thresholds.begin(), thresholds.end());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  const float step = largest / 32767;
  std::vector<std::uint8_t> feature;
  std::vector<std::uint16_t> value, count;
  for (const Trees::Node& node : trees.nodes) {
    if (trees.is_leaf(node)) {
      feature.push_back(kLeaf);
      value.push_back(static_cast<std::uint16_t>(std::lround(node.threshold / step) + 32768));
    } else {
      feature.push_back(static_cast<std::uint8_t>(node.feature));
      value.push_back(static_cast<std::uint16_t>(
          std::lower_bound(thresholds.begin(), thresholds.end(), node.threshold) - thresholds.begin()));
    }
  }
  for (const Trees::Tree& tree : trees.trees) count.push_back(static_cast<std::uint16_t>(tree.nodes));
  floats("trees/thresholds", thresholds);
  file.put<float>(name + "/trees/step", std::array<float, 1>{step});
  file.put<std::uint8_t>(name + "/trees/feature", feature);
  file.put<std::uint16_t>(name + "/trees/value", value);
  file.put<std::uint16_t>(name + "/trees/nodes", count);
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

// Intervals of one kind: logarithms of low and high, in turn.
Result<std::vector<Quantiles>> get_quantiles(const Safetensors& file, const std::string& name, std::size_t count,
                                             const std::string& where) {
  NS_TRY(const std::vector<float> values, file.get<float>(name));
  std::vector<Quantiles> all(count);
  if (values.size() != count * all.front().size()) {
    return fail(bad(where, name + " are of another number", std::to_string(count * all.front().size())));
  }
  for (std::size_t q = 0; q < values.size(); ++q) {
    if (!(q % 2 == 0 ? values[q] <= 0 && values[q] > -5 : values[q] >= 0 && values[q] < 5)) {
      return fail(bad(where, name + " do not hold their forecast"));
    }
    all[q / all.front().size()][q % all.front().size()] = values[q];
  }
  return all;
}

Result<Corrector> get(const Safetensors& file, const std::string& name, std::size_t inputs, const std::string& layers,
                      bool has_trees, const std::string& where) {
  Corrector corrector;
  NS_TRY(corrector.low, file.get<float>(name + "/low"));
  NS_TRY(corrector.high, file.get<float>(name + "/high"));
  if (corrector.low.size() != inputs || corrector.high.size() != inputs) {
    return fail(bad(where, name + " has ranges of another number of features", std::to_string(inputs)));
  }
  for (std::size_t f = 0; f < inputs; ++f) {
    if (!(corrector.low[f] <= corrector.high[f])) return fail(bad(where, name + " has a range that is empty"));
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
  NS_TRY(const auto value, file.get<std::uint16_t>(prefix + "value"));
  NS_TRY(const auto count, file.get<std::uint16_t>(prefix + "nodes"));
  if (value.size() != feature.size() || step.size() != 1 || !finite(step) || !finite(thresholds)) {
    return fail(bad(where, prefix + " has arrays that do not belong together"));
  }
  std::size_t first = 0;
  std::vector<int> asked;
  std::vector<float> values;
  for (const std::uint16_t size : count) {
    if (size > feature.size() - first) return fail(bad(where, prefix + "nodes counts more nodes than there are"));
    asked.clear(), values.clear();
    for (std::size_t n = first; n < first + size; ++n) {
      const bool leaf = feature[n] == kLeaf;
      if (!leaf && value[n] >= thresholds.size()) return fail(bad(where, prefix + "value names no threshold"));
      asked.push_back(leaf ? -1 : feature[n]);
      values.push_back(leaf ? static_cast<float>(static_cast<int>(value[n]) - 32768) * step[0] : thresholds[value[n]]);
    }
    if (!trees.add(asked, values)) return fail(bad(where, prefix + " has a node that leads out of its tree"));
    first += size;
  }
  if (first != feature.size()) return fail(bad(where, prefix + "nodes counts fewer nodes than there are"));
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
    file.put<std::uint32_t>(name + "/sorts", part.sorts);
    std::vector<float> seen;
    for (const Quantiles& quantiles : part.seen) seen.insert(seen.end(), quantiles.begin(), quantiles.end());
    file.put<float>(name + "/quantiles/seen", seen);
    file.put<float>(name + "/quantiles/near", part.near);
    file.put<float>(name + "/quantiles/far", part.far);
    if (!part.power.trees.trees.empty()) describe("power", part.power);
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
    NS_TRY(part.sorts, file.get<std::uint32_t>(name + "/sorts"));
    if (part.sorts.size() != part.gpus.size()) {
      return fail(bad(where, name + "/sorts names other GPUs", std::to_string(part.gpus.size())));
    }
    std::size_t intervals = 0;
    for (const std::uint32_t bits : part.sorts) intervals += static_cast<std::size_t>(std::popcount(bits));
    if (intervals == 0) return fail(bad(where, name + "/sorts says that nothing was measured"));
    NS_TRY(part.seen, get_quantiles(file, name + "/quantiles/seen", intervals, where));
    NS_TRY(const std::vector<Quantiles> near, get_quantiles(file, name + "/quantiles/near", 1, where));
    NS_TRY(const std::vector<Quantiles> far, get_quantiles(file, name + "/quantiles/far", 1, where));
    part.near = near.front(), part.far = far.front();
    if (weights.metadata.contains(name + "/power/trees")) {
      NS_TRY(part.power, get(file, name + "/power", shared, text(name + "/power/layers"),
                             text(name + "/power/trees") != "0", where));
    }
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
