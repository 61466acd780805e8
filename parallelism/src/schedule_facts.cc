// What follows from a placement and lists of passes.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ns_dist/pipeline_schedule.h"

namespace ns_dist {

std::vector<SchedulePass> flatten(const PassList& list) {
  std::vector<SchedulePass> passes;
  for (const PassLoop& loop : list) {
    for (std::int64_t repeat = 0; repeat < loop.repeats; ++repeat) {
      for (SchedulePass pass : loop.passes) {
        pass.microbatch += static_cast<std::int32_t>(repeat) * loop.shift;
        passes.push_back(pass);
      }
    }
  }
  return passes;
}

Seats loop_seats(const ScheduleShape& shape) {
  Seats seats(1);
  seats[0].reserve(static_cast<std::size_t>(shape.stages * shape.chunks));
  for (std::int32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    for (std::int32_t stage = 0; stage < shape.stages; ++stage) seats[0].push_back({stage, chunk});
  }
  return seats;
}

Seats vee_seats(const ScheduleShape& shape) {
  Seats seats(1);
  const auto stages = static_cast<std::int32_t>(shape.stages);
  for (std::int32_t stage = 0; stage < stages; ++stage) seats[0].push_back({stage, 0});
  for (std::int32_t stage = stages - 1; stage >= 0; --stage) seats[0].push_back({stage, 1});
  return seats;
}

Seats mirrored_seats(const ScheduleShape& shape) {
  Seats seats(2);
  const auto stages = static_cast<std::int32_t>(shape.stages);
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    seats[0].push_back({stage, 0});
    seats[1].push_back({stages - 1 - stage, 1});
  }
  return seats;
}

namespace {

char letter(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return 'F';
    case PassKind::kBackward:
      return 'B';
    case PassKind::kInputGradient:
      return 'I';
    case PassKind::kWeightGradient:
      return 'W';
  }
  return '?';
}

double duration(PassKind kind) { return kind == PassKind::kBackward ? 2 : 1; }

tl::unexpected<Error> mistake(std::string message) {
  return fail({ErrorCode::kInvalidInput, std::move(message), "plan/schedule", "lists of passes that can run"});
}

tl::unexpected<Error> mistake(const SchedulePass& pass, std::size_t stage, std::string_view what) {
  return mistake(
      fmt::format("stage {}: {}{} of chunk {} {}", stage, letter(pass.kind), pass.microbatch, pass.chunk, what));
}

// A part of the model and a microbatch that passes it.
struct Cell {
  double forward = -1, gradient = -1;                      // when they were over
  bool weights = false;                                    // whether the weight gradient has run
  std::int32_t awaits_forward = -1, awaits_gradient = -1;  // the stage that stopped before it
};

struct Position {
  std::int64_t direction = -1, position = 0;
};

class Playback {
 public:
  Playback(const Seats& seats, std::span<const PassList> orders) : seats_(seats), places_(orders.size()) {
    for (const PassList& order : orders) lists_.push_back(flatten(order));
    next_.resize(lists_.size());
    clock_.resize(lists_.size());
    live_.resize(lists_.size());
    facts_.most_live.resize(lists_.size());
    facts_.idle.resize(lists_.size());
  }

  Result<ScheduleFacts> facts() {
    NS_TRY_VOID(prepare());
    for (std::size_t stage = 0; stage < lists_.size(); ++stage) ready_.push_back(stage);
    while (!ready_.empty()) {
      const std::size_t stage = ready_.back();
      ready_.pop_back();
      NS_TRY_VOID(advance(stage));
    }
    for (std::size_t stage = 0; stage < lists_.size(); ++stage) {
      if (next_[stage] < lists_[stage].size()) return mistake(lists_[stage][next_[stage]], stage, "waits forever");
    }
    NS_TRY_VOID(all_passed());
    double busiest = 0;
    for (std::size_t stage = 0; stage < lists_.size(); ++stage) {
      const double busy = busy_of(stage);
      busiest = std::max(busiest, busy);
      facts_.makespan = std::max(facts_.makespan, clock_[stage]);
    }
    facts_.bubble = busiest > 0 ? facts_.makespan / busiest - 1 : 0;
    return std::move(facts_);
  }

 private:
  double busy_of(std::size_t stage) const {
    return std::accumulate(lists_[stage].begin(), lists_[stage].end(), 0.0,
                           [](double sum, const SchedulePass& pass) { return sum + duration(pass.kind); });
  }

  // Where each chunk of a stage lies along the model, and how many microbatches there are.
  Result<void> prepare() {
    std::int64_t positions = 0;
    for (std::size_t direction = 0; direction < seats_.size(); ++direction) {
      first_cell_.push_back(positions);
      for (std::size_t position = 0; position < seats_[direction].size(); ++position, ++positions) {
        const Seat seat = seats_[direction][position];
        if (seat.stage < 0 || seat.chunk < 0 || static_cast<std::size_t>(seat.stage) >= places_.size()) {
          return mistake(fmt::format("position {} has no stage", position));
        }
        auto& chunks = places_[static_cast<std::size_t>(seat.stage)];
        if (static_cast<std::size_t>(seat.chunk) >= chunks.size())
          chunks.resize(static_cast<std::size_t>(seat.chunk) + 1);
        chunks[static_cast<std::size_t>(seat.chunk)] = {static_cast<std::int64_t>(direction),
                                                        static_cast<std::int64_t>(position)};
      }
    }
    std::size_t passes = 0;
    for (const auto& list : lists_) passes += list.size();
    for (std::size_t stage = 0; stage < lists_.size(); ++stage) {
      for (const SchedulePass& pass : lists_[stage]) {
        const auto& chunks = places_[stage];
        const bool known = pass.chunk >= 0 && static_cast<std::size_t>(pass.chunk) < chunks.size() &&
                           chunks[static_cast<std::size_t>(pass.chunk)].direction >= 0;
        if (!known) return mistake(pass, stage, "has no seat");
        if (pass.microbatch < 0 || static_cast<std::size_t>(pass.microbatch) >= passes) {
          return mistake(pass, stage, "belongs to no microbatch");
        }
        microbatches_ = std::max<std::int64_t>(microbatches_, pass.microbatch + 1);
      }
    }
    cells_.resize(static_cast<std::size_t>(positions * microbatches_));
    return {};
  }

  Cell& cell(Position place, std::int64_t microbatch) {
    const std::int64_t row = first_cell_[static_cast<std::size_t>(place.direction)] + place.position;
    return cells_[static_cast<std::size_t>(row * microbatches_ + microbatch)];
  }
  Position place_of(std::size_t stage, const SchedulePass& pass) const {
    return places_[stage][static_cast<std::size_t>(pass.chunk)];
  }
  std::int64_t last_position(Position place) const {
    return static_cast<std::int64_t>(seats_[static_cast<std::size_t>(place.direction)].size()) - 1;
  }

  // Runs passes of a stage until one has to wait.
  Result<void> advance(std::size_t stage) {
    const auto& list = lists_[stage];
    while (next_[stage] < list.size()) {
      std::size_t end = next_[stage] + 1;
      while (end < list.size() && list[end].beside_previous) ++end;
      double start = clock_[stage], time = 0;
      for (std::size_t i = next_[stage]; i < end; ++i) {
        NS_TRY_VOID(check_own(stage, list[i]));
        const double ready = ready_time(stage, list[i]);
        if (ready < 0) return {};
        start = std::max(start, ready);
        time += duration(list[i].kind);
      }
      if (next_[stage] > 0) facts_.idle[stage] += start - clock_[stage];
      clock_[stage] = start + time;
      for (std::size_t i = next_[stage]; i < end; ++i) finish(stage, list[i]);
      next_[stage] = end;
    }
    return {};
  }

  Result<void> check_own(std::size_t stage, const SchedulePass& pass) {
    const Cell& own = cell(place_of(stage, pass), pass.microbatch);
    switch (pass.kind) {
      case PassKind::kForward:
        if (own.forward >= 0) return mistake(pass, stage, "runs twice");
        break;
      case PassKind::kBackward:
      case PassKind::kInputGradient:
        if (own.gradient >= 0) return mistake(pass, stage, "runs twice");
        if (own.forward < 0) return mistake(pass, stage, "runs before its forward pass");
        break;
      case PassKind::kWeightGradient:
        if (own.weights) return mistake(pass, stage, "runs twice");
        if (own.gradient < 0) return mistake(pass, stage, "runs before its input gradient");
        break;
    }
    return {};
  }

  // When the neighbor's result is there; -1 when it is not, and then the stage is called when it comes.
  double ready_time(std::size_t stage, const SchedulePass& pass) {
    Position place = place_of(stage, pass);
    if (pass.kind == PassKind::kWeightGradient) return 0;
    if (pass.kind == PassKind::kForward) {
      if (place.position-- == 0) return 0;
      Cell& before = cell(place, pass.microbatch);
      if (before.forward < 0) before.awaits_forward = static_cast<std::int32_t>(stage);
      return before.forward;
    }
    if (place.position++ == last_position(place)) return 0;
    Cell& after = cell(place, pass.microbatch);
    if (after.gradient < 0) after.awaits_gradient = static_cast<std::int32_t>(stage);
    return after.gradient;
  }

  void finish(std::size_t stage, const SchedulePass& pass) {
    Cell& own = cell(place_of(stage, pass), pass.microbatch);
    std::int32_t waiting = -1;
    switch (pass.kind) {
      case PassKind::kForward:
        own.forward = clock_[stage];
        waiting = own.awaits_forward;
        facts_.most_live[stage] = std::max(facts_.most_live[stage], ++live_[stage]);
        break;
      case PassKind::kBackward:
        own.weights = true;
        --live_[stage];
        [[fallthrough]];
      case PassKind::kInputGradient:
        own.gradient = clock_[stage];
        waiting = own.awaits_gradient;
        break;
      case PassKind::kWeightGradient:
        own.weights = true;
        --live_[stage];
        break;
    }
    if (waiting >= 0 && static_cast<std::size_t>(waiting) != stage) ready_.push_back(static_cast<std::size_t>(waiting));
  }

  // Each microbatch has passed all positions of one direction.
  Result<void> all_passed() {
    for (std::int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      std::int64_t directions = 0;
      for (std::size_t direction = 0; direction < seats_.size(); ++direction) {
        std::size_t forwards = 0, done = 0;
        for (std::size_t position = 0; position < seats_[direction].size(); ++position) {
          const Cell& here =
              cell({static_cast<std::int64_t>(direction), static_cast<std::int64_t>(position)}, microbatch);
          forwards += here.forward >= 0 ? 1 : 0;
          done += here.weights ? 1 : 0;
        }
        if (forwards == 0) continue;
        ++directions;
        if (forwards < seats_[direction].size() || done < seats_[direction].size()) {
          return mistake(fmt::format("microbatch {} lacks a pass", microbatch));
        }
      }
      if (directions != 1)
        return mistake(fmt::format("microbatch {} travels in {} directions", microbatch, directions));
    }
    return {};
  }

  const Seats& seats_;
  std::vector<std::vector<Position>> places_;  // [stage][chunk]
  std::vector<std::vector<SchedulePass>> lists_;
  std::vector<std::int64_t> first_cell_;  // by direction, in positions
  std::vector<Cell> cells_;
  std::int64_t microbatches_ = 0;
  std::vector<std::size_t> next_, ready_;
  std::vector<double> clock_;
  std::vector<std::int64_t> live_;
  ScheduleFacts facts_;
};

}  // namespace

Result<ScheduleFacts> check(const Seats& seats, std::span<const PassList> orders) {
  return Playback(seats, orders).facts();
}

namespace {

// What a pass adds to what is held before it: for a while, and in the end.
struct Added {
  double within = 0, behind = 0;
};
// `beside`: of two passes beside each other, the other one. A backward pass frees its losses before the forward pass,
// which is the first of the two, reaches its own.
Added added(PassKind kind, const ChunkBytes& bytes, const ChunkBytes* beside) {
  const auto backward = [&](double left) -> Added {
    const double freed = beside ? bytes.loss : 0;  // and counted there
    const double behind = left - bytes.after_forward + freed;
    const double loss = beside ? 0 : bytes.loss_backward;
    return {std::max({loss, bytes.working - bytes.loss + freed, behind + bytes.logged}), behind};
  };
  switch (kind) {
    case PassKind::kForward: {
      const double behind = bytes.after_forward - (beside ? beside->loss : 0);
      const double within = bytes.loss_forward > 0 ? behind + bytes.loss_forward : 0;
      return {std::max({within, bytes.frozen, beside ? beside->loss_backward : 0}), behind};
    }
    case PassKind::kBackward:
      return backward(0);
    case PassKind::kInputGradient:
      return backward(bytes.after_input_gradient);
    case PassKind::kWeightGradient:
      return {0, -bytes.after_input_gradient};
  }
  return {};
}
Added added(const std::vector<SchedulePass>& passes, std::size_t p, std::span<const ChunkBytes> chunks) {
  const auto bytes_of = [&](std::size_t pass) -> const ChunkBytes& {
    return chunks[static_cast<std::size_t>(passes[pass].chunk)];
  };
  if (passes[p].kind != PassKind::kForward) {
    return added(passes[p].kind, bytes_of(p), passes[p].beside_previous && p > 0 ? &bytes_of(p - 1) : nullptr);
  }
  const bool first_of_two = p + 1 < passes.size() && passes[p + 1].beside_previous;
  return added(passes[p].kind, bytes_of(p), first_of_two ? &bytes_of(p + 1) : nullptr);
}

}  // namespace

double most_held(const PassList& list, std::span<const ChunkBytes> chunks) {
  // Of passes that run alone, by chunk and kind: the most that they add at one time, and in the end.
  std::vector<Added> alone;
  alone.reserve(chunks.size() * kPassKindCount);
  for (const ChunkBytes& chunk : chunks) {
    for (std::size_t kind = 0; kind < kPassKindCount; ++kind) {
      const auto [within, behind] = added(static_cast<PassKind>(kind), chunk, nullptr);
      alone.push_back({std::max(within, behind), behind});
    }
  }
  double held = 0, most = 0;
  for (const PassLoop& loop : list) {
    const double before = held;
    double peak = held;
    const std::size_t passes = loop.passes.size();
    for (std::size_t p = 0; p < passes; ++p) {
      const SchedulePass& pass = loop.passes[p];
      const bool paired = pass.beside_previous || (p + 1 < passes && loop.passes[p + 1].beside_previous);
      const auto place = static_cast<std::size_t>(pass.chunk) * kPassKindCount + static_cast<std::size_t>(pass.kind);
      const auto [within, behind] = paired ? added(loop.passes, p, chunks) : alone[place];
      peak = std::max(peak, held + std::max(within, behind));
      held += behind;
    }
    // Each repeat holds as much more than the one before it, so the first or the last one holds the most.
    const double further = static_cast<double>(loop.repeats - 1) * (held - before);
    held += further;
    most = std::max({most, peak, peak + further});
  }
  return most;
}

std::vector<HeldPoint> held_over_time(const PassList& list, std::span<const ChunkBytes> chunks) {
  std::vector<HeldPoint> points;
  double held = 0;
  std::int64_t number = 0, left_out = 0;
  for (const PassLoop& loop : list) {
    const auto passes = static_cast<std::int64_t>(loop.passes.size());
    const auto add_repeat = [&](std::int64_t repeat) {
      for (std::size_t p = 0; p < loop.passes.size(); ++p) {
        const auto [within, behind] = added(loop.passes, p, chunks);
        SchedulePass pass = loop.passes[p];
        pass.microbatch += static_cast<std::int32_t>(repeat) * loop.shift;
        const double most = held + (within > 0 ? std::max(within, behind) : behind);
        held += behind;
        points.push_back({number++, pass, held, most, std::exchange(left_out, 0)});
      }
    };
    if (loop.repeats < 1) continue;
    const double before = held;
    add_repeat(0);
    if (loop.repeats == 1) continue;
    held += static_cast<double>(loop.repeats - 2) * (held - before);
    left_out = (loop.repeats - 2) * passes;
    number += left_out;
    add_repeat(loop.repeats - 1);
  }
  return points;
}

std::vector<LivePasses> live_passes(const PassList& list, std::size_t chunks, std::size_t point) {
  std::vector<LivePasses> live(chunks);
  const auto count = [&live](const SchedulePass& pass, std::int64_t times) {
    LivePasses& of_chunk = live[static_cast<std::size_t>(pass.chunk)];
    switch (pass.kind) {
      case PassKind::kForward:
        of_chunk.after_forward += times;
        break;
      case PassKind::kBackward:
        of_chunk.after_forward -= times;
        break;
      case PassKind::kInputGradient:
        of_chunk.after_forward -= times;
        of_chunk.after_input_gradient += times;
        break;
      case PassKind::kWeightGradient:
        of_chunk.after_input_gradient -= times;
        break;
    }
  };
  std::size_t left = point + 1;  // points
  for (const PassLoop& loop : list) {
    if (loop.repeats < 1) continue;
    const std::size_t passes = loop.passes.size(), points = loop.repeats == 1 ? passes : 2 * passes;
    // Points are of the first and the last repeat.
    const std::int64_t whole = left <= passes ? 0 : left <= points ? loop.repeats - 1 : loop.repeats;
    const std::size_t rest = left <= passes ? left : left <= points ? left - passes : 0;
    for (std::size_t p = 0; p < passes; ++p) count(loop.passes[p], whole + (p < rest ? 1 : 0));
    if (left <= points) break;
    left -= points;
  }
  return live;
}

std::string pass_text(const SchedulePass& pass, std::int64_t chunks) {
  std::string text = fmt::format("{}{}", letter(pass.kind), pass.microbatch);
  if (chunks > 1) text += fmt::format(".{}", pass.chunk);
  return text;
}

}  // namespace ns_dist
