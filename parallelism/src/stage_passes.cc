#include "stage_passes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ns_dist/hash.h"
#include "plan_cache.h"

namespace ns_dist {
namespace {

// Loops of passes become loops of bodies. The first forward pass of each chunk and its last weight gradient are taken
// out of their loops where they do more than the others; of rounds of weight gradients, where the last repeat of a loop
// ends other rounds than those before it.
class LoopMaker {
 public:
  LoopMaker(const PassesKey& key, std::uint32_t first_body, StagePasses::Stage& stage)
      : key_(key),
        next_body_(first_body),
        stage_(stage),
        firsts_(stage.places.size()),
        lasts_(stage.places.size()),
        single_(stage.places.size() * kPassKindCount * 4, kNone) {}

  // Returns the number of the body behind those of the stage.
  std::uint32_t run(const PassList& list) && {
    find_ends(list);
    if (key_.reduces == Reduces::kRoundEnds) find_rounds(list);
    if (key_.gathers) add_single();
    first_body_ = next_body_;
    for (std::size_t l = 0; l < list.size(); ++l) add(list[l], l);
    next_body_ = first_body_ + static_cast<std::uint32_t>(stage_.bodies.size());
    add_single();
    stage_.loops = ProgramLoops(std::move(loops_));
    return next_body_;
  }

 private:
  struct Spot {
    std::size_t loop = 0, pass = 0;
    bool found = false;
    bool is(std::size_t l, std::size_t p) const { return found && loop == l && pass == p; }
  };

  void find_ends(const PassList& list) {
    for (std::size_t l = 0; l < list.size(); ++l) {
      if (list[l].repeats == 0) continue;
      for (std::size_t p = 0; p < list[l].passes.size(); ++p) {
        const SchedulePass& pass = list[l].passes[p];
        const auto chunk = static_cast<std::size_t>(pass.chunk);
        if (pass.kind == PassKind::kForward && !firsts_[chunk].found) {
          firsts_[chunk] = {l, p, true};
          stage_.chunks.push_back(pass.chunk);
        }
        if (computes_weight_gradient(pass.kind)) lasts_[chunk] = {l, p, true};
      }
    }
    for (const auto& [spots, holds] : {std::pair(&firsts_, &holds_first_), std::pair(&lasts_, &holds_last_)}) {
      holds->resize(list.size());
      for (const Spot& spot : *spots) {
        if (spot.found) (*holds)[spot.loop] = true;
      }
    }
  }

  // Within a loop, a weight gradient ends its round where the next one, of the next repeat behind the last, is of
  // another chunk. Behind the last repeat comes what other loops begin with.
  void find_rounds(const PassList& list) {
    holds_last_.assign(list.size(), false);
    ends_in_loop_.resize(list.size());
    last_gradients_.resize(list.size());
    std::int32_t next_chunk = -1;  // of the first weight gradient behind the loop
    for (std::size_t l = list.size(); l-- > 0;) {
      const std::vector<SchedulePass>& passes = list[l].passes;
      std::vector<std::size_t> gradients;
      for (std::size_t p = 0; p < passes.size(); ++p) {
        if (computes_weight_gradient(passes[p].kind)) gradients.push_back(p);
      }
      ends_in_loop_[l].resize(passes.size());
      if (gradients.empty() || list[l].repeats == 0) continue;
      const auto chunk = [&](std::size_t i) { return passes[gradients[i % gradients.size()]].chunk; };
      for (std::size_t i = 0; i < gradients.size(); ++i) ends_in_loop_[l][gradients[i]] = chunk(i) != chunk(i + 1);
      last_gradients_[l] = {gradients.back(), next_chunk != chunk(gradients.size() - 1)};
      holds_last_[l] = ends_in_loop_[l][gradients.back()] != last_gradients_[l].ends;
      next_chunk = chunk(0);
    }
  }

  // `in_last`: in the last repeat of a loop that is not like the others.
  bool reduces(std::size_t l, std::size_t p, std::size_t chunk, bool in_last) const {
    if (key_.reduces != Reduces::kRoundEnds) return in_last && lasts_[chunk].is(l, p);
    const LastGradient& last = last_gradients_[l];
    return in_last && last.pass == p ? last.ends : ends_in_loop_[l][p];
  }

  void add_single() { loops_.push_back({{{BodyId{next_body_++}, -1, -1}}, 1, 0}); }

  void add(const PassLoop& loop, std::size_t l) {
    const bool has_first = key_.gathers && holds_first_[l],
               has_last = key_.reduces != Reduces::kAlike && holds_last_[l];
    std::int64_t from = 0;
    const std::int64_t to = loop.repeats;
    if (has_first) {
      add_part(loop, l, 0, 1, true, has_last && to == 1);
      from = 1;
    }
    if (has_last && to > from) {
      add_part(loop, l, from, to - 1, false, false);
      add_part(loop, l, to - 1, to, false, true);
    } else {
      add_part(loop, l, from, to, false, false);
    }
  }

  // Repeats `begin` to `end` - 1 of loop `l`.
  void add_part(const PassLoop& loop, std::size_t l, std::int64_t begin, std::int64_t end, bool first, bool last) {
    if (begin >= end) return;
    ProgramLoop made;
    made.repeats = end - begin;
    made.shift = loop.shift;
    made.calls.reserve(loop.passes.size());
    const auto offset = static_cast<std::int32_t>(begin) * loop.shift;
    const auto pass_at = [&](std::size_t p) {
      const SchedulePass& pass = loop.passes[p];
      const auto chunk = static_cast<std::size_t>(pass.chunk);
      return StagePass{pass.kind, pass.chunk, first && firsts_[chunk].is(l, p), reduces(l, p, chunk, last)};
    };
    for (std::size_t p = 0; p < loop.passes.size(); ++p) {
      StagePasses::Body body{pass_at(p), std::nullopt};
      BodyCall call{{}, loop.passes[p].microbatch + offset, -1};
      if (p + 1 < loop.passes.size() && loop.passes[p + 1].beside_previous) {
        ++p;
        body.second = pass_at(p);
        call.second = loop.passes[p].microbatch + offset;
      }
      call.body = id_of(body);
      made.calls.push_back(call);
    }
    loops_.push_back(std::move(made));
  }

  BodyId id_of(const StagePasses::Body& body) {
    std::vector<StagePasses::Body>& bodies = stage_.bodies;
    const auto add = [&] {
      bodies.push_back(body);
      return static_cast<std::uint32_t>(bodies.size() - 1);
    };
    if (body.second) {
      const auto known = std::find(bodies.begin(), bodies.end(), body);
      return BodyId{first_body_ + (known == bodies.end() ? add() : static_cast<std::uint32_t>(known - bodies.begin()))};
    }
    const auto& [kind, chunk, first, last] = body.pass;
    const std::size_t place = static_cast<std::size_t>(chunk) * kPassKindCount + static_cast<std::size_t>(kind);
    std::uint32_t& known = single_[4 * place + (first ? 2 : 0) + (last ? 1 : 0)];
    if (known == kNone) known = add();
    return BodyId{first_body_ + known};
  }

  const PassesKey& key_;
  std::uint32_t next_body_, first_body_ = 0;
  StagePasses::Stage& stage_;
  std::vector<Spot> firsts_, lasts_;            // by chunk
  std::vector<bool> holds_first_, holds_last_;  // by loop: whether one of these is there
  // Of rounds, by loop: by pass, whether it ends one in a repeat before the last; and of the last repeat, the last
  // weight gradient and whether that ends one.
  std::vector<std::vector<bool>> ends_in_loop_;
  struct LastGradient {
    std::size_t pass = 0;
    bool ends = false;
  };
  std::vector<LastGradient> last_gradients_;
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::vector<std::uint32_t> single_;  // bodies of one pass, by chunk, kind, first and last
  std::vector<ProgramLoop> loops_;
};

// The forward passes of a stage, in their order.
PassList forward_of(const PassList& list) {
  PassList forward;
  for (PassLoop loop : list) {
    std::erase_if(loop.passes, [](const SchedulePass& pass) { return pass.kind != PassKind::kForward; });
    if (!loop.passes.empty()) forward.push_back(std::move(loop));
  }
  return forward;
}

StagePasses make_passes(const PassesKey& key, std::vector<PassList> orders) {
  StagePasses made;
  made.seats = key.schedule->seats(key.shape);
  made.orders = std::move(orders);
  made.stages.resize(made.orders.size());
  for (std::size_t direction = 0; direction < made.seats.size(); ++direction) {
    for (std::size_t position = 0; position < made.positions(); ++position) {
      const Seat& seat = made.seats[direction][position];
      std::vector<Place>& places = made.stages[static_cast<std::size_t>(seat.stage)].places;
      places.resize(std::max(places.size(), static_cast<std::size_t>(seat.chunk) + 1));
      places[static_cast<std::size_t>(seat.chunk)] = {direction, position};
    }
  }
  std::uint32_t next_body = 0;
  for (std::size_t stage = 0; stage < made.stages.size(); ++stage) {
    next_body = LoopMaker(key, next_body, made.stages[stage]).run(made.orders[stage]);
  }
  return made;
}

}  // namespace

std::size_t StagePasses::size() const {
  std::size_t calls = 0;
  for (const Stage& stage : stages) {
    for (const ProgramLoop& loop : stage.loops) calls += loop.calls.size();
  }
  return calls;
}

std::uint64_t PassesKey::hash() const {
  std::uint64_t hash = (gathers ? 1u : 0u) + (forward ? 2u : 0u) + 4u * static_cast<unsigned>(reduces);
  for (const std::int64_t field :
       {std::bit_cast<std::int64_t>(schedule), shape.stages, shape.microbatches, shape.chunks, frozen}) {
    hash = mix_hash(hash, static_cast<std::uint64_t>(field));
  }
  return hash;
}

Result<std::shared_ptr<const StagePasses>> stage_passes(const PassesKey& key, PlanCache& cache) {
  return cache.contents().passes.find_or_make(key, [&]() -> Result<StagePasses> {
    NS_TRY(std::vector<PassList> orders, key.schedule->orders(key.shape));
    if (key.forward) std::transform(orders.begin(), orders.end(), orders.begin(), forward_of);
    return make_passes(key, std::move(orders));
  });
}

}  // namespace ns_dist
