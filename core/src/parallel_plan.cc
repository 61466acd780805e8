#include "ns_dist/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/internal/lower_case.h"
#include "ns_dist/model.h"

namespace ns_dist {
namespace {

constexpr std::string_view kExpected =
    "none, selective, selective:MODULE,MODULE..., operators, operators:all, full, full:LAYERS, or "
    "full:uniform:LAYERS";

constexpr std::string_view kAllProducts = "all";

tl::unexpected<Error> refuse(const Field& field, std::string message, std::string hint) {
  return fail(
      {ErrorCode::kInvalidInput, std::move(message), std::string(field.name), std::string(kExpected), std::move(hint)});
}

}  // namespace

double most_over_mean(const Model& model, const ParallelPlan& plan) {
  if (!model.moe) return 1;
  const double experts_of_token = static_cast<double>(model.moe->experts) / static_cast<double>(model.moe->top_k);
  return std::min(static_cast<double>(plan.ep), experts_of_token);
}

double busiest_over_mean(const Model& model, const ParallelPlan& plan) {
  return pads_experts(plan) ? 1 : std::min(plan.expert_imbalance.value, most_over_mean(model, plan));
}

// The parts are read where the pipeline is known.
Result<void> read_field(const Field& field, std::string_view text, PipelineLayout& value) {
  constexpr std::size_t kLongest = 100'000;
  if (text.empty() || text.size() > kLongest) {
    return refuse(field, text.empty() ? "no text" : "a text of more than 100,000 letters",
                  fmt::format("write, for example, {}=Et|tt|tL", field.name));
  }
  value.text = lower_case(text) == "even" ? "" : text;
  return {};
}

std::string field_text(const PipelineLayout& value) { return value.is_even() ? "even" : value.text; }

Result<void> read_field(const Field& field, std::string_view text, Recomputation& value) {
  const std::size_t colon = text.find(':');
  const auto kind = read_enumerator<Recompute>(text.substr(0, colon));
  if (!kind) return refuse(field, kind.error().message, kind.error().hint);
  Recomputation read{*kind};
  if (colon != std::string_view::npos) {
    const std::string all = lower_case(text.substr(colon + 1));
    const std::string_view detail = all;
    switch (read.recompute) {
      case Recompute::kNone:
        return refuse(field, "nothing is recomputed under none", fmt::format("write {}=none", field.name));
      case Recompute::kOperators:
        if (detail != kAllProducts) {
          return refuse(field, fmt::format("unknown: \"{}\"", detail),
                        fmt::format("write {0}=operators, or {0}=operators:all, which keeps each product", field.name));
        }
        read.products = KeptProducts::kAll;
        break;
      case Recompute::kSelective: {
        NS_TRY(read.modules, read_set(field, detail, names_of<RecomputeModule>(), kExpected));
        break;
      }
      case Recompute::kFull: {
        // Megatron-LM's methods: block, of a number of layers, is what a number alone means.
        constexpr std::string_view kUniform = "uniform:", kBlock = "block:";
        const bool uniform = detail.starts_with(kUniform);
        std::string_view number = detail;
        if (uniform) number.remove_prefix(kUniform.size());
        if (detail.starts_with(kBlock)) number.remove_prefix(kBlock.size());
        const auto layers = read_whole_number(number, 1, kMostOfAField);
        if (!layers) {
          return refuse(field, layers.error().message,
                        fmt::format("write, for example, {0}=full:4, or {0}=full:uniform:2", field.name));
        }
        (uniform ? read.together : read.layers) = *layers;
        break;
      }
    }
  }
  value = read;
  return {};
}

std::string field_text(const Recomputation& value) {
  std::string text(name_of(value.recompute));
  if (value.recompute == Recompute::kFull && value.layers > 0) text += fmt::format(":{}", value.layers);
  if (value.recompute == Recompute::kFull && value.together > 1) text += fmt::format(":uniform:{}", value.together);
  if (value.recompute == Recompute::kOperators && value.products == KeptProducts::kAll) {
    text += fmt::format(":{}", kAllProducts);
  }
  if (value.recompute != Recompute::kSelective || value.modules == Recomputation().modules) return text;
  return fmt::format("{}:{}", text, set_text(value.modules, names_of<RecomputeModule>()));
}

}  // namespace ns_dist
