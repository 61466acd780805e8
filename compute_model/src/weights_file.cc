#include "weights_file.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include "data_sheet.h"
#include "embedded_weights.h"
#include "predictors/predictor.h"
#include "safetensors.h"

namespace ns_dist {
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
  const auto put_floats = [&](const std::string& part, std::span<const float> values) {
    file.put<float>(name + "/" + part, values);
  };
  put_floats("low", corrector.low);
  put_floats("high", corrector.high);
  if (corrector.trees.empty()) return;
  const Trees::Parts& trees = corrector.trees.parts();
  file.put<std::uint32_t>(name + "/trees/nodes", trees.nodes);
  file.put<std::uint32_t>(name + "/trees/roots", trees.roots);
  file.put<std::uint32_t>(name + "/trees/depths", trees.depths);
  file.put<std::uint32_t>(name + "/trees/border_counts", trees.border_counts);
  put_floats("trees/borders", trees.borders);
  file.put<float>(name + "/trees/step", std::span(&trees.step, 1));
}

Error bad(const std::string& where, std::string message, std::string expected = "") {
  Error error;
  error.message = std::move(message);
  error.where = where;
  error.expected = std::move(expected);
  error.hint = "write the weights anew with this version's ns-dist fit";
  return error;
}

// Intervals of one kind: logarithms of low and high, in turn.
Result<std::vector<Quantiles>> get_quantiles(const Safetensors& file, const std::string& name, std::size_t count,
                                             const std::string& where) {
  NS_TRY(const std::vector<float> values, file.get<float>(name));
  std::vector<Quantiles> all(count);
  if (values.size() != count * all.front().size()) {
    return fail(bad(where, name + " has another number of values", std::to_string(count * all.front().size())));
  }
  for (std::size_t q = 0; q < values.size(); ++q) {
    if (!(q % 2 == 0 ? values[q] <= 0 && values[q] > -5 : values[q] >= 0 && values[q] < 5)) {
      return fail(bad(where, name + " do not contain their forecast"));
    }
    all[q / all.front().size()][q % all.front().size()] = values[q];
  }
  return all;
}

Result<Corrector> get(const Safetensors& file, const std::string& name, std::size_t inputs, bool has_trees,
                      const std::string& where, const std::shared_ptr<const void>& owner, bool check) {
  Corrector corrector;
  NS_TRY(corrector.low, file.get<float>(name + "/low"));
  NS_TRY(corrector.high, file.get<float>(name + "/high"));
  if (corrector.low.size() != inputs || corrector.high.size() != inputs) {
    return fail(bad(where, name + " has ranges of another number of features", std::to_string(inputs)));
  }
  for (std::size_t f = 0; f < inputs; ++f) {
    if (!(corrector.low[f] <= corrector.high[f])) return fail(bad(where, name + " has a range that is empty"));
  }
  if (!has_trees) return corrector;

  const std::string prefix = name + "/trees/";
  Trees::Parts parts;
  NS_TRY(parts.nodes, file.view<std::uint32_t>(prefix + "nodes"));
  NS_TRY(parts.roots, file.view<std::uint32_t>(prefix + "roots"));
  NS_TRY(parts.depths, file.view<std::uint32_t>(prefix + "depths"));
  NS_TRY(parts.border_counts, file.view<std::uint32_t>(prefix + "border_counts"));
  NS_TRY(parts.borders, file.view<float>(prefix + "borders"));
  NS_TRY(const std::vector<float> step, file.get<float>(prefix + "step"));
  if (step.size() != 1) return fail(bad(where, prefix + "step has another number of values", "1"));
  parts.step = step.front();
  if (parts.border_counts.size() != inputs) {
    return fail(bad(where, prefix + "border_counts is made for another number of features", std::to_string(inputs)));
  }
  if (check && !Trees::is_sound(parts)) return fail(bad(where, prefix + " has a node that leads out of its tree"));
  corrector.trees = Trees(parts, owner);
  return corrector;
}

void put(Safetensors& file, const std::string& name, const SumKind& kind, const Sums& sums) {
  std::string classes;
  std::vector<float> values;
  for (const auto& [kernel, coefficients] : sums) {
    classes += (classes.empty() ? "" : ",") + kernel;
    for (std::size_t t = 0; t < kind.terms.size(); ++t) values.push_back(static_cast<float>(coefficients[t]));
  }
  file.metadata()[name + "/terms"] = joined(kind.terms);
  file.metadata()[name + "/classes"] = classes;
  file.put<float>(name + "/coefficients", values);
}

Result<Sums> get_sums(const Safetensors& file, const std::string& name, const SumKind& kind,
                      const std::map<std::string, std::string>& metadata, const std::string& where) {
  const auto terms = metadata.find(name + "/terms"), classes = metadata.find(name + "/classes");
  if (terms == metadata.end() || classes == metadata.end() || terms->second != joined(kind.terms)) {
    return fail(bad(where, "the base of " + name + " was fitted with other terms", joined(kind.terms)));
  }
  const std::vector<std::string> kernels = split(classes->second);
  NS_TRY(const std::vector<float> values, file.get<float>(name + "/coefficients"));
  if (values.size() != kernels.size() * kind.terms.size()) {
    return fail(bad(where, name + "/coefficients has another number of values",
                    std::to_string(kernels.size() * kind.terms.size())));
  }
  Sums sums;
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (!(values[v] >= 0)) return fail(bad(where, name + "/coefficients has one below zero"));
    sums[kernels[v / kind.terms.size()]][v % kind.terms.size()] = static_cast<double>(values[v]);
  }
  return sums;
}

// `check` is left out for the files that are compiled in: a test reads them with it.
Result<KernelWeights> read(std::string_view bytes, const std::string& where, const std::shared_ptr<const void>& owner,
                           bool check) {
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
    for (const std::string& id : split(text(name + "/gpus"))) {
      NS_TRY(Gpu sheet, read_data_sheet(text("gpu/" + id), id, where));
      part.gpus.push_back(std::move(sheet));
    }
    const std::size_t shared = shape_features(predictor).size() + gpu_features(predictor).size();
    if (part.gpus.size() > kMaxFeatures) return fail(bad(where, name + " has too many GPUs", "at most 48"));
    NS_TRY(part.on_measured_gpu, get(file, name + "/on_measured_gpu", shared + part.gpus.size(),
                                     text(name + "/on_measured_gpu/trees") != "0", where, owner, check));
    part.on_sibling = trees_for_siblings(part.on_measured_gpu);
    if (const SumKind* const kind = kind_of(predictor).sum) {
      NS_TRY(part.sums, get_sums(file, name, *kind, weights.metadata, where));
    }
    NS_TRY(part.on_other_gpu,
           get(file, name + "/on_other_gpu", shared, text(name + "/on_other_gpu/trees") != "0", where, owner, check));
    for (const auto& [tensor, values] :
         {std::pair("/rows", &part.rows), std::pair("/kernel_classes", &part.kernel_classes)}) {
      NS_TRY(*values, file.get<std::uint32_t>(name + tensor));
      if (values->size() != part.gpus.size()) {
        return fail(bad(where, name + tensor + " has another number of GPUs", std::to_string(part.gpus.size())));
      }
    }
    std::size_t intervals = 0;
    for (const std::uint32_t bits : part.kernel_classes) intervals += static_cast<std::size_t>(std::popcount(bits));
    if (intervals == 0) return fail(bad(where, name + "/kernel_classes names no class"));
    NS_TRY(part.measured, get_quantiles(file, name + "/quantiles/measured", intervals, where));
    NS_TRY(const auto same_generation, get_quantiles(file, name + "/quantiles/same_generation", 1, where));
    NS_TRY(const auto other_generation, get_quantiles(file, name + "/quantiles/other_generation", 1, where));
    part.same_generation = same_generation.front();
    part.other_generation = other_generation.front();
    if (weights.metadata.contains(name + "/power/trees")) {
      NS_TRY(part.power, get(file, name + "/power", shared, text(name + "/power/trees") != "0", where, owner, check));
    }
    if (weights.metadata.contains(name + "/slowdown/trees")) {
      NS_TRY(part.slowdown,
             get(file, name + "/slowdown", shared, text(name + "/slowdown/trees") != "0", where, owner, check));
    }
    weights.predictors[p] = std::move(part);
  }
  return weights;
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
    for (const Gpu& gpu : part.gpus) {
      gpus += (gpus.empty() ? "" : ",") + gpu.id;
      file.metadata()["gpu/" + gpu.id] = to_json(gpu);
    }
    file.metadata()[name + "/gpus"] = gpus;
    const auto describe = [&](const std::string& which, const Corrector& corrector) {
      file.metadata()[name + "/" + which + "/trees"] = std::to_string(corrector.trees.size());
      put(file, name + "/" + which, corrector);
    };
    if (const SumKind* const kind = kind_of(predictor).sum) put(file, name, *kind, part.sums);
    describe("on_measured_gpu", part.on_measured_gpu);
    describe("on_other_gpu", part.on_other_gpu);
    file.put<std::uint32_t>(name + "/rows", part.rows);
    file.put<std::uint32_t>(name + "/kernel_classes", part.kernel_classes);
    std::vector<float> measured;
    for (const Quantiles& quantiles : part.measured) {
      measured.insert(measured.end(), quantiles.begin(), quantiles.end());
    }
    file.put<float>(name + "/quantiles/measured", measured);
    file.put<float>(name + "/quantiles/same_generation", part.same_generation);
    file.put<float>(name + "/quantiles/other_generation", part.other_generation);
    if (!part.power.trees.empty()) describe("power", part.power);
    if (!part.slowdown.trees.empty()) describe("slowdown", part.slowdown);
  }
  return file.bytes();
}

Result<KernelWeights> read_kernel_weights(std::string_view bytes, const std::string& where,
                                          std::shared_ptr<const void> owner) {
  return read(bytes, where, owner, true);
}

Result<KernelWeights> read_kernel_weights_copy(std::string bytes, const std::string& where) {
  const auto owned = std::make_shared<const std::string>(std::move(bytes));
  return read(*owned, where, owned, true);
}

const PredictorWeights* standard_weights(Predictor predictor) {
  struct Lazy {
    std::once_flag once;
    std::optional<PredictorWeights> weights;
  };
  static std::array<Lazy, kPredictorCount> all;
  Lazy& lazy = all[static_cast<std::size_t>(predictor)];
  std::call_once(lazy.once, [&] {
    // Files are named after the one predictor that they hold: "gemm-v1.safetensors".
    const std::string prefix = std::string(name_of(predictor)) + "-v";
    for (const EmbeddedFile& file : embedded_weights()) {
      if (!file.path.starts_with(prefix)) continue;
      auto weights = read(file.content, std::string(file.path), nullptr, false);
      NS_EXPECTS(weights.has_value());  // compiled in: a mismatch is a mistake of the build
      lazy.weights = std::move(weights->predictors[static_cast<std::size_t>(predictor)]);
    }
  });
  return lazy.weights ? &*lazy.weights : nullptr;
}

const Sums& standard_sums(Predictor predictor) {
  static const Sums kNone;
  const PredictorWeights* const weights = standard_weights(predictor);
  return weights == nullptr ? kNone : weights->sums;
}

}  // namespace ns_dist
