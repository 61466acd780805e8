#include "ns_dist/layer_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "ns_dist/internal/with_commas.h"
#include "ns_dist/pipeline_layout.h"

namespace ns_dist {
namespace {

tl::unexpected<Error> infeasible(std::string message, std::string where, std::string expected, std::string hint) {
  return fail({ErrorCode::kInfeasible, std::move(message), std::move(where), std::move(expected),
               hint.starts_with("plan/") ? "use " + hint : std::move(hint)});
}

// How many layers each position holds; kOpen where its stage's size is not given.
using Counts = std::vector<std::int64_t>;
constexpr std::int64_t kOpen = -1;

// Spreads `layers` over the positions of `counts` that `chosen` names; the first ones get one more.
void spread(Counts& counts, const std::vector<std::size_t>& chosen, std::int64_t layers) {
  const auto parts = static_cast<std::int64_t>(chosen.size());
  for (std::int64_t i = 0; i < parts; ++i) {
    counts[chosen[static_cast<std::size_t>(i)]] = layers / parts + (i < layers % parts ? 1 : 0);
  }
}

// Gives the stage that holds position `at` the layers that the plan's field asks for.
Result<void> own_size(Counts& counts, const std::vector<Seat>& seats, std::size_t at, std::int64_t layers,
                      std::string_view field) {
  if (layers == 0) return {};
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].stage == seats[at].stage) chosen.push_back(i);
  }
  const auto chunks = static_cast<std::int64_t>(chosen.size());
  if (layers < chunks) {
    return infeasible(fmt::format("{} layers leave a part of the stage's {} without one", layers, chunks),
                      std::string(field), fmt::format("at least {}", chunks), fmt::format("{}={}", field, chunks));
  }
  const std::int64_t given = std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0},
                                             [&](std::int64_t sum, std::size_t i) { return sum + counts[i]; });
  if (counts[at] != kOpen && given != layers) {
    return infeasible(fmt::format("the same stage holds the embedding and the loss, and has {} layers already", given),
                      std::string(field), fmt::format("{}", given), fmt::format("{}={}", field, given));
  }
  spread(counts, chosen, layers);
  return {};
}

// Leaves out the size of one end where the other one is possible alone, else both.
std::string without_own_size(const Model& model, const ParallelPlan& plan) {
  if (plan.first_stage_layers == 0) return "plan/last_stage_layers=0";
  if (plan.last_stage_layers == 0) return "plan/first_stage_layers=0";
  ParallelPlan one = plan;
  one.first_stage_layers = 0;
  if (divide_layers(model, one)) return "plan/first_stage_layers=0";
  one.first_stage_layers = plan.first_stage_layers;
  one.last_stage_layers = 0;
  if (divide_layers(model, one)) return "plan/last_stage_layers=0";
  return "plan/first_stage_layers=0 and plan/last_stage_layers=0";
}

// Divides what is left over the open positions. The embedding and the loss count as layers where the plan sets that.
Result<void> fill_open(Counts& counts, const Model& model, const ParallelPlan& plan) {
  if (plan.account_embedding && counts.front() != kOpen) {
    return infeasible("the stage of the embedding has a size of its own", "plan/account_embedding", "off",
                      "plan/account_embedding=off");
  }
  if (plan.account_loss && counts.back() != kOpen) {
    return infeasible("the stage of the loss has a size of its own", "plan/account_loss", "off",
                      "plan/account_loss=off");
  }
  std::vector<std::size_t> open;
  std::int64_t left = model.layers;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == kOpen) {
      open.push_back(i);
    } else {
      left -= counts[i];
    }
  }
  const std::int64_t counted = counted_layers(model, plan) - (model.layers - left);
  if (counted < static_cast<std::int64_t>(open.size()) || (open.empty() && left != 0)) {
    const char* field = plan.last_stage_layers == 0    ? "plan/first_stage_layers"
                        : plan.first_stage_layers == 0 ? "plan/last_stage_layers"
                                                       : "plan/first_stage_layers, plan/last_stage_layers";
    return infeasible(left < 0 ? fmt::format("stages of their own size have {} layers, and the model has {}",
                                             model.layers - left, model.layers)
                               : fmt::format("stages of their own size leave {} of {} layers for {} other parts of "
                                             "the pipeline",
                                             left, model.layers, open.size()),
                      field, open.empty() ? "sizes that add up to the model" : "at least one layer for each part",
                      without_own_size(model, plan));
  }
  if (open.empty()) return {};
  spread(counts, open, counted);
  if (plan.account_embedding) --counts.front();
  if (plan.account_loss) --counts.back();
  return {};
}

tl::unexpected<Error> too_many_positions(const Model& model, const ParallelPlan& plan, std::int64_t positions) {
  const std::int64_t layers = counted_layers(model, plan);
  const std::int64_t chunks = std::max<std::int64_t>(1, positions / plan.pp);
  // Fewer chunks a stage where that leaves several, else fewer stages.
  const bool fewer_chunks = plan.vpp > 1 && layers / plan.pp > 1;
  const char* const field = fewer_chunks ? "plan/vpp" : "plan/pp";
  const std::int64_t most = std::max<std::int64_t>(1, layers / (fewer_chunks ? plan.pp : chunks));
  return infeasible(
      fmt::format("{} do not fill the {} parts of the pipeline", counted_layers_text(model, plan), positions), field,
      fmt::format("at most {}", most), fmt::format("{}={}", field, most));
}

// What a layout that can be read, and that has the model's layers, holds at each position.
Result<std::vector<PositionParts>> parts_of_layout(const Model& model, const ParallelPlan& plan) {
  constexpr const char* kField = "plan/pipeline_layout";
  for (const auto& [set, field, none] : {std::tuple(plan.first_stage_layers > 0, "plan/first_stage_layers", "0"),
                                         std::tuple(plan.last_stage_layers > 0, "plan/last_stage_layers", "0"),
                                         std::tuple(plan.account_embedding, "plan/account_embedding", "off"),
                                         std::tuple(plan.account_loss, "plan/account_loss", "off")}) {
    if (set) {
      return infeasible(fmt::format("plan/pipeline_layout divides the layers, and {} does", field), kField,
                        "one of the two", fmt::format("write {}={}, or {}=even", field, none, kField));
    }
  }
  NS_TRY(std::vector<PositionParts> parts, read_pipeline_layout(plan.pipeline_layout.text));
  std::int64_t layers = 0;
  for (const PositionParts& each : parts) layers += each.layers;
  if (layers != model.layers) {
    return infeasible(fmt::format("a layout of {} layers, and {} has {}", layers, model.name, model.layers), kField,
                      fmt::format("{} layers", model.layers), fmt::format("write {} t", model.layers));
  }
  return parts;
}

// The plan's own layout.
Result<std::vector<LayerRange>> laid_out(const Model& model, const ParallelPlan& plan, std::int64_t positions) {
  NS_TRY(const std::vector<PositionParts> parts, parts_of_layout(model, plan));
  const auto written = static_cast<std::int64_t>(parts.size());
  if (written != positions) {
    const std::int64_t chunks = written / plan.pp;
    const PipelineSchedule& schedule = traits_of(plan);
    const bool whole = written % plan.pp == 0 && positions == plan.pp * plan.vpp;
    std::string hint = fmt::format("write {} \"|\"", positions - 1);
    if (whole && schedule.most_chunks != 0 && chunks > schedule.most_chunks) hint += ", or plan/schedule=interleaved";
    if (whole && (schedule.most_chunks == 0 || chunks <= schedule.most_chunks)) {
      hint = fmt::format("write plan/vpp={}, or {} \"|\"", chunks, positions - 1);
    }
    return infeasible(
        fmt::format("a layout of {}, and the pipeline has {}", counted(written, "model chunk"), positions),
        "plan/pipeline_layout", fmt::format("{} model chunks", positions), std::move(hint));
  }
  std::vector<LayerRange> ranges;
  ranges.reserve(parts.size());
  std::int64_t first = 0;
  for (const PositionParts& each : parts) {
    ranges.push_back({first, each.layers, each.predictions});
    first += each.layers;
  }
  return ranges;
}

}  // namespace

std::int64_t frozen_positions(const ParallelPlan& plan, std::span<const LayerRange> layers) {
  std::int64_t frozen = 0;
  for (const LayerRange& range : layers.first(layers.empty() ? 0 : layers.size() - 1)) {  // the last has the loss
    if (frozen_layers_of(plan) == 0 || range.first + range.count > frozen_layers_of(plan) || range.predictions > 0)
      break;
    ++frozen;
  }
  return frozen;
}

std::int64_t counted_layers(const Model& model, const ParallelPlan& plan) {
  return model.layers + (plan.account_embedding ? 1 : 0) + (plan.account_loss ? 1 : 0);
}

std::string counted_layers_text(const Model& model, const ParallelPlan& plan) {
  std::string text = counted(model.layers, "layer");
  if (plan.account_embedding) text += plan.account_loss ? ", the embedding" : " and the embedding";
  if (plan.account_loss) text += " and the loss";
  return text;
}

Result<void> check_layout(const Model& model, const ParallelPlan& plan) {
  if (!plan.pipeline_layout.is_even()) NS_TRY_VOID(parts_of_layout(model, plan));
  return {};
}

Result<std::vector<LayerRange>> divide_layers(const Model& model, const ParallelPlan& plan, const Seats& seats) {
  NS_EXPECTS(!seats.empty() && !seats[0].empty());
  const auto positions = static_cast<std::int64_t>(seats[0].size());
  if (!plan.pipeline_layout.is_even()) return laid_out(model, plan, positions);
  if (positions > counted_layers(model, plan)) return too_many_positions(model, plan, positions);
  Counts counts(seats[0].size(), kOpen);
  NS_TRY_VOID(own_size(counts, seats[0], 0, plan.first_stage_layers, "plan/first_stage_layers"));
  NS_TRY_VOID(own_size(counts, seats[0], counts.size() - 1, plan.last_stage_layers, "plan/last_stage_layers"));
  NS_TRY_VOID(fill_open(counts, model, plan));
  std::vector<LayerRange> ranges;
  ranges.reserve(counts.size());
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    ranges.push_back({first, count});
    first += count;
  }
  ranges.back().predictions = model.prediction_layers;
  return ranges;
}

Result<std::vector<LayerRange>> divide_layers(const Model& model, const ParallelPlan& plan) {
  NS_EXPECTS(plan.pp > 0 && plan.vpp > 0);
  NS_TRY(const PipelineSchedule* schedule, pipeline_schedule(plan.schedule));
  // A position has two seats at most, so that these are more positions than layers: nothing is written out for them.
  if (plan.pipeline_layout.is_even() && plan.vpp > 2 * counted_layers(model, plan) / plan.pp)
    return too_many_positions(model, plan, plan.pp * plan.vpp);
  return divide_layers(model, plan, schedule->seats({plan.pp, 1, plan.vpp}));
}

bool divides_without_rest(const Model& model, const ParallelPlan& plan) {
  const auto ranges = divide_layers(model, plan);
  if (!ranges) return false;
  const std::vector<Seat> seats = traits_of(plan).seats({plan.pp, 1, plan.vpp})[0];
  std::array<std::optional<std::int64_t>, 3> counts;  // of the first stage, the last one, the others
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const bool first = seats[i].stage == seats.front().stage && plan.first_stage_layers > 0;
    const bool last = seats[i].stage == seats.back().stage && plan.last_stage_layers > 0;
    const std::int64_t count = (*ranges)[i].count + (i == 0 && plan.account_embedding ? 1 : 0) +
                               (i + 1 == seats.size() && plan.account_loss ? 1 : 0);
    if (counts[first ? 0 : last ? 1 : 2].value_or(count) != count) return false;
    counts[first ? 0 : last ? 1 : 2] = count;
  }
  return true;
}

std::optional<LastStage> last_stage(const Model& model, const ParallelPlan& plan) {
  const auto ranges = divide_layers(model, plan);
  if (!ranges) return std::nullopt;
  const std::vector<Seat> seats = traits_of(plan).seats({plan.pp, 1, plan.vpp})[0];
  LastStage last{.positions = static_cast<std::int64_t>(seats.size())};
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (seats[i].stage != seats.back().stage) continue;
    last.layers += (*ranges)[i].count;
    ++last.chunks;
  }
  return last;
}

}  // namespace ns_dist
