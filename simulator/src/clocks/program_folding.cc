// Where the state of the event queue recurs, and what repeats from there on.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "clocks/program_engine.h"
#include "clocks/state_hash.h"

namespace ns_dist {

void ProgramQueue::Engine::note_border(std::uint32_t a) {
  if (!options_.fold || measured_ != nullptr) return;
  const std::uint64_t place = (std::uint64_t{a} << 32) | actors_[a].loop;
  const std::int64_t left = program_.actors[a].loops[actors_[a].loop].repeats - actors_[a].repeat;
  if (place != reference_) {
    // One actor's loop at a time is watched: the one with the most repeats left.
    if (reference_ != kNoReference) {
      const auto watched = static_cast<std::uint32_t>(reference_ >> 32);
      const auto loop = static_cast<std::uint32_t>(reference_);
      if (actors_[watched].mode != Mode::kDone && actors_[watched].loop == loop &&
          program_.actors[watched].loops[loop].repeats - actors_[watched].repeat >= left) {
        return;
      }
    }
    reference_ = place;
    borders_.clear();
  }
  if (left < 3) return;
  border_ = true;
}

std::vector<std::uint64_t> ProgramQueue::Engine::encode(double now) const {
  std::vector<std::uint64_t> state;
  state.reserve(actors_.size() * 12);
  const auto put = [&](std::uint64_t a, std::uint64_t b) { state.push_back((a << 32) | (b & 0xffffffffu)); };
  const auto put_time = [&](double time) { state.push_back(std::bit_cast<std::uint64_t>(time - now)); };
  for (std::uint32_t a = 0; a < actors_.size(); ++a) {
    const ActorState& actor = actors_[a];
    const std::int32_t base = base_of(a);
    put(actor.loop, actor.call);
    put(actor.op, (static_cast<std::uint64_t>(actor.mode) << 1) | (actor.at_meeting ? 1u : 0u));
    put(actor.fragment, static_cast<std::uint32_t>(actor.times_left));
    if (is_one_event(actor.mode)) {
      put(actor.snapshot, actor.kernel);
      put_time(actor.start);
    }
    if (actor.mode == Mode::kOpen) {
      for (std::uint32_t stream = 0; stream < kFragmentStreams; ++stream) {
        put(actor.open.next[stream], actor.open.running[stream]);
        if (actor.open.running[stream] == kNone) continue;
        put_time(actor.open.end[stream]);
        if (stream == 0) put_time(actor.open.kernel_end);
      }
    }
    for (const Beside& lane : actor.beside) {
      put(static_cast<std::uint32_t>(lane.started - lane.done), lane.busy ? lane.running.work : kNone);
      if (!lane.busy) continue;
      put(lane.running.channel, static_cast<std::uint32_t>(lane.running.microbatch - base));
      put_time(lane.end);
      for (const Item& item : lane.queue) {
        put(item.work, item.channel);
        state.push_back(static_cast<std::uint32_t>(item.microbatch - base));
      }
    }
  }
  for (std::uint32_t channel = 0; channel < arrivals_.size(); ++channel) {
    for (const Arrival& arrival : arrivals_[channel]) {
      put(channel, static_cast<std::uint32_t>(arrival.microbatch - base_of(receiver_[channel])));
    }
  }
  return state;
}

std::int32_t ProgramQueue::Engine::base_of(std::uint32_t a) const {
  const ActorState& actor = actors_[a];
  if (actor.loop >= program_.actors[a].loops.size()) return 0;
  return static_cast<std::int32_t>(actor.repeat) * program_.actors[a].loops[actor.loop].shift;
}

double ProgramQueue::Engine::recur(double now) {
  border_ = false;
  // A stage that runs ahead of the next one piles up messages: such a state does not recur.
  if (unread_ > kUnreadOfAnActor * actors_.size()) return now;
  // A state is as long as the pipeline: it has every stage and every channel. Where the pipeline has more stages than
  // there are microbatches, each stage repeats its loop by itself while the others wait, and nothing recurs: states may
  // then cost no more than the events.
  const std::size_t length = actors_.size() + arrivals_.size();
  if (encoded_ > events_ + kStatesAhead * length) return now;
  encoded_ += length;
  for (std::uint32_t a = 0; a < actors_.size(); ++a) {
    if (actors_[a].mode == Mode::kOpen && actors_[a].open.running[0] != kNone) follow(a, now, flows_.kernels(a));
  }
  Border border;
  border.state = encode(now);
  border.hash = state_hash(border.state);
  border.time = now;
  border.records = static_cast<std::uint32_t>(history_.records.size());
  border.repeats.reserve(actors_.size());
  for (const ActorState& actor : actors_) border.repeats.push_back(actor.repeat);
  if (options_.record) {
    for (const auto& records : history_.by_actor) {
      border.records_of_actor.push_back(static_cast<std::uint32_t>(records.size()));
    }
    for (const ActorState& actor : actors_) {
      border.under_way.push_back(runs(actor.mode) ? actor.record : kNoRecord);
      for (const Beside& lane : actor.beside) {
        if (lane.busy) border.under_way.push_back(lane.running.record);
        for (const Item& item : lane.queue) border.under_way.push_back(item.record);
      }
    }
  }
  for (auto earlier = borders_.rbegin(); earlier != borders_.rend(); ++earlier) {
    if (earlier->hash != border.hash || earlier->state != border.state) continue;
    now = repeat(*earlier, border);
    break;
  }
  if (borders_.size() >= kBorders) borders_.erase(borders_.begin());
  if (!border_done_) borders_.push_back(std::move(border));
  border_done_ = false;
  return now;
}

double ProgramQueue::Engine::repeat(const Border& earlier, const Border& border) {
  const double now = border.time, length = now - earlier.time;
  std::int64_t copies = std::numeric_limits<std::int64_t>::max(), microbatches = 0;
  for (std::uint32_t a = 0; a < actors_.size(); ++a) {
    const std::int64_t went = border.repeats[a] - earlier.repeats[a];
    if (went == 0) continue;
    const ProgramLoop& loop = program_.actors[a].loops[actors_[a].loop];
    const std::int64_t shifted = went * loop.shift;
    if (microbatches != 0 && shifted != microbatches) return now;
    microbatches = shifted;
    copies = std::min(copies, (loop.repeats - 1 - actors_[a].repeat) / went);
  }
  if (microbatches == 0 || copies < 1) return now;
  const double shift = static_cast<double>(copies) * length;
  const auto offset = static_cast<std::int32_t>(copies * microbatches);
  std::vector<bool> moved(actors_.size());
  for (std::uint32_t a = 0; a < actors_.size(); ++a) {
    const std::int64_t went = border.repeats[a] - earlier.repeats[a];
    ActorState& actor = actors_[a];
    moved[a] = went != 0;
    actor.repeat += copies * went;
    actor.start += shift;
    actor.point_end += shift;
    for (double& end : actor.open.end) end += shift;
    actor.open.kernel_end += shift;
    move_record(runs(actor.mode) ? actor.record : kNoRecord, shift, moved[a] ? offset : 0);
    for (Beside& lane : actor.beside) {
      lane.last_end += shift;
      lane.end += shift;
      if (lane.busy) {
        move_record(lane.running.record, shift, moved[a] ? offset : 0);
        if (moved[a]) lane.running.microbatch += offset;
      }
      for (Item& item : lane.queue) {
        if (item.record != kNoRecord) ++history_.records[item.record].frame;
        if (moved[a]) item.microbatch += offset;
      }
    }
  }
  for (std::uint32_t channel = 0; channel < arrivals_.size(); ++channel) {
    for (Arrival& arrival : arrivals_[channel]) {
      arrival.end += shift;
      if (moved[receiver_[channel]]) arrival.microbatch += offset;
    }
  }
  heap_.shift(shift);
  FoldedPeriod period;
  period.first = earlier.records;
  period.end = border.records;
  period.copies = copies;
  period.microbatches = microbatches < 0 ? -microbatches : microbatches;
  period.at = now;
  period.length = length;
  if (options_.record) {
    for (std::size_t a = 0; a < actors_.size(); ++a) {
      period.records_of_actor.push_back(border.records_of_actor[a] - earlier.records_of_actor[a]);
    }
    period.under_way = earlier.under_way;
    period.under_way_after = border.under_way;
  }
  history_.periods.push_back(std::move(period));
  borders_.clear();
  border_done_ = true;
  latest_ = std::max(latest_, now + shift);
  return now + shift;
}

void ProgramQueue::Engine::move_record(std::uint32_t id, double shift, std::int32_t microbatches) {
  if (id == kNoRecord) return;
  StepRecord& moved = history_.records[id];
  moved.start += shift;
  if (moved.microbatch >= 0) moved.microbatch += microbatches;
  ++moved.frame;
  if (moved.lane % kStreamCount != 0 || moved.spans == kNoRecord) return;
  for (std::uint32_t n = 0; n < fragments_.compiled(moved.what).count; ++n) {
    NodeSpan& span = history_.spans.at(moved.spans)[n];
    span.start += shift;
    span.end += shift;
  }
}

}  // namespace ns_dist
