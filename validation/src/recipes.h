// What the weights that ship were fitted on, as their cards list it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/kernel_fit.h"

namespace ns_dist {

struct KernelRecipe {
  std::string_view predictor;
  std::array<std::string_view, 2> tables{};  // prefixes of their names; without any: all tables
  std::string_view framework{};              // the one whose rows are read of a GPU that several have measured
  bool own = false;                          // the project's own measurements, too
};

inline constexpr std::array<KernelRecipe, 9> kKernelRecipes = {{
    {"gemm", {}, "trtllm"},
    {"gemm_fp8"},
    {"gemm_fp32", {"fp32_train"}},
    {"attention"},
    {"training_attention", {}, "", true},
    {"normalization"},
    {"moe"},
    {"vector", {"fp32_train", "fp16_layer_ops"}},
    {"convolution"},
}};

inline KernelFitOptions fit_options(const KernelRecipe& recipe) {
  KernelFitOptions options;
  options.predictors = {std::string(recipe.predictor)};
  for (const std::string_view table : recipe.tables) {
    if (!table.empty()) options.tables.emplace_back(table);
  }
  if (!recipe.framework.empty()) options.prefer_frameworks = {std::string(recipe.framework)};
  return options;
}

}  // namespace ns_dist
