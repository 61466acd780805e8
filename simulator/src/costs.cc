#include "costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "group_places.h"
#include "host_work.h"
#include "ns_dist/fair_sharing.h"
#include "ns_dist/internal/as_collective.h"
#include "ns_dist/simulator.h"
#include "ns_dist/training_clock.h"

namespace ns_dist {

std::int64_t period_of(const Cluster& cluster) {
  std::int64_t period = 1;
  for (std::size_t i = 0; i + 1 < cluster.levels.size(); ++i)
    period *= std::max<std::int64_t>(1, cluster.levels[i].size);
  return period;
}

// A work that is a product of experts, with even groups: of `busiest` times the mean's rows.
static std::optional<WorkItem> with_even_groups(const WorkItem& item, double busiest) {
  const auto* op = std::get_if<Operator>(&item.work);
  const auto* product = op != nullptr ? std::get_if<GroupedGemm>(&op->kind) : nullptr;
  if (product == nullptr || !(busiest > 1)) return std::nullopt;
  GroupedGemm even = *product;
  even.rows = std::max<std::int64_t>(1, std::llround(static_cast<double>(product->rows) / busiest));
  WorkItem changed = item;
  changed.work = Operator{even, op->dtype};
  return changed;
}

// The ranks between which a message runs, in stage representatives.
static std::pair<Rank, Rank> ends_of(const Message& message, Rank stride) {
  return {std::min(message.from_stage, message.to_stage) * stride,
          std::max(message.from_stage, message.to_stage) * stride};
}

Collective as_collective(const Message& message, const Mesh& mesh) {
  const auto [first, last] = ends_of(message, mesh.stride("pp"));
  Collective send{CollectiveKind::kSendRecv, message.size, RankGroup{first, {{2, last - first}}}};
  send.stages = {mesh.size("pp"), mesh.stride("pp")};
  return send;
}

// What the network does for a collective or a message.
static Collective call_of(const WorkItem& item, const Mesh& mesh) {
  const auto* collective = std::get_if<Collective>(&item.work);
  return collective ? *collective : as_collective(std::get<Message>(item.work), mesh);
}

Result<Forecast> forecast_work(const WorkItem& item, const Mesh& mesh, const ComputeCost& compute,
                               const NetworkCost& network) {
  Result<Forecast> forecast;
  if (const auto* op = std::get_if<Operator>(&item.work)) {
    forecast = compute.forecast(*op);
  } else if (const auto* collective = std::get_if<Collective>(&item.work)) {
    forecast = network.forecast(*collective);
  } else {
    forecast = network.forecast(as_collective(std::get<Message>(item.work), mesh));
  }
  if (!forecast) {
    Error error = std::move(forecast.error());
    error.message = fmt::format("{}: {}", item.name, error.message);
    if (item.name.starts_with("optimizer.muon")) error.hint = "use plan/optimizer=adam: Muon's products are in bf16";
    return fail(std::move(error));
  }
  // Every range is meant to exclude it; a time that is none is never an answer.
  if (!std::isfinite(forecast->latency / units::s) || forecast->latency < Seconds()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} has no finite forecast", item.name), "model, machine, plan",
                 "sizes and speeds that are plausible"});
  }
  return forecast;
}

std::vector<double> seconds_alone(const StepProgram& program, const ProgramCosts& costs,
                                  bool (*counts)(const WorkItem&)) {
  std::vector<double> all;
  for (std::size_t a = 0; a < program.actors.size(); ++a) {
    const std::vector<Forecast>& forecasts = costs.row(a).forecasts;
    const auto seconds = [&](std::size_t work) {
      return counts(program.works[work]) ? forecasts[work].latency / units::s : 0;
    };
    std::vector<double> of_fragment;
    for (const Fragment& fragment : program.fragments) {
      double sum = 0;
      for (const FragmentNode& node : fragment.nodes) sum += seconds(index(node.work));
      of_fragment.push_back(sum);
    }
    double sum = 0;
    for_each_instruction(program, program.actors[a], [&](const Instruction& instruction, double repeats) {
      if (instruction.kind == Instruction::Kind::kRun)
        sum += repeats * instruction.times * of_fragment[instruction.index];
      if (instruction.kind == Instruction::Kind::kStart || instruction.kind == Instruction::Kind::kSend)
        sum += repeats * seconds(instruction.index);
    });
    all.push_back(sum);
  }
  return all;
}

Result<Demand> demand_of(const WorkItem& item, const Mesh& mesh, const Forecast& forecast, const Cluster& cluster,
                         bool contention, bool compute_slowdown) {
  Demand demand;
  if (std::holds_alternative<Operator>(item.work)) {
    if (compute_slowdown) demand.bound = forecast.bound;
    return demand;
  }
  NS_TRY(Footprint taken, footprint(cluster, call_of(item, mesh), forecast.latency));
  if (contention) demand.ports = std::move(taken.ports);
  if (compute_slowdown) {
    demand.sms = std::min(1.0, taken.channels / static_cast<double>(cluster.gpu.sm_count));
    demand.memory = std::min(1.0, taken.memory_traffic / cluster.gpu.memory_bandwidth);
  }
  return demand;
}

// A collective or a message as other ranks of its stages run it, where their groups lie otherwise. All replicas wait
// for the slowest one.
static std::vector<WorkItem> otherwise_placed(const WorkItem& item, const Mesh& mesh, OtherPlaces& places) {
  Collective call = call_of(item, mesh);
  std::vector<WorkItem> others;
  for (const RankGroup& group : places.of(call.group)) {
    call.group = group;
    others.push_back({item.name, item.category, call});
  }
  return others;
}

// How many times as long kernels of the stage take. All replicas wait for the slowest one where gradients meet, so a
// step with one slow rank takes as long as if the stage were slow in all of them.
static double slowdown_of(const Stragglers& stragglers, std::size_t stage) {
  double factor = stragglers.slow_stage == static_cast<std::int64_t>(stage) ? stragglers.slow_factor : 1;
  if (stage < stragglers.stage_speed.size()) factor /= stragglers.stage_speed[stage];
  return factor;
}

// By row and work: the rank of an actor of the row that runs the work, or -1.
static std::vector<std::vector<Rank>> users_of(const StepProgram& program,
                                               const std::vector<std::uint32_t>& row_of_actor, std::size_t rows) {
  std::vector<std::vector<Rank>> users(rows, std::vector<Rank>(program.works.size(), rows == 1 ? 0 : -1));
  if (rows == 1) return users;
  for (std::size_t a = 0; a < program.actors.size(); ++a) {
    std::vector<Rank>& of = users[row_of_actor[a]];
    const auto use = [&](std::uint32_t work) {
      if (of[work] < 0) of[work] = program.actors[a].rank;
    };
    for_each_instruction(program, program.actors[a], [&](const Instruction& instruction, double) {
      if (instruction.kind == Instruction::Kind::kStart || instruction.kind == Instruction::Kind::kSend) {
        use(instruction.index);
      } else if (instruction.kind == Instruction::Kind::kRun) {
        for (const FragmentNode& node : program.fragments[instruction.index].nodes) use(index(node.work));
      }
    });
  }
  return users;
}

namespace {

class Pricing {
 public:
  Pricing(const StepProgram& program, const Scenario& scenario, const Session& session)
      : program_(program),
        scenario_(scenario),
        session_(session),
        network_(session.network(scenario.training.precision)),
        clock_(training_clock(scenario, program.mesh.ranks())),
        busiest_(busiest_over_mean(scenario.model, scenario.plan)),
        shares_(scenario.network.contention || scenario.network.compute_slowdown),
        period_(period_of(scenario.cluster)) {}

  Result<ProgramCosts> costs() {
    std::vector<std::pair<Rank, double>> places;  // by row; with how many times as long its kernels take
    for (std::size_t stage = 0; stage < program_.actors.size(); ++stage) {
      const std::pair place{program_.actors[stage].rank % period_, slowdown_of(scenario_.stragglers, stage)};
      const auto known = std::find(places.begin(), places.end(), place);
      costs_.row_of_actor.push_back(static_cast<std::uint32_t>(known - places.begin()));
      if (known == places.end()) places.push_back(place);
    }
    const std::vector<std::vector<Rank>> users = users_of(program_, costs_.row_of_actor, places.size());
    costs_.rows.reserve(places.size());
    for (std::size_t r = 0; r < places.size(); ++r) NS_TRY_VOID(add_row(users[r], places[r].second));
    return std::move(costs_);
  }

 private:
  Result<void> add_row(const std::vector<Rank>& users, double slowdown) {
    ProgramCosts::Row& row = costs_.rows.emplace_back();
    OtherPlaces others(program_.mesh, scenario_.cluster);
    row.forecasts.reserve(program_.works.size() + program_.fragments.size());  // with waits for the host
    row.forecasts.resize(program_.works.size());
    if (shares_) row.demands.resize(program_.works.size());
    for (std::size_t w = 0; w < program_.works.size(); ++w) {
      if (users[w] < 0) continue;
      const WorkItem& item = program_.works[w];
      const auto* message = std::get_if<Message>(&item.work);
      if (message != nullptr && copies_alike(*message, w)) continue;
      const auto* op = std::get_if<Operator>(&item.work);
      std::optional<WorkItem> own;
      NS_TRY(row.forecasts[w],
             op != nullptr ? kernel(item, *op, slowdown, own) : communication(item, users[w], others, own));
      if (!shares_) continue;
      NS_TRY(row.demands[w], demand_of(own ? *own : item, program_.mesh, row.forecasts[w], scenario_.cluster,
                                       scenario_.network.contention, scenario_.network.compute_slowdown));
    }
    return {};
  }

  // Messages between ranks that lie alike take the same. False: this is the first of them.
  bool copies_alike(const Message& message, std::size_t w) {
    const auto [first, last] = ends_of(message, program_.mesh.stride("pp"));
    const std::tuple alike{first % period_, last - first, message.size.in_base()};
    const auto known =
        std::find_if(messages_.begin(), messages_.end(), [&](const auto& entry) { return entry.first == alike; });
    if (known == messages_.end()) {
      messages_.emplace_back(alike, std::pair{costs_.rows.size() - 1, w});
      return false;
    }
    const auto [row_of, work] = known->second;
    ProgramCosts::Row& row = costs_.rows.back();
    row.forecasts[w] = costs_.rows[row_of].forecasts[work];
    if (shares_) row.demands[w] = costs_.rows[row_of].demands[work];
    return true;
  }

  // `own`: the work as the rank runs it, where it is not `item`.
  Result<Forecast> kernel(const WorkItem& item, const Operator& op, double slowdown,
                          std::optional<WorkItem>& own) const {
    if (item.host.any()) {
      return forecast_host_work(item.host, scenario_.cluster.gpu, scenario_.host,
                                shares_of_host(scenario_.cluster, program_.mesh.ranks()));
    }
    const bool own_models = !session_.made_its_models();  // those of the caller, which are left as they are
    if (op.dtype == DType::kFp16 && !own_models) {
      own = item;
      own->work = clock_.kernel_of(op);
    }
    const WorkItem& asked = own ? *own : item;
    NS_TRY(Forecast forecast, forecast_work(asked, program_.mesh, session_.compute(), network_));
    if (const auto even = with_even_groups(asked, busiest_); even && !own_models) {
      NS_TRY(const Forecast usual, forecast_work(*even, program_.mesh, session_.compute(), network_));
      forecast = clock_.in_training(forecast, usual, op);
    } else if (!own_models) {
      forecast = clock_.in_training(forecast, op);
    }
    for (Seconds* time : {&forecast.latency, &forecast.low, &forecast.high}) *time *= slowdown;
    return forecast;
  }

  // Of `rank`, or of the slowest of the ranks that do the same elsewhere.
  Result<Forecast> communication(const WorkItem& item, Rank rank, OtherPlaces& others,
                                 std::optional<WorkItem>& own) const {
    if (std::holds_alternative<Collective>(item.work) && rank != 0) own = work_of_actor(item, rank);
    const auto forecast_of = [&](const WorkItem& work) {
      return forecast_work(work, program_.mesh, session_.compute(), network_);
    };
    NS_TRY(Forecast forecast, forecast_of(own ? *own : item));
    for (WorkItem& other : otherwise_placed(own ? *own : item, program_.mesh, others)) {
      NS_TRY(const Forecast there, forecast_of(other));
      if (there.latency > forecast.latency) forecast = there, own = std::move(other);
    }
    return forecast;
  }

  const StepProgram& program_;
  const Scenario& scenario_;
  const Session& session_;
  const NetworkCost& network_;
  TrainingClock clock_;
  double busiest_;  // rows of the busiest expert over the mean
  bool shares_;
  std::int64_t period_;
  ProgramCosts costs_;
  // By what makes messages alike, the row and work of the first.
  std::vector<std::pair<std::tuple<Rank, Rank, double>, std::pair<std::size_t, std::size_t>>> messages_;
};

}  // namespace

Result<ProgramCosts> costs_of(const StepProgram& program, const Scenario& scenario, const Session& session) {
  return Pricing(program, scenario, session).costs();
}

}  // namespace ns_dist
