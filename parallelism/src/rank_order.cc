#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/internal/split_at.h"
#include "ns_dist/planner.h"

namespace ns_dist {
namespace {

struct Dimension {
  std::string_view name;
  std::int64_t ParallelPlan::*degree;
};
constexpr std::array<Dimension, 5> kDimensions = {{{"tp", &ParallelPlan::tp},
                                                   {"cp", &ParallelPlan::cp},
                                                   {"ep", &ParallelPlan::ep},
                                                   {"dp", &ParallelPlan::dp},
                                                   {"pp", &ParallelPlan::pp}}};

}  // namespace

Result<std::vector<std::string_view>> rank_order(const ParallelPlan& plan) {
  const auto refuse = [&](std::string message, std::string hint = "") {
    return fail({ErrorCode::kInvalidInput, std::move(message), "plan/order",
                 "tp, cp, ep, dp and pp joined by \"-\", innermost first, ep beside dp",
                 hint.empty() ? "use, for example, plan/order=tp-cp-ep-dp-pp" : std::move(hint)});
  };
  std::vector<std::string_view> order;
  order.reserve(kDimensions.size());
  const auto position = [&](std::string_view name) { return std::find(order.begin(), order.end(), name); };
  for (const std::string_view name : split_at(plan.order, "-")) {
    const auto known = std::find_if(kDimensions.begin(), kDimensions.end(),
                                    [name](const Dimension& dimension) { return dimension.name == name; });
    if (known == kDimensions.end()) return refuse(fmt::format("\"{}\" is no parallel dimension", name));
    if (position(name) != order.end()) return refuse(fmt::format("{} is named twice", name));
    order.push_back(known->name);
  }
  for (const Dimension& dimension : kDimensions) {
    if (position(dimension.name) != order.end()) continue;
    if (dimension.name == "ep") {
      if (position("dp") != order.end()) order.insert(position("dp"), dimension.name);
      continue;
    }
    if (plan.*dimension.degree > 1) {
      return refuse(fmt::format("{} {} has no place in \"{}\"", dimension.name, plan.*dimension.degree, plan.order),
                    fmt::format("add {}", dimension.name));
    }
    order.insert(dimension.name == "dp" && position("ep") != order.end() ? position("ep") + 1 : order.end(),
                 dimension.name);
  }
  if (position("ep") == order.end()) order.insert(position("dp"), "ep");
  const auto apart = position("dp") - position("ep");
  if (apart != 1 && apart != -1) {
    // Megatron-LM's --use-tp-pp-dp-mapping is written "tp-cp-ep-pp-dp".
    if (plan.ep > 1) return refuse("ep is not beside dp, of which it is a part", "use plan/order=tp-cp-pp-ep-dp");
    order.erase(position("ep"));
    order.insert(position("dp"), "ep");
  }
  return order;
}

Mesh mesh_of(const ParallelPlan& plan) {
  const auto order = rank_order(plan);
  NS_EXPECTS(order.has_value());
  std::vector<std::string_view> names;
  std::vector<std::int64_t> sizes;
  names.reserve(order->size());
  sizes.reserve(order->size());
  for (const std::string_view name : *order) {
    if (name == "ep") continue;
    const auto known = std::find_if(kDimensions.begin(), kDimensions.end(),
                                    [name](const Dimension& dimension) { return dimension.name == name; });
    names.push_back(known->name);
    sizes.push_back(plan.*known->degree);
  }
  return Mesh::innermost_first(names, sizes);
}

}  // namespace ns_dist
